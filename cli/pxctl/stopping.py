"""Stops the daemon and makes sure, from outside, that it and everything it held is gone.

Law: "stopped" is said when the keeper and each child that was seen before are gone by pid and start time, not when the
daemon said so.
"""

from __future__ import annotations

import time

from pxctl import interrupts
from pxctl.failure import CONFLICT, Failure, Interrupted, Problem
from pxctl.proc import Sighting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client

_PAUSE_SECONDS = 0.02
_READ_SECONDS = 10.0


def sight_all(client: Client) -> tuple[list[Sighting], list[Sighting]]:
    """Return the daemon's own processes and those of its units, as they are now. Raises when no daemon answers."""
    document = client.get("/api/status", timeout=_READ_SECONDS).document
    daemon: dict[str, Any] = document.get("daemon") or {}
    own = [
        Sighting(part["pid"], f"pxd {name}")
        for name in ("keeper", "control")
        if isinstance((part := daemon.get(name) or {}).get("pid"), int)
    ]
    units = [
        Sighting(unit["pid"], str(unit.get("unit")))
        for unit in document.get("units", [])
        if isinstance(unit.get("pid"), int)
    ]
    return own, units


def ask_to_stop(client: Client) -> list[dict[str, Any]]:
    """Ask for the orderly stop; return the survivors that the daemon itself named. A broken-off answer is one, too."""
    try:
        document = client.ask("POST", "/api/daemon/stop", timeout=None).document
    except Interrupted:
        return []
    except Problem as problem:
        # Asked twice: the stop is under way already.
        if problem.kind != "shutdown":
            raise
        return []
    return [one for one in document.get("survivors", []) if isinstance(one, dict)]


def await_end(seen: list[Sighting], timeout: float) -> list[Sighting]:
    """Wait until all are gone; return those that are not after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while left := [one for one in seen if one.alive]:
        if time.monotonic() >= deadline:
            return left
        interrupts.pause(_PAUSE_SECONDS)
    return []


def survived(left: list[Sighting]) -> Failure:
    """Make the failure that names what outlived the stop."""
    named = ", ".join(f"{one.name} (pid {one.pid})" for one in left)
    return Failure(
        f"still alive: {named}",
        kind="survivors",
        hint=f"look at it: ps -o pid,ppid,stat,etime,args -p {','.join(str(one.pid) for one in left)}",
        exit_code=CONFLICT,
        survivors=[{"pid": one.pid, "name": one.name} for one in left],
    )
