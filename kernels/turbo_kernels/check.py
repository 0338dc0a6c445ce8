"""Is an output right? Signal-to-noise ratio and closeness against a reference in higher precision, and their gates.

SNR in dB is 10·log10(Σ ref² / Σ (out − ref)²), `inf` for an exact match. Global figures hide a small wrong region, so
the worst tile of 8 rows is judged beside it, and the output's scale (the least-squares factor between output and
reference: a uniform error that noise would drown).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

TILE_ROWS = 8
TILE_ELEMENTS = 64  # narrower outputs take more rows a tile: an SNR over fewer elements says little


@dataclass(frozen=True)
class Gate:
    """What an output must reach.

    `tolerance` bounds every element: |out − ref| ≤ tolerance·(rms(ref) + |ref|), which is rtol = atol = tolerance with
    atol in units of the reference's rms, since a product's magnitude grows with √K. `scale` bounds |s − gain| for the
    least-squares scale s of the output (plus 0.5/√elements, its sampling error with a margin); `gain` is an honest
    output's s: 1, less in a format so coarse that rounding shortens more than it lengthens. `gradients` is the
    gate of every output but `out`, where it is another.
    """

    snr_db: float | None = None
    tolerance: float | None = None
    tile_snr_db: float | None = 20.0
    scale: float | None = 0.02
    gain: float = 1.0
    gradients: Gate | None = None

    def of(self, output: str) -> Gate:
        return self if output == "out" or self.gradients is None else self.gradients


_E5M2 = Gate(snr_db=20.0, tile_snr_db=15.0)
GATES: dict[str, Gate] = {
    "bf16": Gate(tolerance=1e-2),
    "fp16": Gate(tolerance=1e-2),
    "fp32": Gate(tolerance=1e-4),
    "fp8_e4m3": Gate(snr_db=25.0),
    "fp8_e5m2": _E5M2,
    "fp8_hybrid": Gate(snr_db=25.0, gradients=_E5M2),
    # mxfp4 products of normal numbers: 16.0 dB, the worst tile 13.4, a gain of 0.978. A tile with a zeroed row: 8.3.
    "fp4": Gate(snr_db=10.0, tile_snr_db=10.0, gain=0.978),
}


def snr_db(out: torch.Tensor, ref: torch.Tensor) -> float:
    """dB over the whole tensor; nan where the output isn't finite."""
    return _db(ref.double().square().sum().item(), (out.double() - ref.double()).square().sum().item())


def tile_snr_db(out: torch.Tensor, ref: torch.Tensor) -> tuple[float, int]:
    """(the worst tile's dB, its first row); a tile is TILE_ROWS rows, more where they hold under TILE_ELEMENTS."""
    ref = ref.double().reshape(ref.shape[0], -1) if ref.ndim > 1 else ref.double().reshape(-1, 1)
    rows = max(TILE_ROWS, -(-TILE_ELEMENTS // ref.shape[1]))
    signal, noise = (_by_tile(x, rows) for x in (ref, out.double().reshape(ref.shape) - ref))
    values = [_db(s, n) for s, n in zip(signal, noise, strict=True)]
    worst = min(range(len(values)), key=lambda i: -math.inf if math.isnan(values[i]) else values[i])
    return values[worst], worst * rows


def _by_tile(x: torch.Tensor, rows: int) -> list[float]:
    """Σ x² over every `rows` rows; the last tile may have fewer."""
    sums = x.square().sum(1)
    return torch.nn.functional.pad(sums, (0, -sums.numel() % rows)).view(-1, rows).sum(1).tolist()


def _db(signal: float, noise: float) -> float:
    if math.isnan(noise) or math.isinf(noise):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _finite(out: torch.Tensor, ref: torch.Tensor, gate: Gate) -> str | None:
    bad = (~torch.isfinite(out)).sum().item()
    return f"{bad} of {out.numel()} elements aren't finite (unwritten or overflowed)" if bad else None


def _snr(out: torch.Tensor, ref: torch.Tensor, gate: Gate) -> str | None:
    if gate.snr_db is None:
        return None
    value = snr_db(out, ref)
    return None if value >= gate.snr_db else f"SNR {value:.1f} dB is under {gate.snr_db:g}"


def _tiles(out: torch.Tensor, ref: torch.Tensor, gate: Gate) -> str | None:
    if gate.tile_snr_db is None:
        return None
    value, row = tile_snr_db(out, ref)
    return None if value >= gate.tile_snr_db else f"rows from {row}: SNR {value:.1f} dB is under {gate.tile_snr_db:g}"


def _elements(out: torch.Tensor, ref: torch.Tensor, gate: Gate) -> str | None:
    if gate.tolerance is None:
        return None
    out, ref = out.double(), ref.double()
    allowed = gate.tolerance * (ref.square().mean().sqrt() + ref.abs())
    bad = ((out - ref).abs() > allowed).sum().item()
    return f"{bad} of {out.numel()} elements are off by more than {gate.tolerance:g}" if bad else None


def _scale(out: torch.Tensor, ref: torch.Tensor, gate: Gate) -> str | None:
    power = ref.double().square().sum().item()
    if gate.scale is None or not power:
        return None
    scale = (out.double() * ref.double()).sum().item() / power
    bound = gate.scale + 0.5 / math.sqrt(ref.numel())
    return None if abs(scale - gate.gain) <= bound else f"its scale is {scale:.4f}, not {gate.gain:g} ± {bound:.3f}"


# In this order: the first that fails is the one to read.
JUDGES: tuple[Callable[[torch.Tensor, torch.Tensor, Gate], str | None], ...] = (
    _finite,
    _snr,
    _tiles,
    _elements,
    _scale,
)


def wrong(out: torch.Tensor, ref: torch.Tensor, gate: Gate) -> str | None:
    """What is wrong with one output, or None. `ref` is the higher-precision truth."""
    if out.shape != ref.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(ref.shape)}"
    if not out.numel():
        return None
    return next((why for why in (judge(out, ref, gate) for judge in JUDGES) if why), None)


def judge(outputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], gate: Gate,
          dtype: torch.dtype) -> tuple[bool, dict[str, float], str]:  # fmt: skip
    """(all right, {"<name>_snr": dB}, what is wrong). The outputs must be exactly the expected ones, all of `dtype`."""
    problems = [f"{name}: missing" for name in expected if name not in outputs]
    problems += [f"{name}: unexpected" for name in outputs if name not in expected]
    metrics: dict[str, float] = {}
    for name, ref in expected.items():
        if name not in outputs:
            continue
        out = outputs[name]
        metrics[f"{name}_snr"] = snr_db(out, ref) if out.shape == ref.shape else math.nan
        why = f"dtype {out.dtype}, expected {dtype}" if out.dtype != dtype else wrong(out, ref, gate.of(name))
        if why:
            problems.append(f"{name}: {why}")
    return not problems, metrics, "; ".join(problems)
