"""Stands where `pynvml` does: answers what `told` says; a text is the driver's refusal, a function is called.

As a file on a subprocess's path it takes more of `told` from the variable FAKE_NVML (JSON).
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, nvmlMemory_v2 = 1, 0, 0x2000028
IDLE: dict[str, Any] = {
    "init": 0, "handle": "h0", "clock": 1980, "temp": 38, "power": 79001, "event_reasons": 0, "throttle_reasons": 0,
    "busy": 0, "memory": 0, "pids": [],
}  # fmt: skip
told: dict[str, Any] = dict(IDLE) | json.loads(os.environ.get("FAKE_NVML", "{}"))


class NVMLError(Exception):
    pass


def _answer(key: str) -> Any:
    value = told[key]() if callable(told[key]) else told[key]
    if isinstance(value, str) and key != "handle":
        raise NVMLError(value)
    return value


def nvmlInit() -> None:
    _answer("init")


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    told["asked"] = index
    return _answer("handle")


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    told["asked"] = uuid
    return _answer("handle")


def nvmlDeviceGetClockInfo(handle: Any, kind: int) -> int:
    assert (handle, kind) == ("h0", NVML_CLOCK_SM)
    return _answer("clock")


def nvmlDeviceGetTemperature(handle: Any, sensor: int) -> int:
    assert sensor == NVML_TEMPERATURE_GPU
    return _answer("temp")


def nvmlDeviceGetPowerUsage(handle: Any) -> int:
    return _answer("power")


def nvmlDeviceGetCurrentClocksEventReasons(handle: Any) -> int:
    return _answer("event_reasons")


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: Any) -> int:
    return _answer("throttle_reasons")


def nvmlDeviceGetUtilizationRates(handle: Any) -> Any:
    return SimpleNamespace(gpu=_answer("busy"))


def nvmlDeviceGetMemoryInfo(handle: Any, version: int) -> Any:
    assert version == nvmlMemory_v2
    return SimpleNamespace(used=_answer("memory"))


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> Any:
    return [SimpleNamespace(pid=p) for p in _answer("pids")]
