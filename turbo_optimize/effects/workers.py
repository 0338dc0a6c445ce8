"""The processes of a bench: kept ready, given a tree, identified, ended.

A worker that is ready has imported what every worker imports and waits; which tree it measures it learns when it is
taken. Each is used for one check or one session and then ends, so every measured process is fresh. It has folders of
its own; compiled kernels of its tree are copied in, and new ones back out when it ends. The checker never imports a
candidate, so one serves a whole run.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import Policy
from turbo_optimize.effects.bench import Tree, timed
from turbo_optimize.effects.proc import Worker
from turbo_optimize.effects.store import disk_errors
from turbo_optimize.effects.watch import Limits, machine_memory_bytes

Named = tuple[str, Tree]
MEMORY_SHARE = 0.8
CACHES = ("triton", "extensions", "inductor")  # compilers' folders that a tree's workers share one after the other


@dataclass
class Workers:
    harness: Path  # the campaign's quick_test_bench.py
    base: Tree  # the checker's tree: the base commit
    policy: Policy
    interpret: bool
    logs: Callable[[str], Path]  # the folder of a call's worker logs, by its key
    import_name: str
    places: Path  # each process gets a folder here
    spare: int = 0  # workers kept ready beyond those in use
    _ready: list[Worker] = field(default_factory=list)
    _running: list[Worker] = field(default_factory=list)
    _kept: dict[str, Worker] = field(default_factory=dict)  # checker and twin, by name
    _place: dict[int, Path] = field(default_factory=dict)  # by process id
    _hello: dict[int, dict[str, Any]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @cached_property
    def _limits(self) -> Limits:
        machine = int(MEMORY_SHARE * machine_memory_bytes())
        memory = min(int(self.policy.worker_memory_gib * 2**30), machine)
        return Limits(memory_bytes=memory, disk_bytes=int(self.policy.worker_disk_gib * 2**30))

    # -- starting ----------------------------------------------------------------------------------------------------
    def _start(self, mode: str = "worker") -> Worker:
        place = self.places / f"{mode}-{next(self._numbers)}"
        with disk_errors(place):
            shutil.rmtree(place, ignore_errors=True)
            (place / "work").mkdir(parents=True)
        command = [sys.executable, "-I", str(self.harness), f"--{mode}"]
        extra = {"TRITON_INTERPRET": "1"} if self.interpret else {}
        log = place.with_suffix(".log")
        worker = Worker(command, place / "work", scratch=place, log=log, extra_env=extra, limits=self._limits)
        self._place[worker.process.pid] = place
        self._fill(worker, self.base)  # what every worker warms up with is compiled but once
        return worker

    def ready(self, count: int) -> None:
        """Starts workers until `count` wait to be given a tree."""
        while len(self._ready) < count:
            self._ready.append(self._start())

    # -- using -------------------------------------------------------------------------------------------------------
    @contextmanager
    def running(self, key: str, parts: dict[str, float], *who: Named) -> Iterator[list[Worker]]:
        """Fresh workers of these trees side by side, identified; they end whatever happens."""
        with timed(parts, "start"):
            self.ready(len(who))
            taken = [self._ready.pop(0) for _ in who]
        self._running = taken
        try:
            with timed(parts, "start"):
                for worker, (name, tree) in zip(taken, who, strict=True):
                    worker.name = name
                    self._fill(worker, tree)
                    worker.send({"cmd": "hello", "tree": str(tree.path)})
                for worker, (_, tree) in zip(taken, who, strict=True):
                    self._identify(worker, tree)
            yield taken
        finally:
            self._running = []
            with timed(parts, "end"):
                self._end(taken)
                for worker, (_, tree) in zip(taken, who, strict=True):
                    self._keep(worker, tree, self.logs(key))

    def _identify(self, worker: Worker, tree: Tree) -> None:
        """The imported kernels must be those of the measured tree: checked, never assumed."""
        hello = worker.receive(self.policy.start_timeout_s, "hello")
        self._hello[worker.process.pid] = hello
        imported = Path(str(hello.get("imported", "")))
        if not imported.is_relative_to(tree.path):
            raise WorkerError(
                "identity", f"{self.import_name} was imported from {imported}, not from {tree.path}",
                "check import_roots in the project file; an installed copy must not shadow the tree",
            )  # fmt: skip

    def hello(self, worker: Worker) -> Mapping[str, Any]:
        return self._hello[worker.process.pid]

    def place(self, worker: Worker) -> Path:
        """The only folder that a worker may write to."""
        return self._place[worker.process.pid]

    def checker(self, key: str, parts: dict[str, float]) -> Worker:
        """The one checker: it judges from the base commit and runs no kernel."""
        return self._trusted("checker", "checker", parts)

    def twin(self, key: str, parts: dict[str, float]) -> Worker:
        """The base commit's own op, for outputs to compare a candidate's with on the same inputs. It is never timed."""
        return self._trusted("twin", "worker", parts)

    def _trusted(self, name: str, mode: str, parts: dict[str, float]) -> Worker:
        """A process of the base commit that serves a whole run; started when first needed, and again if it died."""
        with timed(parts, "start"):
            worker = self._kept.get(name)
            if worker is None or worker.process.poll() is not None:
                worker = self._kept[name] = self._start(mode)
                worker.name = name
                self._fill(worker, self.base)
                worker.send({"cmd": "hello", "tree": str(self.base.path)})
                self._identify(worker, self.base)
        return worker

    def pids(self) -> list[int]:
        """Every process of ours that may hold the device now."""
        return [w.process.pid for w in (*self._ready, *self._running, *self._kept.values())]

    # -- folders -----------------------------------------------------------------------------------------------------
    def _fill(self, worker: Worker, tree: Tree) -> None:
        """The tree's compiled kernels, copied: what a worker does to its copy is its own affair until it ends."""
        for name in CACHES:
            if (tree.scratch / name).is_dir():
                with disk_errors(tree.scratch):
                    shutil.copytree(tree.scratch / name, self.place(worker) / name, dirs_exist_ok=True)

    def _keep(self, worker: Worker, tree: Tree, logs: Path) -> None:
        """What it compiled goes to its tree's caches, its output to the call's logs; the rest of its folder goes."""
        place = self._place.pop(worker.process.pid)
        self._hello.pop(worker.process.pid, None)
        with disk_errors(tree.scratch):
            for name in CACHES:
                for path in (place / name).rglob("*"):
                    target = tree.scratch / path.relative_to(place)
                    if path.is_file() and not path.is_symlink() and not target.exists():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(path, target)
            logs.mkdir(parents=True, exist_ok=True)
            with (logs / f"{worker.name}.log").open("ab") as out:
                out.write(worker.log.read_bytes())
        worker.log.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    # -- ending ------------------------------------------------------------------------------------------------------
    def _end(self, workers: Sequence[Worker]) -> None:
        """Hangs up on all before it waits for one."""
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.close()

    def close(self) -> None:
        left = [*self._ready, *self._kept.values()]
        self._end(left)
        self._ready.clear()
        self._kept.clear()
        for worker in left:
            shutil.rmtree(self._place.pop(worker.process.pid), ignore_errors=True)
            worker.log.unlink(missing_ok=True)
