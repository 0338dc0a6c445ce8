"""Quantization to FP8 and FP4: scaled per tensor, row, block of 128, or 32 elements (microscaling)."""

from turbo_kernels.spec import Section, Spec

_SIDES = (32, 64, 128, 256)
_TILE: Section = {"BLOCK_M": _SIDES, "BLOCK_K": _SIDES, "num_warps": (1, 2, 4, 8, 16)}

SPEC = Spec(
    name="quantization",
    summary="codes and scales of a matrix, along its rows and, in the same launch, of its transpose; and back",
    variants=("tensorwise", "rowwise", "blockwise", "blockwise_weight", "mxfp8", "mxfp4"),
    dtypes=("bf16", "fp16", "fp32"),
    backends={
        "TRITON": ("gfx942", "gfx950", "sm_90", "cpu"),
        "TORCH": ("gfx942", "gfx950", "sm_90", "cpu"),
    },
    sections={"amax": _TILE, "scaled": _TILE, "mx": _TILE, "dequantize": _TILE},
    outputs=("out",),
    schema_class="memory",
    public=("quantize", "dequantize"),
)
