"""FP8 GEMM for training: quantizes inside, all three GEMMs of a step in fp8."""

from turbo_kernels.spec import GEMM_SECTION, Section, Spec

_SECTION: Section = {**GEMM_SECTION, "BLOCK_K": (32, 64, 128), "PERSISTENT_TMA": (False, True)}

SPEC = Spec(
    name="gemm_fp8",
    summary="y = a·bᵀ, activations and gradients scaled per 1×128, weights per 128×128",
    variants=("blockwise",),
    dtypes=("bf16",),
    backends={"TRITON": ("gfx942", "gfx950", "sm_90", "cpu")},
    sections={"forward": _SECTION, "dgrad": _SECTION, "wgrad": _SECTION, "quant": {"num_warps": (1, 2, 4, 8, 16)}},
)
