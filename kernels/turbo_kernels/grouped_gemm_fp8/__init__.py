"""Grouped GEMM in FP8 for training: quantizes inside, all three GEMMs of a step in fp8."""

from turbo_kernels.spec import GEMM_SECTION, Section, Spec

_SECTION: Section = {**GEMM_SECTION, "BLOCK_K": (32, 64, 128)}

SPEC = Spec(
    name="grouped_gemm_fp8",
    summary="grouped_gemm with operands scaled per 1×128 and 128×128, per row, or per tensor",
    variants=("blockwise", "rowwise", "tensorwise"),
    dtypes=("bf16",),
    backends={
        "TRITON": ("gfx942", "gfx950", "sm_90", "cpu"),
        "HIPBLASLT": ("sm_90",),
        "TORCH": ("gfx942", "gfx950", "sm_90", "cpu"),
    },
    narrower={("blockwise", "HIPBLASLT"): ()},
    sections={"forward": _SECTION, "dgrad": _SECTION, "wgrad": _SECTION, "quant": {"num_warps": (1, 2, 4, 8, 16)}},
)
