"""Every known error: what happened, where, and the mend. cli/app.py turns them into one line and an exit code."""

from __future__ import annotations


class TurboOptError(Exception):
    """A known error. `message` says what and where; `hint` is the mend, shown after an em dash."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} — {self.hint}" if self.hint else self.message


class UsageError(TurboOptError):
    """What was asked for can't be: an unknown op, a limit out of range."""

    exit_code = 2


class ConfigError(TurboOptError):
    """A file that a person wrote doesn't say what it must: names the file, the key and what was expected."""


class CsvError(TurboOptError):
    """A benchmark.csv that isn't exactly as frozen. `code` is the defect's rule code; no decision is made on it."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}", hint)
        self.code = code


class JournalError(TurboOptError):
    """The journal can't be read past a line."""


class RepoError(TurboOptError):
    """Git refused, or the repository isn't in the state that a campaign needs."""


class LockedError(TurboOptError):
    """Another runner holds this campaign or this GPU."""


class WorkerError(TurboOptError):
    """A worker or checker process failed, or what it answered.

    `kind`: build (it can't be started or built), run (a failure that it answered), timeout (killed without an answer), crash (it
    ended without one), memory, processes, disk (killed over a limit), protocol, identity.
    """

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind


class GateFailed(TurboOptError):
    """A nightly or compare gate failed: a regression or a failing campaign."""

    exit_code = 4


class Interrupted(TurboOptError):
    """Stopped by a second ^C; the campaign is resumable."""

    exit_code = 130
