"""FP8 GEMM for training: quantizes inside, all three GEMMs of a step in fp8."""

from turbo_kernels.gemm_fp8.fp8 import VARIANTS
from turbo_kernels.spec import AMD, EVERYWHERE, GEMM_SECTION, Section, Spec

_PLAIN: Section = {**GEMM_SECTION, "BLOCK_K": (32, 64, 128)}
_SECTION: Section = {**_PLAIN, "PERSISTENT_TMA": (False, True)}

SPEC = Spec(
    name="gemm_fp8",
    summary="y = op(a)·op(b), operands scaled per block (1×128, weights 128×128), tensor, row, or 32 elements",
    variants=VARIANTS,
    dtypes=("bf16",),
    backends={"TRITON": EVERYWHERE, "HIPBLASLT": EVERYWHERE, "TORCH": EVERYWHERE, "AITER": AMD, "CK": AMD},
    narrower={
        ("blockwise", "HIPBLASLT"): ("sm_90",),
        **{("mxfp8", backend): () for backend in ("HIPBLASLT", "AITER", "CK")},
        **{("tensorwise", backend): () for backend in ("AITER", "CK")},
    },
    sections={
        # blockwise
        "forward": _SECTION,
        "dgrad": _SECTION,
        "wgrad": _SECTION,
        "quant": {"num_warps": (1, 2, 4, 8, 16)},
        # every launch of tensorwise and rowwise, and of mxfp8; their quantization is quantization's
        "scaled": _PLAIN,
        "mx": _PLAIN,
    },
)
