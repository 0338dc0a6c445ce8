"""Codes of the small floating-point formats in integer arithmetic: what the hardware's conversions do, where there is
none (E2M1) or it can't be trusted (Triton's interpreter rounds FP8 wrongly).

A format of MANTISSA explicit bits and exponent bias BIAS is given by those two, its largest finite code MAX_CODE and the
code NAN that a NaN becomes.
"""

# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def float_code(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MAX_CODE: tl.constexpr, NAN: tl.constexpr,
               SIGN_SHIFT: tl.constexpr):  # fmt: skip
    """fp32 -> code (uint8): rounded to nearest even, saturating; SIGN_SHIFT is 31 less the sign's place in the code."""
    DROP: tl.constexpr = 23 - MANTISSA
    HALF: tl.constexpr = (1 << (DROP - 1)) - 1
    REBIAS: tl.constexpr = (127 - BIAS) << MANTISSA
    LEAST_NORMAL: tl.constexpr = (128 - BIAS) << 23
    # fp32 with an ulp of the format's subnormal step: adding it leaves the rounding to the hardware's own.
    STEP_AT_UNIT: tl.constexpr = (151 - BIAS - MANTISSA) << 23
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + HALF + ((magnitude >> DROP) & 1)) >> DROP) - REBIAS
    unit = tl.full(x.shape, STEP_AT_UNIT, tl.int32).to(tl.float32, bitcast=True)
    subnormal = (magnitude.to(tl.float32, bitcast=True) + unit).to(tl.int32, bitcast=True) - STEP_AT_UNIT
    # An infinity's bits plus HALF stay positive; a NaN's may not, and are replaced.
    code = tl.minimum(tl.where(magnitude < LEAST_NORMAL, subnormal, normal), MAX_CODE)
    code |= (bits >> SIGN_SHIFT) & (1 << (31 - SIGN_SHIFT))
    return tl.where(magnitude > 0x7F800000, NAN, code).to(tl.uint8)


@triton.jit
def float_value(code, MANTISSA: tl.constexpr, BIAS: tl.constexpr, SIGN_SHIFT: tl.constexpr):
    """The fp32 value of a finite code: its bits in fp32's places, then the exponent's bias made up for by a product,
    which makes subnormals right too."""
    code = code.to(tl.int32)
    magnitude = (code & ((1 << (31 - SIGN_SHIFT)) - 1)) << (23 - MANTISSA)
    bits = magnitude | (code & (1 << (31 - SIGN_SHIFT))) << SIGN_SHIFT
    rebias = tl.full(code.shape, (254 - BIAS) << 23, tl.int32).to(tl.float32, bitcast=True)
    return bits.to(tl.float32, bitcast=True) * rebias


@triton.jit
def e2m1_code(x):
    """fp32 -> FP4 E2M1 code, 0 to 15: nearest even, saturating at ±6; NaN, which the format lacks, becomes 0."""
    return float_code(x, 1, 1, 7, 0, 28)


@triton.jit
def e2m1_value(code):
    """FP4 E2M1 code (its low four bits) -> fp32."""
    return float_value(code & 15, 1, 1, 28)


@triton.jit
def e8m0_value(code):
    """E8M0 scale -> fp32 2^(code − 127); 255 is NaN, 0 (2^-127) a subnormal."""
    code = code.to(tl.int32)
    bits = tl.where(code == 0, 0x00400000, code << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
