"""The project's full benchmark: --csv FILE --shapes 1x8x8x8,…"""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]
import toy_adapter as adapter  # noqa: E402

HEADER = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,Backward TFLOPS_stddev,"
    "Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)


def milliseconds(call, inputs):
    start = time.perf_counter()
    call(inputs)
    return 1e3 * (time.perf_counter() - start)


def row(text):
    b, m, n, k = ([1] + [int(v) for v in text.split("x")])[-4:]
    inputs = adapter.make_inputs({"M": m}, "", "", 7, "")
    passed, snr, _ = adapter.check(adapter.step(inputs), adapter.reference(inputs), "", "")
    forward_ms = milliseconds(adapter.forward, inputs)
    backward_ms = max(milliseconds(adapter.step, inputs) - forward_ms, 1e-3)
    flop = 2.0 * b * m * n * k
    rates = [flop / forward_ms / 1e9, 0.0, 2 * flop / backward_ms / 1e9, 0.0]
    cells = [f"{m}x{n}x{k}", b, m, n, k, "PASS" if passed else "FAIL", *rates, forward_ms, backward_ms, *snr.values()]
    return ",".join(str(c) for c in cells)


args = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
rows = [row(text) for text in args["--shapes"].split(",")]
Path(args["--csv"]).write_text("\n".join([HEADER, *rows]) + "\n")
