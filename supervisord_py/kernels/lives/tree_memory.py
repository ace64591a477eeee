"""How large a process of this machine is, with its descendants, where no keeper holds it and could say so.

Law: what cannot be looked at any more counts as nothing; a process that took the pid of ours is not measured for it.
File I/O, small: call it on a thread.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from supervisord_py.process import identity
from supervisord_py.process.spec import Liveness

if TYPE_CHECKING:
    from supervisord_py.process.spec import Identity

PROC = Path("/proc")


def resident(who: Identity) -> int | None:
    """Return the resident memory of a process and its descendants, in bytes; None when it is not there any more."""
    if identity.liveness(who) is not Liveness.ALIVE:
        return None
    pids = [who.pid]
    for pid in pids:
        pids.extend(_children(pid))
    return sum(map(_resident, pids))


def _children(pid: int) -> list[int]:
    """Ask each thread of a process (proc_pid_task(5)): looking at every process there is takes many times as long."""
    tasks = PROC / str(pid) / "task"
    try:
        return [int(child) for task in os.listdir(tasks) for child in (tasks / task / "children").read_text().split()]
    except OSError:
        with contextlib.suppress(psutil.Error):
            return [each.pid for each in psutil.Process(pid).children()]
    return []


def _resident(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
