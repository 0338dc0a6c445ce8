"""What a process that is not trusted can't do, tried for real: writing, reaching, outliving, eating up."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.effects.seen import SPEAKER, ask, family, gone, running
from tests.toy import environment as checkout_environment
from turbo_optimize.core.errors import TurboOptError, WorkerError
from turbo_optimize.effects import isolation
from turbo_optimize.effects.proc import Worker, run_command
from turbo_optimize.effects.watch import Limits, is_alive, memory_bytes, state

LEVEL = isolation.level()
MB = 1 << 20
# A process that left its parent, its session and its group, and counts into the file `beat`; `marker` is to find it by.
DAEMON = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        beat = "import time\\nfor i in range(10**9): print(i, file=open('beat', 'w')); time.sleep(0.005)"
        os.execv(sys.executable, [sys.executable, "-S", "-c", beat, {marker!r}])
    os._exit(0)
os.wait()
import time
while not os.path.exists("beat"): time.sleep(0.005)
reply(ok=True)
"""


def needs(part: str) -> pytest.MarkDecorator:
    have = {
        "landlock": LEVEL.landlock_abi > 0 or LEVEL.bwrap,
        "mount": "mount" in LEVEL.namespaces or LEVEL.bwrap,
        "services": "mount" in LEVEL.namespaces,
        "pid": "pid" in LEVEL.namespaces or LEVEL.bwrap,
        "files": LEVEL.landlock_abi > 0 or "mount" in LEVEL.namespaces or LEVEL.bwrap,
        "net": "net" in LEVEL.namespaces or LEVEL.landlock_abi >= 4 or LEVEL.bwrap,
        "signals": "pid" in LEVEL.namespaces or LEVEL.landlock_abi >= 6 or LEVEL.bwrap,
    }
    return pytest.mark.skipif(not have[part], reason=f"isolation here is {LEVEL.name}: {LEVEL.missing}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder that workers run in and may write to."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def start(tmp_path: Path, home: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def begin(**more) -> Worker:
        log = tmp_path / "logs" / f"worker-{len(started)}.log"
        started.append(Worker([sys.executable, "-I", "-S", "-c", SPEAKER], home, home, log, **more))
        return started[-1]

    yield begin
    for worker in started:
        worker.close()


@pytest.fixture
def worker(start: Callable[..., Worker]) -> Worker:
    return start()


def refused(worker: Worker, code: str) -> str:
    """What the code is refused with in the worker; it fails when it isn't."""
    told = f"try:\n    {code}\n    reply(ok=True, got='')\nexcept Exception as e:\n    reply(ok=True, got=repr(e))"
    got = ask(worker, told)["got"]
    assert got, f"allowed: {code}"
    return got


# -- files -------------------------------------------------------------------------------------------------------------
def test_its_own_folders_work_as_everywhere(worker: Worker, home: Path) -> None:
    ask(
        worker, "import os; os.makedirs('a/b'); open('a/b/x', 'w').write('1'); os.replace('a/b/x', 'y'); reply(ok=True)"
    )
    assert (home / "y").read_text() == "1"
    ask(worker, "open(os.environ['TMPDIR'] + '/t', 'w').write('1'); open('/dev/null', 'w').write('1'); reply(ok=True)")
    ask(worker, "os.symlink('y', 'link'); os.unlink('y'); reply(ok=True)")
    assert sorted(p.name for p in home.iterdir() if p.name in ("y", "link")) == ["link"]


@needs("files")
def test_the_harness_can_be_read_and_nothing_more(worker: Worker, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    harness = tree / "quick_test_bench.py"
    harness.write_text("T = 25\n")
    assert ask(worker, f"reply(ok=True, text=open({str(harness)!r}).read())")["text"] == "T = 25\n"
    for code in (
        f"open({str(harness)!r}, 'w')",
        f"open({str(harness)!r}, 'a')",
        f"os.truncate({str(harness)!r}, 0)",
        f"os.unlink({str(harness)!r})",
        f"os.rename({str(harness)!r}, {str(tree / 'other')!r})",
        f"os.rename({str(harness)!r}, 'mine')",
        f"os.link({str(harness)!r}, 'mine')",
        f"open('mine', 'w'); os.replace('mine', {str(harness)!r})",
        f"os.mkdir({str(tree / 'new')!r})",
        f"os.symlink('/', {str(tree / 'new')!r})",
        "open('/dev/shm/' + '../../tmp/new', 'w')",
        f"open('/proc/self/cwd/../../../' + {str(harness)!r}, 'w')",
    ):
        refused(worker, code)
    assert harness.read_text() == "T = 25\n"
    assert [p.name for p in tree.iterdir()] == ["quick_test_bench.py"]


@needs("mount")
def test_modes_and_times_of_files_outside_stay(worker: Worker, tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    harness.touch()
    before = harness.stat()
    refused(worker, f"os.chmod({str(harness)!r}, 0)")
    refused(worker, f"os.utime({str(harness)!r}, (1, 1))")
    refused(worker, f"os.setxattr({str(harness)!r}, 'user.x', b'1')")
    assert harness.stat() == before


def test_more_folders_and_files_by_name(start: Callable[..., Worker], tmp_path: Path) -> None:
    tree, out, other = tmp_path / "tree", tmp_path / "out.csv", tmp_path / "other.csv"
    tree.mkdir()
    out.touch()
    other.touch()
    worker = start(writable=(tree, out))
    ask(worker, f"open({str(tree / 'built.so')!r}, 'w').write('1'); open({str(out)!r}, 'w').write('2'); reply(ok=True)")
    assert ((tree / "built.so").read_text(), out.read_text()) == ("1", "2")
    if LEVEL.name != "none":
        refused(worker, f"open({str(other)!r}, 'w')")


@needs("files")
def test_a_commands_folder_is_read_only_unless_named(tmp_path: Path, home: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    command = "sh -c 'echo built > here'"
    assert run_command(command, tree, home, tmp_path / "log", 20).code != 0
    assert not (tree / "here").exists()
    assert run_command(command, tree, home, tmp_path / "log", 20, writable=(tree,)).code == 0
    assert (tree / "here").read_text() == "built\n"


def test_a_name_without_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBO_OPT_ISOLATION", "some")
    with pytest.raises(TurboOptError, match="one of full, no-mounts, no-pidns"):
        isolation.level()


# -- reaching others ---------------------------------------------------------------------------------------------------
@needs("net")
def test_no_network_not_even_this_machines(worker: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address, 1).close()
        refused(worker, f"import socket; socket.create_connection({address!r}, 1)")


@needs("services")
def test_no_local_service(start: Callable[..., Worker]) -> None:
    """One that listens on a path would run whatever it is asked to outside of the sandbox."""
    path = f"/tmp/turbo-opt-test-{os.getpid()}"  # tmp_path is too long for a socket
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        try:
            server.listen()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
            refused(start(), f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})")
        finally:
            os.unlink(path)


@needs("signals")
def test_no_signal_to_the_runner(worker: Worker) -> None:
    refused(worker, f"os.kill({os.getpid()}, 0)")
    refused(worker, "os.kill(os.getppid(), 9); os.waitid(os.P_PID, os.getppid(), os.WEXITED)")
    assert ask(worker, "reply(ok=True)")


@needs("files")
def test_the_runners_memory_and_state_are_closed(worker: Worker) -> None:
    me = os.getpid()
    refused(worker, f"open('/proc/{me}/mem', 'rb')")
    refused(worker, f"open('/proc/{me}/environ', 'rb').read()")
    refused(worker, f"os.readlink('/proc/{me}/fd/0')")
    code = f"import ctypes; l = ctypes.CDLL(None); assert l.ptrace(16, {me}, 0, 0) == 0"
    assert "AssertionError" in refused(worker, code)


def test_environment_descriptors_and_folder_pass_through(worker: Worker, home: Path) -> None:
    got = ask(
        worker, "reply(ok=True, cwd=os.getcwd(), home=os.environ['HOME'], fds=sorted(os.listdir('/proc/self/fd')))"
    )
    assert (got["cwd"], got["home"]) == (str(home), str(home / "home"))
    assert len(got["fds"]) == 5, "0 to 2, the reply, and the listing's own"


# -- outliving ---------------------------------------------------------------------------------------------------------
def daemon(worker: Worker, marker: str) -> None:
    ask(worker, DAEMON.format(marker=marker))
    assert running(marker)


def test_a_daemon_ends_with_its_worker(start: Callable[..., Worker]) -> None:
    marker = f"daemon-{os.getpid()}-close"
    worker = start()
    daemon(worker, marker)
    worker.close()
    worker._reply = os.open(os.devnull, os.O_RDONLY)  # the fixture closes again
    assert not running(marker)


def test_a_daemon_of_a_worker_that_exits_ends(worker: Worker) -> None:
    marker = f"daemon-{os.getpid()}-exit"
    daemon(worker, marker)
    with pytest.raises(WorkerError, match="exit 3"):
        ask(worker, "os._exit(3)")
    assert not running(marker)


RUNNER = """
import sys, time
from pathlib import Path
from turbo_optimize.effects.proc import Worker
top = Path(sys.argv[1])
w = Worker([sys.executable, "-I", "-S", "-c", sys.argv[2]], top, top, top / "w.log")
w.ask({"cmd": sys.argv[3]}, 20)
if sys.argv[4] == "paused":
    w.pause()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_daemon_ends_with_a_killed_runner(home: Path, state: str) -> None:
    marker = f"daemon-{os.getpid()}-{state}"
    argv = [sys.executable, "-c", RUNNER, str(home), SPEAKER, DAEMON.format(marker=marker), state]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=checkout_environment()) as runner:
        assert runner.stdout and runner.stdout.readline()
        pids = running(marker)
        runner.kill()
        runner.wait()
        assert pids and gone(*pids)


def test_nothing_moves_while_paused(worker: Worker, home: Path) -> None:
    daemon(worker, f"daemon-{os.getpid()}-paused")
    worker.pause()
    assert {state(p) for p in worker._guard.pids()} == {"T"}
    before = (home / "beat").read_text()
    time.sleep(0.1)
    assert (home / "beat").read_text() == before
    worker.go_on()
    end = time.monotonic() + 5
    while (home / "beat").read_text() in (before, "") and time.monotonic() < end:
        time.sleep(0.01)
    assert (home / "beat").read_text() != before


# -- eating up ---------------------------------------------------------------------------------------------------------
def killed(worker: Worker, code: str, kind: str, timeout_s: float = 20.0) -> str:
    pids = family(worker)
    with pytest.raises(WorkerError) as e:
        ask(worker, code, timeout_s)
    assert e.value.kind == kind, e.value
    assert not any(map(is_alive, pids)), "it returns when all are gone"
    return e.value.message


def test_a_fork_bomb(start: Callable[..., Worker]) -> None:
    bomb = "import time\nfor _ in range(300):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\ntime.sleep(60)"
    message = killed(start(limits=Limits(processes=20)), bomb, "processes")
    assert message.startswith("worker-0 took ") and message.endswith("processes, over its limit of 20; killed")


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nfor _ in range(400): x.append(b'x' * 2**20); time.sleep(0.002)",
        "fd = os.memfd_create('x')\nfor _ in range(400): os.write(fd, b'x' * 2**20); time.sleep(0.002)",
        "import mmap\nx = mmap.mmap(-1, 400 << 20)\nfor _ in range(400): x.write(b'x' * 2**20); time.sleep(0.002)",
        "if os.fork() == 0: x = b'x' * (400 << 20); time.sleep(60)",
    ],
    ids=["heap", "memory file", "shared", "a child's"],
)
def test_a_memory_eater(start: Callable[..., Worker], code: str) -> None:
    limits = Limits(memory_bytes=300 * MB)
    assert "over its limit of 0.29 GiB" in killed(
        start(limits=limits), f"import time\n{code}\ntime.sleep(60)", "memory"
    )


def test_memory_that_forked_processes_share_counts_once(start: Callable[..., Worker]) -> None:
    worker = start()
    ask(
        worker,
        "x = b'x' * (100 << 20)\nfor _ in range(4):\n    if not os.fork():\n        while 1: os.read(0, 1)\nreply(ok=True)",
    )
    pids = worker._guard.pids()
    assert len(pids) == 5
    assert memory_bytes(pids, most=1 << 40) > 450 * MB
    assert memory_bytes(pids, most=300 * MB) < 200 * MB


@pytest.mark.parametrize("name", ["'f%d' % i", "'f'"], ids=["files", "one unlinked file"])
def test_a_disk_filler(start: Callable[..., Worker], name: str) -> None:
    code = (
        f"import time\nfor i in range(80):\n    f = open({name}, 'ab'); f.write(b'x' * 2**20); f.flush(); time.sleep(0.01)\n"
        "    if i == 0 and os.path.exists('f'): g = f; os.unlink('f'); open = lambda *_: g\ntime.sleep(60)"
    )
    killed(start(limits=Limits(disk_bytes=40 * MB)), code, "disk")


def test_one_large_file(start: Callable[..., Worker], home: Path) -> None:
    worker = start(limits=Limits(file_bytes=MB))
    got = refused(worker, "f = open('big', 'wb', 0); [f.write(b'x' * 2**19) for _ in range(3)]")
    assert "File too large" in got
    assert (home / "big").stat().st_size == MB


def test_a_hang_and_a_crash(start: Callable[..., Worker]) -> None:
    killed(start(), "while True: pass", "timeout", timeout_s=0.1)
    assert "by SIGABRT" in killed(start(), "os.abort()", "crash")
    assert "by SIGSEGV" in killed(start(), "import ctypes; ctypes.string_at(0)", "crash")
    assert "by SIGKILL" in killed(start(), f"os.kill(os.getpid(), {int(signal.SIGKILL)})", "crash")


def test_a_command_over_its_limit(home: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -S -c \"import time; x = b'x' * (400 << 20); time.sleep(60)\""
    with pytest.raises(WorkerError, match="of memory, over its limit") as e:
        run_command(command, home, home, tmp_path / "log", 20, limits=Limits(memory_bytes=300 * MB))
    assert e.value.kind == "memory"


def test_processes_and_threads_are_counted_from_outside(worker: Worker) -> None:
    ask(worker, "reply(ok=True)")
    assert (worker.processes(), worker.threads()) == (1, 1)
    ask(
        worker,
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); reply(ok=True)",
    )
    assert (worker.processes(), worker.threads()) == (1, 2)
    ask(worker, "if os.fork() == 0: time.sleep(60)\nreply(ok=True)")
    assert (worker.processes(), worker.threads()) == (2, 3)


# -- the launcher ------------------------------------------------------------------------------------------------------
def test_the_start_costs_little(home: Path) -> None:
    """In processor time, launcher, pid 1 and bare `true` together: other work on this machine doesn't count."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    costs = []
    for _ in range(5):
        before = spent()
        assert isolation.start(["true"], home, os.environ, (home,)).wait() == 0
        costs.append(spent() - before)
    assert min(costs) < 0.1


def test_the_level_is_named_with_what_is_missing() -> None:
    print(LEVEL, LEVEL.missing)
    assert (LEVEL.name == "full") == (not LEVEL.missing)
    docker = isolation.Level(landlock_abi=3, refused="namespaces: Operation not permitted")
    assert docker.name == "landlock"
    assert "a daemon is ended only while its launcher lives" in docker.missing
    assert "the network can be reached (namespaces: Operation not permitted)" in docker.missing
    assert "or install bubblewrap" in docker.mend
    assert isolation.Level(namespaces=isolation.ALL).name == "namespaces"
    assert isolation.Level(namespaces=isolation.ALL).missing == "any device can be written to"
    assert "Landlock ABI 2" in isolation.Level(namespaces=isolation.ALL).mend
    assert isolation.OPEN.mend == "unset TURBO_OPT_ISOLATION (none)"


def test_bubblewraps_command_line() -> None:
    argv = isolation.bwrap_argv(["python", "x.py"], ["/s"], ["/dev/null", "/dev/kfd"], "/s/work")
    text = " ".join(argv)
    assert text.startswith(
        "bwrap --ro-bind / / --dev-bind /dev/null /dev/null --dev-bind /dev/kfd /dev/kfd --proc /proc"
    )
    assert "--bind /s /s --unshare-pid --unshare-net --unshare-ipc" in text
    assert argv.index("--ro-bind") < argv.index("--bind"), "later ones lie over earlier ones"
    assert text.endswith("--chdir /s/work -- python x.py")


@pytest.mark.parametrize("ceiling", list(isolation.CEILINGS))
def test_every_ceiling_runs(
    ceiling: str, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Worker], tmp_path: Path
) -> None:
    """On each, whatever is lacking, a worker answers, pauses and leaves nothing behind."""
    monkeypatch.setenv("TURBO_OPT_ISOLATION", ceiling)
    if ceiling == "bubblewrap" and not isolation.level().bwrap:
        pytest.skip("no bwrap that works")
    worker, marker = start(), f"daemon-{os.getpid()}-{ceiling}"
    daemon(worker, marker)
    assert worker.processes() == 2
    worker.pause()
    with pytest.raises(WorkerError, match="exit 4"):
        ask(worker, "os._exit(4)")
    assert not running(marker)
