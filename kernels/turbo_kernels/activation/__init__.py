"""Gated activations (SwiGLU, GeGLU), optionally weighted per token."""

from turbo_kernels.spec import Section, Spec

_TILE: Section = {
    "BLOCK_ROWS": (1, 2, 4, 8, 16, 32),
    "BLOCK_COLS": (64, 128, 256, 512, 1024, 2048, 4096),
    "num_warps": (1, 2, 4, 8, 16),
}
_EVERYWHERE = ("gfx942", "gfx950", "sm_90", "cpu")

SPEC = Spec(
    name="activation",
    summary="y = f(gate)·up of x = [gate | up], times a weight per token; forward and both gradients",
    variants=("swiglu", "geglu"),
    dtypes=("bf16", "fp16", "fp32"),
    backends={"TRITON": _EVERYWHERE, "TORCH": _EVERYWHERE},
    sections={"forward": _TILE, "backward": _TILE},
    outputs=("out", "dx"),
    public=("swiglu", "geglu"),
    schema_class="memory",
)
