"""A kernel around the interpreter's FP8 rounding, so that a test can give it every value."""

from __future__ import annotations

import triton
import triton.language as tl
from turbo_kernels.gemm_fp8.triton_quant import e4m3fn_code


@triton.jit
def encode_kernel(x_ptr, code_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(code_ptr + i, e4m3fn_code(tl.load(x_ptr + i, mask=i < n, other=0.0)), mask=i < n)
