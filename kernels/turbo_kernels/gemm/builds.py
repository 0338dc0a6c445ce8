"""What gemm ships: every section in its configuration, each dtype on aligned sizes and bf16 on odd ones."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_kernels import config
from turbo_kernels.builds import Build, split
from turbo_kernels.gemm.triton_gemm import gemm_kernel

POINTERS = ("a_ptr", "b_ptr", "c_ptr")
# Which strides are 1 where a[M, K], b[N, K] and grad_out[M, N] are contiguous.
UNIT_STRIDES = {
    "forward": ("stride_ak", "stride_bk", "stride_cn"),
    "dgrad": ("stride_ak", "stride_bn", "stride_cn"),
    "wgrad": ("stride_am", "stride_bn", "stride_cn"),
}
CASES = (("bf16", True), ("bf16", False), ("fp16", True), ("fp32", True))  # (dtype, sizes are multiples of the tile)


def _matrix(arch: str, dtype: str) -> str | None:
    return None if dtype == "fp32" and arch.startswith("sm_") else dtype  # IEEE fp32 has no tensor core


def builds(arch: str) -> Iterator[Build]:
    for section, params in config.read("gemm", arch).items():
        constants, options = split(params)
        for dtype, even in CASES:
            yield Build(
                label=f"gemm {section} {dtype}{'' if even else ' odd sizes'}",
                kernel=gemm_kernel,
                types=dict.fromkeys(POINTERS, f"*{dtype}"),
                constants=constants
                | {"EVEN_MN": even, "EVEN_K": even, "UPCAST": False}
                | dict.fromkeys(UNIT_STRIDES[section], 1),
                options=options,
                matrix=_matrix(arch, dtype),
                unit=frozenset() if even else frozenset({"M", "N", "K"}),
            )
