"""What gemm ships: one kernel, as each launch of a training step reads its operands, in that launch's configuration."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_kernels import config
from turbo_kernels.builds import Build
from turbo_kernels.gemm.triton_gemm import gemm_kernel

# The strides that are 1 where a[M, K] and b[N, K] are row-major.
UNIT_STRIDES = {
    "forward": ("stride_ak", "stride_bk", "stride_cn"),
    "dgrad": ("stride_ak", "stride_bn", "stride_cn"),
    "wgrad": ("stride_am", "stride_bn", "stride_cn"),
}
STRIDES = ("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn")
TYPES = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32"}
MATRIX = {"bf16": "bf16", "fp16": "fp16", "fp32": None}  # IEEE fp32 is no matrix instruction's on sm_90


def builds(arch: str) -> Iterator[Build]:
    for section, params in config.read("gemm", arch).items():
        options = {k: v for k, v in params.items() if k.startswith("num_")}
        shape = {k: v for k, v in params.items() if k not in options} | dict.fromkeys(UNIT_STRIDES[section], 1)
        for dtype, pointer in TYPES.items():
            pointers: dict[str, str] = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), pointer)
            yield Build(
                f"gemm {section} {dtype}", gemm_kernel, pointers,
                shape | {"bias_ptr": None, "EVEN_MN": True, "EVEN_K": True, "UPCAST": False},
                options, MATRIX[dtype],
            )  # fmt: skip
            yield Build(
                f"gemm {section} {dtype}, bias, odd sizes", gemm_kernel, pointers | {"bias_ptr": pointer},
                shape | {"EVEN_MN": False, "EVEN_K": False, "UPCAST": False},
                options, MATRIX[dtype], frozenset({"M", "N", "K", *STRIDES}),
            )  # fmt: skip
