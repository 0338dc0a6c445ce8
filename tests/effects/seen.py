"""Real workers that run what they are told, and what is seen of processes from outside of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from turbo_optimize.effects.proc import Worker
from turbo_optimize.effects.watch import descendants, is_alive

# Answers each request by the code in it; `reply` writes a line.
SPEAKER = """
import json, os, sys
out = os.fdopen(int(sys.argv[sys.argv.index("--reply-fd") + 1]), "w")
def reply(**what):
    out.write(json.dumps(what) + "\\n"); out.flush()
for line in sys.stdin:
    exec(json.loads(line)["cmd"])
"""
CHILD = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "


def ask(worker: Worker, code: str, timeout_s: float = 20.0) -> dict:
    return worker.ask({"cmd": code}, timeout_s)


def family(worker: Worker) -> list[int]:
    """The launcher and all below it, as the runner numbers them: in a PID namespace a worker has numbers of its own."""
    return [worker.process.pid, *descendants(worker.process.pid)]


def gone(*pids: int, within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.01)
    return False


def running(marker: str) -> list[int]:
    """Processes that have the word `marker` on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words and is_alive(int(pid)):
            found.append(int(pid))
    return found
