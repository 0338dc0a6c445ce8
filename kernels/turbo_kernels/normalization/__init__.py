"""RMSNorm."""

from turbo_kernels.spec import Section, Spec

_ROW: Section = {"TILE": (512, 1024, 2048, 4096, 8192, 16384), "num_warps": (1, 2, 4, 8, 16)}
_EVERYWHERE = ("gfx942", "gfx950", "sm_90", "cpu")

SPEC = Spec(
    name="normalization",
    summary="y = x / rms(x) · weight over the last dimension; forward and both gradients",
    variants=("rmsnorm",),
    dtypes=("bf16", "fp16", "fp32"),
    backends={"TRITON": _EVERYWHERE, "TORCH": _EVERYWHERE},
    sections={
        "forward": _ROW,
        "backward": {**_ROW, "PROGRAMS": (1, 2, 4, 8, 16)},
        "reduce": {"BLOCK_ROWS": (8, 16, 32, 64), "BLOCK_COLS": (16, 32, 64, 128), "num_warps": (1, 2, 4, 8)},
    },
    outputs=("out", "dx", "dweight"),
    public=("rmsnorm",),
    schema_class="memory",
)
