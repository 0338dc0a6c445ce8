"""Names to architectures, peaks and rooflines."""

from __future__ import annotations

import pytest

from turbo_optimize.core.errors import UsageError
from turbo_optimize.core.hardware import (
    ARCHS,
    PRODUCTS,
    floor_ms,
    hbm_gbps,
    peak_in,
    peak_tflops,
    resolve_gpu,
    resolve_product,
)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("MI300X", "gfx942"), ("mi325x", "gfx942"), ("MI350X", "gfx950"), ("MI355X", "gfx950"),
        ("H100", "sm_90"), ("h200", "sm_90"), ("NVIDIA H100 80GB HBM3", "sm_90"), ("AMD Instinct MI300X", "gfx942"),
        ("gfx942:sramecc+:xnack-", "gfx942"), ("sm90", "sm_90"), ("sm_90a", "sm_90"), ("cpu", "cpu"),
    ],
)  # fmt: skip
def test_names(name: str, arch: str) -> None:
    assert resolve_gpu(name) == arch


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"MI300X"):
        resolve_gpu("MI300")
    with pytest.raises(UsageError, match=r"gfx94|gfx950"):
        resolve_gpu("gfx940")
    with pytest.raises(UsageError, match=r"one of gfx942, gfx950, sm_90"):
        resolve_gpu("toaster!")


def test_product_only_where_named() -> None:
    product = resolve_product("NVIDIA H200")
    assert product is not None
    assert product.hbm_gbps == 4800
    assert resolve_product("sm_90") is None


def test_an_architecture_is_bounded_by_its_fastest_product() -> None:
    assert hbm_gbps("sm_90") == 4800
    assert hbm_gbps("H100") == 3350
    assert peak_tflops("gfx950", "bf16") == 2516.6
    assert peak_tflops("MI350X", "bf16") == 2307
    assert peak_in("GB/s", "MI300X", "bf16") == 5300
    assert peak_in("TFLOPS", "MI300X", "fp8") == 2614.9
    assert peak_tflops("gfx950", "fp4") == 10066.4
    assert peak_tflops("sm_90", "fp4") == peak_tflops("sm_90", "fp8")  # no units of its own
    with pytest.raises(UsageError, match="bf16, fp16, fp32, fp4, fp8"):
        peak_tflops("sm_90", "int8")


def test_every_product_has_an_architecture_and_the_four_peaks() -> None:
    for p in PRODUCTS.values():
        assert p.arch in ARCHS
        assert {"bf16", "fp16", "fp32", "fp8"} <= set(p.peak_tflops)
    assert {p.arch for p in PRODUCTS.values()} == set(ARCHS)


def test_floor_is_the_slower_of_compute_and_memory() -> None:
    assert floor_ms(989.4e12, 0, "H200", "bf16") == pytest.approx(1000)
    assert floor_ms(0, 4.8e12, "H200", "bf16") == pytest.approx(1000)
    assert floor_ms(989.4e12, 4.8e9, "H200", "bf16") == pytest.approx(1000)
    # fp32 from narrower products can beat the native rate, never one bf16 product
    assert floor_ms(1e12, 0, "H200", "fp32") == floor_ms(1e12, 0, "H200", "bf16")
    # what an H200 was seen to do (4096³, fp8, 1298 TFLOPS) lies above the floor
    assert floor_ms(2 * 4096**3, 0, "sm_90", "fp8") < 2 * 4096**3 / 1298e12 * 1e3
