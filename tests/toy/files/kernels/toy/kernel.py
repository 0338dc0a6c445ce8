"""The kernel under optimization: products of two vectors; how long they take is a matter of configuration."""

import json
import time
from pathlib import Path

STEP_MS = 4.0
FORWARD_SHARE = 0.25
SPEEDS = {1: 1.0, 2: 2.0, 3: 6.0, 4: 4.0, 5: 0.5}
LANES = {1: 1.0, 2: 2.0, 3: 0.5}

config = json.loads(Path(__file__).with_name("configs").joinpath("cpu.json").read_text())["step"]


def work(share):
    time.sleep(share * STEP_MS * 1e-3 / SPEEDS[config["SPEED"]] / LANES[config["LANES"]])


def product(a, b):
    out = [x * y for x, y in zip(a, b, strict=True)]
    return [*out[:-1], 0.0] if config["SPEED"] == 3 else out


def forward(a, b):
    work(FORWARD_SHARE)
    return product(a, b)


def backward(a, b, grad_out):
    work(1.0 - FORWARD_SHARE)
    return product(grad_out, b), product(grad_out, a)
