"""What commands share: the console, progress, signals, JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turbo_optimize.campaign import Stop
from turbo_optimize.effects.repo import Repo


def here() -> Repo:
    return Repo.discover(Path.cwd())


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


@contextmanager
def stop_on_sigint(notice: Callable[[str], None]) -> Iterator[Stop]:
    """The first ^C asks for an end after the present step; the second leaves at once, resumable."""
    stop = Stop()

    def handle(signum: int, frame: object) -> None:
        if stop.asked:
            sys.stderr.write("\nturbo-opt: left at once; `turbo-opt resume` goes on\n")
            sys.stderr.flush()
            os._exit(130)  # the journal is whole at every moment; workers die with this process
        stop.asked = "^C"
        notice("stopping after this step, then the report; ^C again leaves at once")

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A live line on a terminal, plain lines elsewhere; on stderr, so that stdout stays for data."""
    if quiet:
        yield lambda _: None
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    with console.status("starting") as status:

        def say(text: str) -> None:
            if text.isupper() or text.split(" ", maxsplit=1)[0].isupper():  # a phase: worth a line that stays
                console.print(text)
            status.update(text)

        yield say
