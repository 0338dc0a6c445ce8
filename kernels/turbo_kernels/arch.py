"""Which architecture the kernels run on here, and what follows from it."""

from __future__ import annotations

import functools
import os

import torch

ARCHITECTURES = ("gfx942", "gfx950", "sm_90", "cpu")

# Triton decides this when a kernel is decorated, so it is read once, at import, by Triton's own rule.
INTERPRET = os.environ.get("TRITON_INTERPRET", "").strip().lower() in {"1", "true", "yes", "on", "y"}


@functools.cache
def detect() -> str:
    """One of ARCHITECTURES. `cpu` where there is no GPU, and wherever Triton interprets."""
    if INTERPRET or not torch.cuda.is_available():
        return "cpu"
    props = torch.cuda.get_device_properties(0)
    name = props.gcnArchName.split(":")[0] if torch.version.hip else f"sm_{props.major}{props.minor}"
    if name not in ARCHITECTURES:
        raise RuntimeError(f"unsupported GPU {name}: turbo_kernels knows {', '.join(ARCHITECTURES)}")
    return name


def unrunnable(tensor: torch.Tensor) -> str | None:
    """Why Triton can't run on this tensor's device, or None."""
    if tensor.is_cpu and not INTERPRET:
        return "tensor on the CPU: set TRITON_INTERPRET=1 before Python starts to interpret the kernels there"
    return None


def require_runnable(tensor: torch.Tensor) -> None:
    """RuntimeError where Triton can't run on this tensor's device."""
    if why := unrunnable(tensor):
        raise RuntimeError(why)


@functools.cache
def fp8_dtype(encoding: str = "e4m3") -> torch.dtype:
    """The E4M3 or E5M2 of the matrix units: FNUZ (max 240 and 57344) on gfx942, OCP (max 448 and 57344) elsewhere."""
    fnuz = detect() == "gfx942"
    if encoding == "e5m2":
        return torch.float8_e5m2fnuz if fnuz else torch.float8_e5m2
    return torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn


@functools.cache
def fp8_max(encoding: str = "e4m3") -> float:
    return torch.finfo(fp8_dtype(encoding)).max


@functools.cache
def processors() -> int:
    """Compute units (AMD) or SMs (NVIDIA) of the current GPU; 2 where Triton interprets."""
    return 2 if detect() == "cpu" else torch.cuda.get_device_properties(0).multi_processor_count
