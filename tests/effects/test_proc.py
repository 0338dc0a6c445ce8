"""Processes that can't be trusted: ended as a whole, in time, and never longer alive than their runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.effects.seen import CHILD, SPEAKER, ask, family, gone, running
from tests.toy import environment as checkout_environment
from turbo_optimize.core.errors import WorkerError
from turbo_optimize.effects.proc import Worker, environment, kill_group, run_command
from turbo_optimize.effects.watch import is_alive


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker([sys.executable, "-c", SPEAKER], tmp_path, tmp_path / "scratch", tmp_path / "worker-B.log") as w:
        yield w


def test_answers_come_back_in_order(worker: Worker) -> None:
    assert ask(worker, "reply(ok=True, a=1); reply(ok=True, a=2)")["a"] == 1
    assert ask(worker, "pass")["a"] == 2


def test_a_named_failure_keeps_its_kind_and_the_process(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="worker-B: no shared memory") as e:
        ask(worker, "reply(ok=False, kind='build', error='no shared memory')")
    assert e.value.kind == "build"
    assert ask(worker, "reply(ok=True)") == {"ok": True}


def test_a_hang_ends_the_whole_group(worker: Worker) -> None:
    ask(worker, CHILD + "reply(ok=True)")
    pids = family(worker)
    assert worker.processes() == 2
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker-B: no answer to .* within 0 s; killed") as e:
        ask(worker, "import time; time.sleep(600)", timeout_s=0.2)
    assert e.value.kind == "timeout"
    assert time.monotonic() - began < 3
    assert gone(*pids)


def test_a_worker_deaf_to_term_is_killed(worker: Worker) -> None:
    ask(worker, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); reply(ok=True)")
    worker.send({"cmd": "import time; time.sleep(600)"})
    kill_group(worker.process, grace_s=0.2)
    assert worker.process.returncode == -signal.SIGKILL


def test_a_stopped_worker_ends_too(worker: Worker) -> None:
    ask(worker, "reply(ok=True)")
    worker.pause()
    began = time.monotonic()
    worker.close()
    worker._reply = os.open(os.devnull, os.O_RDONLY)  # the fixture closes again
    assert worker.process.returncode is not None
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os, sys; print('last words', file=sys.stderr, flush=True); os._exit(3)", "with exit 3 .*: last words"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "by SIGSEGV"),
        ("import os; os._exit(0)", "with exit 0"),
    ],
)
def test_a_death_says_how_and_with_which_last_words(worker: Worker, code: str, how: str) -> None:
    with pytest.raises(WorkerError, match=f"worker-B ended {how}") as e:
        ask(worker, code)
    assert e.value.kind == "crash"


@pytest.mark.parametrize("text", ["not JSON", "[1]", '{"no": "ok"}', "\\x00\\xff"])
def test_an_answer_that_is_none_is_a_protocol_error(worker: Worker, text: str) -> None:
    with pytest.raises(WorkerError, match="was answered with") as e:
        ask(worker, f"out.buffer.write({text!r}.encode('latin-1') + b'\\n'); out.buffer.flush()")
    assert e.value.kind == "protocol"


def test_an_endless_answer_is_cut_off(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="an endless answer") as e:
        ask(worker, "while True: out.write('x' * 65536)")
    assert e.value.kind == "protocol"
    assert gone(worker.process.pid)


def test_children_of_a_clean_exit_are_ended(tmp_path: Path) -> None:
    with Worker([sys.executable, "-c", SPEAKER], tmp_path, tmp_path / "scratch", tmp_path / "w.log") as w:
        ask(w, CHILD + "reply(ok=True)")
        pids = family(w)
    assert not any(map(is_alive, pids))


RUNNER = """
import sys, time
from pathlib import Path
from turbo_optimize.effects.proc import Worker
from turbo_optimize.effects.watch import descendants
top = Path(sys.argv[1])
w = Worker([sys.executable, "-c", sys.argv[2]], top, top / "scratch", top / "w.log")
w.ask({"cmd": "reply(ok=True)"}, 20)
if sys.argv[3] == "paused":
    w.pause()
print(w.process.pid, *descendants(w.process.pid), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_worker_dies_with_its_runner(tmp_path: Path, state: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path), SPEAKER, state],
        stdout=subprocess.PIPE,
        env=checkout_environment(),
    ) as runner:
        assert runner.stdout
        pids = [int(x) for x in runner.stdout.readline().split()]
        assert len(pids) > 1 and all(map(is_alive, pids))
        runner.kill()
        runner.wait()
        assert gone(*pids)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    command = "sh -c 'sleep 600.25 & setsid sleep 600.25 & sleep 600.25'"
    done = run_command(command, tmp_path, tmp_path / "scratch", tmp_path / "log", 0.3)
    assert done.timed_out
    assert not running("600.25")


def test_a_commands_exit_code_output_and_leftovers(tmp_path: Path) -> None:
    command = "sh -c 'sleep 600.5 & echo out; echo err >&2; exit 7'"
    done = run_command(command, tmp_path, tmp_path / "s", tmp_path / "log", 20)
    assert (done.code, done.output, done.timed_out) == (7, "out\nerr\n", False)
    assert not running("600.5")


@pytest.mark.parametrize("command", ["/nowhere/at-all --x", "an 'open quote"])
def test_a_command_that_cant_start_is_named(tmp_path: Path, command: str) -> None:
    with pytest.raises(WorkerError, match="can't be started"):
        run_command(command, tmp_path, tmp_path / "s", tmp_path / "log", 5)


def test_the_environment_is_allow_listed_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    found = environment(tmp_path, {"EXTRA": "1"})
    assert not {"SOME_TOKEN", "PYTHONPATH"} & found.keys()
    assert (found["HIP_VISIBLE_DEVICES"], found["EXTRA"]) == ("1", "1")
    for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        assert Path(found[name]).is_relative_to(tmp_path)
        assert Path(found[name]).is_dir()
    assert json.dumps(found)


# -- one CPU ---------------------------------------------------------------------------------------------------------
def test_all_threads_are_pinned_and_one_that_moves_is_seen(worker: Worker) -> None:
    everywhere = os.sched_getaffinity(0)
    one = {max(everywhere)}
    ask(
        worker,
        CHILD + "import threading; e = threading.Event(); threading.Thread(target=e.wait).start(); reply(ok=True)",
    )
    worker.pin(one)
    assert worker.pinned(one)
    ask(worker, "threading.Thread(target=e.wait).start(); reply(ok=True)")  # one that begins later
    assert worker.pinned(one)
    told = ask(worker, "reply(ok=True, cpus=sorted(os.sched_getaffinity(0)))")
    assert set(told["cpus"]) == one
    ask(worker, f"os.sched_setaffinity(p.pid, {everywhere}); reply(ok=True)")  # its child alone
    assert worker.pinned(one) == (everywhere == one)  # on a machine of one CPU it can't go anywhere
    worker.pin(everywhere)
    assert worker.pinned(everywhere)
    ask(worker, "p.kill(); p.wait(); e.set(); reply(ok=True)")
