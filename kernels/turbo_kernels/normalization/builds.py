"""What RMSNorm ships: forward, backward and the sum of the backward's partial results, from narrow to the widest rows."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_kernels import config
from turbo_kernels.builds import Build
from turbo_kernels.normalization import triton_rmsnorm as kernels

WIDTHS = (96, 2048, 4096, 5120, 8192, 12288, 16384)
_BYTES = {"bf16": 2, "fp32": 4}


def builds(arch: str) -> Iterator[Build]:
    sections = config.read("normalization", arch)
    for dtype, size in _BYTES.items():
        for cols in (c for c in WIDTHS if c <= kernels.MAX_COLS[size]):
            yield _rows("forward", dtype, cols, sections["forward"])
            yield _rows("backward", dtype, cols, sections["backward"])
        params = sections["reduce"]
        yield Build(
            label=f"rmsnorm reduce {dtype}",
            kernel=kernels.reduce_kernel,
            types={"partial_ptr": "*fp32", "dw_ptr": f"*{dtype}"},
            constants={name: params[name] for name in ("BLOCK_ROWS", "BLOCK_COLS")},
            options={"num_warps": params["num_warps"]},
            unit=frozenset({"P"}),
        )


def _rows(name: str, dtype: str, cols: int, params: dict[str, int]) -> Build:
    tile, options = kernels.launch(cols, params)
    backward = name == "backward"
    tensors = ("dy_ptr", "x_ptr", "w_ptr", "dx_ptr") if backward else ("x_ptr", "w_ptr", "y_ptr")
    fp32 = {"rstd_ptr": "*fp32", "partial_ptr": "*fp32", "eps": "fp32"}
    return Build(
        label=f"rmsnorm {name} {dtype} {cols}",
        kernel=kernels.backward_kernel if backward else kernels.forward_kernel,
        types=dict.fromkeys(tensors, f"*{dtype}") | fp32,
        constants=tile | ({"DWEIGHT": True} if backward else {}),
        options=options,
        unit=frozenset({"T", "eps"}),
    )
