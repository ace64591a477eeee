"""Processes that a test runs beside itself. None outlives its test, whatever becomes of that.

Law: a test waits for its processes as ever. What is left because it failed before that is killed,
waited for and its pipes closed, so that the failure is its own and not also that of whichever test
comes when the garbage is collected.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIRST_EPHEMERAL = 32768
SPAN = 12000
_LEAN = (
    "import runpy, sys; sys.modules['rfc3987_syntax'] = None; runpy.run_module({!r}, None, "
    "'__main__', True)"
)
_given: set[int] = set()
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


def free_port() -> int:
    """Return a TCP port of loopback at which nobody listens; each is given once.

    Nobody gets it by accident before its server listens, seconds on a slow machine: it lies below
    those that the system hands out by itself to everybody who connects or binds port 0 (ip(7),
    ip_local_port_range: 32768).
    """
    while True:
        # Not `random`: it is seeded alike in all processes of pytest-xdist.
        port = FIRST_EPHEMERAL - 1 - secrets.randbelow(SPAN)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def lean_module(python: str, name: str) -> list[str]:
    """Return the beginning of the command line that runs one of Jupyter's programs, as `-m` does
    (gateway_command).

    jsonschema asks a package for the format of addresses where that is there, which builds a
    grammar as it is imported: a second of each start, which no test is about. To these it is as if
    the package were not installed.
    """
    return [python, "-c", _LEAN.format(name)]
