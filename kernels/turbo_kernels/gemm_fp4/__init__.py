"""FP4 GEMM for training: quantizes inside, all three GEMMs of a step in mxfp4."""

from turbo_kernels.spec import GEMM_SECTION, Section, Spec

_SECTION: Section = {**GEMM_SECTION, "BLOCK_K": (64, 128, 256)}

SPEC = Spec(
    name="gemm_fp4",
    summary="y = a·bᵀ in E2M1 with an E8M0 scale per 32 of the contracted dimension",
    variants=("mxfp4",),
    dtypes=("bf16", "fp16"),
    backends={
        "TRITON": ("gfx942", "gfx950", "sm_90", "cpu"),
        "TORCH": ("gfx942", "gfx950", "sm_90", "cpu"),
    },
    sections={"forward": _SECTION, "dgrad": _SECTION, "wgrad": _SECTION},
)
