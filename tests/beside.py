"""Processes that a test runs beside itself. None outlives its test, whatever becomes of that.

Law: a test waits for its processes as ever. What is left because it failed before that is killed, waited for and its
pipes closed, so that the failure is its own and not also that of whichever test comes when the garbage is collected.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_started: list[subprocess.Popen[Any]] = []


def beside(argv: Sequence[str | Path], **settings: Any) -> subprocess.Popen[Any]:
    """Start a process that ends with the test at the latest; the settings are Popen's."""
    process = subprocess.Popen(argv, **settings)
    _started.append(process)
    return process


def end_all() -> None:
    """Leave nothing of what was started."""
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was still to be written to it
                    pipe.close()
