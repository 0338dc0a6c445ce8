"""The library's log, `logging.getLogger("turbo_kernels")`, at the level that TURBO_LOG_LEVEL names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

LOG = logging.getLogger("turbo_kernels")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
VARIABLES = ("TURBO_LOG_LEVEL", "PRIMUS_TURBO_LOG_LEVEL")


def configure(environ: Mapping[str, str] = os.environ) -> None:
    """Sets the level where a variable names one, and writes to stderr where the application has no handler.

    ValueError names the variable and the legal levels. Without a variable the application's settings hold.
    """
    for variable in VARIABLES:
        level = environ.get(variable, "").strip().upper()
        if not level:
            continue
        if level not in LEVELS:
            raise ValueError(f"{variable}={environ[variable]!r} is no log level; there are {', '.join(LEVELS)}")
        LOG.setLevel(level)
        if not LOG.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
            LOG.addHandler(handler)
        return


configure()
