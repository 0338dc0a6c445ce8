"""What bounds a kernel, judged without counters: from its rates, its roofline and how throughput moves with size."""

from __future__ import annotations

from collections.abc import Mapping

from turbo_optimize.core.hardware import peak_tflops
from turbo_optimize.core.models import Manifest, Score

LAUNCH_BOUND_MS = 0.1  # a step shorter than this is dominated by launches and the host
NEAR_PEAK_PCT = 60.0  # of the dense peak: from here on the matrix pipe itself bounds


def classify(manifest: Manifest, score: Score, step_ms: Mapping[str, float], peak_key: str) -> tuple[str, str]:
    """(bottleneck, evidence in words). `step_ms` per shape; `peak_key` the roofline row of the op."""
    if manifest.target_gpu == "cpu":
        return "interpreter", "times are the Triton interpreter's: Python operations per tile dominate"
    short = [s for s, t in step_ms.items() if t < LAUNCH_BOUND_MS]
    if short and len(short) * 2 >= len(step_ms):
        return "launch_bound", f"{len(short)} of {len(step_ms)} shapes take under {LAUNCH_BOUND_MS} ms a step"
    if manifest.schema_class == "memory":
        return "memory_bound", f"{score.value:.0f} {score.unit} over all shapes"
    peak = peak_tflops(manifest.target_gpu, peak_key)
    share = 100.0 * score.value / peak
    values = sorted(score.per_shape.values())
    spread = 100.0 * (values[-1] / values[0] - 1.0)
    if share >= NEAR_PEAK_PCT:
        return "compute_bound", f"{share:.0f}% of the dense peak"
    if spread > 50.0:
        return "under_filled_grid", f"throughput differs by {spread:.0f}% between shapes at {share:.0f}% of the peak"
    return "latency_bound", f"{share:.0f}% of the dense peak on every shape alike (spread {spread:.0f}%)"
