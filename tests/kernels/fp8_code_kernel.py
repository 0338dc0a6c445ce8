"""Kernels around the integer conversions, so that a test can give them every value."""

from __future__ import annotations

import triton
import triton.language as tl
from turbo_kernels.gemm_fp8.triton_quant import e4m3fn_code
from turbo_kernels.quantization.triton_quantize import fp8_code, fp8_value
from turbo_kernels.triton_codes import e2m1_code, e2m1_value, e8m0_value


@triton.jit
def encode_kernel(x_ptr, code_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(code_ptr + i, e4m3fn_code(tl.load(x_ptr + i, mask=i < n, other=0.0)), mask=i < n)


@triton.jit
def code_kernel(x_ptr, code_ptr, n, FORMAT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(code_ptr + i, e2m1_code(x) if FORMAT == "e2m1" else fp8_code(x, FORMAT == "e5m2"), mask=i < n)


@triton.jit
def value_kernel(code_ptr, x_ptr, FORMAT: tl.constexpr):
    """All 256 codes' values."""
    i = tl.arange(0, 256)
    code = tl.load(code_ptr + i)
    if FORMAT == "e2m1":
        value = e2m1_value(code)
    elif FORMAT == "e8m0":
        value = e8m0_value(code)
    else:
        value = fp8_value(code, FORMAT == "e5m2")
    tl.store(x_ptr + i, value)
