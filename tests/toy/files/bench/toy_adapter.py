"""Inputs, calls, a plain reference and the judge of the toy. Vectors are lists of floats."""

import contextlib
import math
import random


def make_inputs(dims, dtype, variant, seed, device):
    rng = random.Random(seed)
    return {name: [rng.uniform(-1, 1) for _ in range(dims["M"])] for name in ("a", "b", "grad_out")}


def rewrite(inputs, seed):
    for name, values in make_inputs({"M": len(inputs["a"])}, "", "", seed, "").items():
        inputs[name][:] = values


def forward(inputs):
    from toy import kernel

    return {"out": kernel.forward(inputs["a"], inputs["b"])}


def step(inputs):
    from toy import kernel

    out = forward(inputs)
    da, db = kernel.backward(inputs["a"], inputs["b"], inputs["grad_out"])
    return out | {"da": da, "db": db}


def reference(inputs):
    a, b, g = inputs["a"], inputs["b"], inputs["grad_out"]
    pairs = {"out": (a, b), "da": (g, b), "db": (g, a)}
    return {name: [x * y for x, y in zip(*pair, strict=True)] for name, pair in pairs.items()}


def snr(got, want):
    noise = sum((x - y) ** 2 for x, y in zip(got, want, strict=True))
    return 10 * math.log10(sum(y * y for y in want) / noise) if noise else math.inf


def check(outputs, expected, dtype, variant):
    found = {f"{name}_snr": snr(outputs[name], want) for name, want in expected.items()}
    bad = [name for name, value in found.items() if value < 60]
    return not bad, found, f"{bad[0]} is {found[bad[0]]:.1f} dB" if bad else ""


@contextlib.contextmanager
def try_config(section, config):
    from toy import kernel

    before, kernel.config = kernel.config, config
    try:
        yield
    finally:
        kernel.config = before
