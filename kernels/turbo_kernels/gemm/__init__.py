"""Dense GEMM in bf16, fp16 and fp32."""

from turbo_kernels.spec import AMD, EVERYWHERE, GEMM_SECTION, Spec

SPEC = Spec(
    name="gemm",
    summary="y = op(a)·op(b) + bias with any transposition; forward and all gradients",
    variants=("default",),
    dtypes=("bf16", "fp16", "fp32"),
    backends={
        "TRITON": EVERYWHERE,
        "HIPBLASLT": EVERYWHERE,
        "TORCH": EVERYWHERE,
        "AITER": AMD,
        "FLYDSL": ("gfx950",),
    },
    sections={"forward": GEMM_SECTION, "dgrad": GEMM_SECTION, "wgrad": GEMM_SECTION},
)
