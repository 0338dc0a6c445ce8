"""What pruning and rooflines need to know of each GPU: limits per architecture, peaks per product.

Peaks are the vendors' dense figures. Source keys in comments are those of the project's hardware tables: rocm_gpu_specs
(ROCm, gpu-arch-specs), llvm_base_info (LLVM AMDGPUBaseInfo), cuda_occupancy_h and cuda_h (CUDA 13 headers),
kernelbench_specs and hyperloom_specs (published GPU spec tables), primus_hw (Primus-Turbo hardware pages),
klockwood_h100 (NVIDIA's H100 white paper, tabulated), h200_summary.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from turbo_optimize.core.errors import UsageError


class Arch(NamedTuple):
    """Limits of one block (workgroup) on an architecture. 0: no limit (the CPU's interpreter has none)."""

    name: str
    vendor: str
    wave_size: int  # lanes
    shared_bytes: int  # shared memory / LDS of one block
    accumulator_registers: int  # 32-bit registers a thread can spend on a tile's accumulator
    max_warps: int  # of one block
    copies_in_registers: bool  # the newest pipeline stage waits in registers, so shared memory holds one stage less


class Product(NamedTuple):
    name: str
    arch: str
    units: int  # CUs or SMs
    hbm_gbps: float
    peak_tflops: dict[str, float]  # operand type -> dense TFLOPS


ARCHS: dict[str, Arch] = {
    a.name: a
    for a in (
        # wave size rocm_gpu_specs; LDS, 256 accumulator VGPRs and 1024 threads a workgroup llvm_base_info
        Arch("gfx942", "amd", 64, 65536, 256, 16, True),
        Arch("gfx950", "amd", 64, 163840, 256, 16, True),
        # warp size cuda_occupancy_h; 227 KiB kernelbench_specs; 1024 threads cuda_h. Of 255 registers a thread
        # (kernelbench_specs) 32 are kept for addresses and operand fragments.
        Arch("sm_90", "nvidia", 32, 232448, 255 - 32, 32, False),
        Arch("cpu", "cpu", 1, 0, 0, 0, False),
    )
}


def _peaks(bf16: float, fp8: float, fp32: float, **more: float) -> dict[str, float]:
    # FP8 holds every FP4 value: units without FP4 multiply it at that rate at best.
    return {"bf16": bf16, "fp16": bf16, "fp8": fp8, "fp32": fp32, "fp4": fp8, **more}


PRODUCTS: dict[str, Product] = {
    p.name: p
    for p in (
        # units rocm_gpu_specs; bandwidth and peaks kernelbench_specs, hyperloom_specs, primus_hw (fp32: fp32_matrix)
        Product("MI300X", "gfx942", 304, 5300, _peaks(1307.4, 2614.9, 163.4)),
        Product("MI325X", "gfx942", 304, 6000, _peaks(1307.4, 2614.9, 163.4)),
        # MI350X peaks: CU × FLOP/clk × clock (the data sheet rounds them)
        Product("MI350X", "gfx950", 256, 8000, _peaks(2307, 4614, 144.2, fp4=9227)),
        Product("MI355X", "gfx950", 256, 8000, _peaks(2516.6, 5033.2, 157.3, fp4=10066.4)),
        # units and peaks klockwood_h100, bandwidth kernelbench_specs (fp32: fp32_vector)
        Product("H100", "sm_90", 132, 3350, _peaks(989.4, 1978.9, 66.9)),
        Product("H200", "sm_90", 132, 4800, _peaks(989.4, 1978.9, 66.9)),  # h200_summary
        # A generous bound, not a machine: two sockets of 128 cores at 4 GHz with matrix extensions (2048 bf16 FLOP a
        # cycle and core) stay under it, and so does their L2 bandwidth. A faster time means skipped work.
        Product("CPU", "cpu", 1, 100_000, _peaks(2500, 5000, 500)),
    )
}

# A tile library may build one fp32 product from several narrower ones (TF32, bf16×3), which beats the native fp32 rate;
# never one bf16 product. So the least time of fp32 work is counted at the bf16 peak.
_FLOOR_KEY = {"fp32": "bf16"}


def resolve_gpu(name: str) -> str:
    """The architecture of a GPU's name: `H200`, `NVIDIA H100 80GB HBM3`, `AMD Instinct MI300X`, `gfx942:xnack-`.

    UsageError with the nearest known names where there is none.
    """
    return _find(name)[0].name


def resolve_product(name: str) -> Product | None:
    """The product that a device name names; None where it only names an architecture."""
    return _find(name)[1]


def _find(name: str) -> tuple[Arch, Product | None]:
    words = re.split(r"[^a-z0-9_]+", name.lower())
    products = {p.name.lower(): p for p in PRODUCTS.values()}
    archs = ARCHS | {"sm90": ARCHS["sm_90"], "sm90a": ARCHS["sm_90"], "sm_90a": ARCHS["sm_90"]}
    for word in words:
        if word in products:
            return ARCHS[products[word].arch], products[word]
        if word in archs:
            return archs[word], None
    known = {k.lower(): k for k in (*ARCHS, *PRODUCTS)}
    near = [known[k] for word in words for k in difflib.get_close_matches(word, list(known), n=3)]
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"one of {', '.join(known.values())}"
    raise UsageError(f"no GPU called {name!r}", hint)


def _candidates(gpu: str) -> list[Product]:
    """The product itself, or every product of an architecture."""
    arch, product = _find(gpu)
    return [product] if product else [p for p in PRODUCTS.values() if p.arch == arch.name]


def peak_tflops(gpu: str, peak_key: str) -> float:
    """Dense peak of a product, or of an architecture's fastest product. `peak_key`: bf16, fp16, fp8, fp32, fp4."""
    peaks = [p.peak_tflops[peak_key] for p in _candidates(gpu) if peak_key in p.peak_tflops]
    if not peaks:
        known = sorted({k for p in _candidates(gpu) for k in p.peak_tflops})
        raise UsageError(f"{gpu} has no {peak_key!r} peak", f"one of {', '.join(known)}")
    return max(peaks)


def hbm_gbps(gpu: str) -> float:
    """Memory bandwidth of a product, or of an architecture's fastest product."""
    return max(p.hbm_gbps for p in _candidates(gpu))


def floor_ms(flops: float, nbytes: float, gpu: str, peak_key: str) -> float:
    """The roofline's least time: no kernel that does `flops` and moves `nbytes` from and to memory is faster.

    An architecture without a product is bounded by its fastest one. Count `nbytes` only as far as they can't come from
    a cache (a ring of inputs larger than the last level); 0 leaves the compute bound alone.
    """
    compute_ms = flops / (peak_tflops(gpu, _FLOOR_KEY.get(peak_key, peak_key)) * 1e12) * 1e3
    memory_ms = nbytes / (hbm_gbps(gpu) * 1e9) * 1e3
    return max(compute_ms, memory_ms)


def peak_in(unit: str, gpu: str, peak_key: str) -> float:
    """The peak that a score in `unit` is a share of: dense TFLOPS, or GB/s of memory bandwidth."""
    return hbm_gbps(gpu) if unit == "GB/s" else peak_tflops(gpu, peak_key)
