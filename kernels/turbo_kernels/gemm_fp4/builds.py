"""What gemm_fp4 ships: forward, dgrad and wgrad, each in its section's configuration, with and without a tail of K."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_kernels import config
from turbo_kernels.builds import Build
from turbo_kernels.gemm_fp4.triton_gemm_fp4 import SCALED_FP4, gemm_kernel

TYPES = {"a_ptr": "*u8", "b_ptr": "*u8", "c_ptr": "*bf16", "sa_ptr": "*u8", "sb_ptr": "*u8"}


def builds(arch: str) -> Iterator[Build]:
    scaled = arch in SCALED_FP4
    for section, params in config.read("gemm_fp4", arch).items():
        options = {k: v for k, v in params.items() if k.startswith("num_")}
        tile = {k: v for k, v in params.items() if k not in options}
        for even in (True, False):
            yield Build(
                label=f"gemm_fp4 {section}{'' if even else ' tail'}",
                kernel=gemm_kernel,
                types=TYPES,
                constants={**tile, "EVEN_K": even, "SCALED": scaled, "INTERPRET": False},
                options=options,
                matrix="mxfp4" if scaled else "bf16",
            )
