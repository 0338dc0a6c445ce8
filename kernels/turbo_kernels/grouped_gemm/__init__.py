"""Grouped GEMM (experts of a mixture) in bf16, fp16 and fp32."""

from turbo_kernels.spec import GEMM_SECTION, Spec

SPEC = Spec(
    name="grouped_gemm",
    summary="every token's row times its own expert's weight, tokens per expert known to the device alone",
    variants=("default",),
    dtypes=("bf16", "fp16", "fp32"),
    backends={
        "TRITON": ("gfx942", "gfx950", "sm_90", "cpu"),
        "HIPBLASLT": ("gfx942", "gfx950", "sm_90", "cpu"),
        "TORCH": ("gfx942", "gfx950", "sm_90", "cpu"),
    },
    sections={"forward": GEMM_SECTION, "dgrad": GEMM_SECTION, "wgrad": GEMM_SECTION},
)
