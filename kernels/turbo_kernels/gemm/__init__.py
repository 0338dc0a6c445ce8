"""Dense GEMM in bf16, fp16 and fp32."""

from turbo_kernels.spec import GEMM_SECTION, Spec

SPEC = Spec(
    name="gemm",
    summary="y = op(a)·op(b) + bias with any transposition; forward and all gradients",
    variants=("default",),
    dtypes=("bf16", "fp16", "fp32"),
    backends=dict.fromkeys(("TRITON", "HIPBLASLT", "TORCH"), ("gfx942", "gfx950", "sm_90", "cpu")),
    sections={"forward": GEMM_SECTION, "dgrad": GEMM_SECTION, "wgrad": GEMM_SECTION},
)
