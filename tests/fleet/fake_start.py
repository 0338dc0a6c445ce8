"""Stands where `turbo-opt start` does: plays what the file named by --policy says (one JSON object), and notes its run.

{"score": 100.0} ends well with that score; "exit", "final_ok", "hang", "say" and "hold_s" change it. Every run appends
a line to <play>.runs: when it began and ended, and the devices that it saw.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

play_file = Path(sys.argv[sys.argv.index("--policy") + 1])
play = json.loads(play_file.read_text())
began = time.monotonic()
print("BASELINE", file=sys.stderr)
time.sleep(play.get("hold_s", 0.0))
if play.get("hang"):
    print(f"never ends {os.getpid()}", file=sys.stderr, flush=True)
    time.sleep(600)
with open(play_file.with_suffix(".runs"), "a", encoding="utf-8") as f:
    seen = {k: os.environ.get(k) for k in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
    f.write(json.dumps({"began": began, "ended": time.monotonic(), "argv": sys.argv[1:], **seen}) + "\n")
if play.get("exit"):
    print(f"turbo-opt: {play['say']}", file=sys.stderr)
    sys.exit(play["exit"])
print("a line before")
if "say" in play:
    print(play["say"])
else:
    facts = {
        "campaign": "gemm_20260601", "dir": "/campaigns/gemm_20260601", "code": "T3", "rounds": 6, "accepted": 2,
        "score": play["score"], "unit": "TFLOPS", "gain_pct": 3.5, "final_ok": play.get("final_ok", True),
        "reported": True,
    }  # fmt: skip
    print(json.dumps(facts))
