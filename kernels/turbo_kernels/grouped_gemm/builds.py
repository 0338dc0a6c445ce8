"""What grouped_gemm ships: the tile table, forward, dgrad and wgrad, each in its section's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turbo_kernels import config
from turbo_kernels.builds import Build
from turbo_kernels.grouped_gemm.triton_grouped_gemm import rows_kernel, wgrad_kernel
from turbo_kernels.triton_groups import cut_kernel

# Which stride is 1: of row-major activations, and of weights [G, N, K] read as [G, K, N] (forward) or as they lie (dgrad).
UNIT_STRIDES = {
    "forward": ("stride_ak", "stride_bk", "stride_cn"),
    "dgrad": ("stride_ak", "stride_bn", "stride_cn"),
    "wgrad": ("stride_xm", "stride_yn", "stride_cn"),
}
POINTERS = {
    "forward": ("a_ptr", "b_ptr", "c_ptr"),
    "dgrad": ("a_ptr", "b_ptr", "c_ptr"),
    "wgrad": ("x_ptr", "y_ptr", "c_ptr"),
}


def split(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """A section's parameters as (constants, Triton's options)."""
    options = {k: v for k, v in params.items() if k.startswith("num_")}
    return {k: v for k, v in params.items() if k not in options}, options


def cut_build(label: str, tile_rows: int) -> Build:
    return Build(
        label=f"{label} tiles of {tile_rows} rows",
        kernel=cut_kernel,
        types={"lens_ptr": "*i64", "table_ptr": "*i32", "rows_ptr": "*i32", "tiles_ptr": "*i32"},
        constants={"TILE_ROWS": tile_rows, "BLOCK_G": 256, "CHUNK": 256},
        options={"num_warps": 4},
        unit=frozenset({"rows_ptr", "tiles_ptr", "T", "G", "most"}),
    )


def builds(arch: str) -> Iterator[Build]:
    for section, params in config.read("grouped_gemm", arch).items():
        constants, options = split(params)
        wgrad = section == "wgrad"
        even = {} if wgrad else {"EVEN_N": True, "EVEN_K": True}
        yield cut_build(f"grouped_gemm {section}", params["BLOCK_K" if wgrad else "BLOCK_M"])
        yield Build(
            label=f"grouped_gemm {section}",
            kernel=wgrad_kernel if wgrad else rows_kernel,
            types={name: "*bf16" for name in POINTERS[section]} | {"rows_ptr" if wgrad else "table_ptr": "*i32"},
            constants=constants | even | {"UPCAST": False} | dict.fromkeys(UNIT_STRIDES[section], 1),
            options=options,
            matrix="bf16",
            unit=frozenset({"most", "G"}),
        )
