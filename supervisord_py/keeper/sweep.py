"""Remove what an earlier keeper of the same directories left: found by mark, by cgroup, or by
recorded identity.

A process is touched only when it bears this daemon's mark in the environment it was started with,
is in this daemon's cgroup, or has exactly the pid *and* start time that a keeper of this boot wrote
down. A planted record with a bystander's pid does nothing. We ourselves and our ancestors are never
touched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator

from supervisord_py.keeper import cgroup, procfs
from supervisord_py.keeper.procfs import Process
from supervisord_py.keeper.protocol import MARK_CONTROL, MARK_INSTANCE, MARK_UNIT
from supervisord_py.keeper.tree import HeldChild

# a process that was left, and the unit it belonged to ("": the control plane)
Found = tuple[Process, str]
SWEEP_SECONDS = 10.0
PAUSE_SECONDS = 0.01
RECORD_NAME = "children"


def sweep(daemon_id: str, run_dir: str) -> tuple[list[str], list[Process]]:
    """Kill what is left until nothing is, SWEEP_SECONDS at most; return the units found and what is
    still there.

    Raises OSError when the processes of this machine cannot be seen for so long: then nothing can
    be promised.
    """
    units: set[str] = set()
    until = time.monotonic() + SWEEP_SECONDS
    while True:
        is_over = time.monotonic() >= until
        try:
            left, is_done = _kill_leftovers(daemon_id, run_dir, units)
        except OSError:  # no descriptor, no memory: perhaps only for a moment
            if is_over:
                raise
            is_done = False
            left = []
        if is_done or is_over:
            break
        select.select((), (), (), PAUSE_SECONDS)
    forget_record(run_dir)
    return sorted(filter(None, units)), [process for process, _ in left]


def _kill_leftovers(daemon_id: str, run_dir: str, units: set[str]) -> tuple[list[Found], bool]:
    """Look once, and kill what is there; return it, and whether nothing was.

    Adds the units to `units`.
    """
    spared = _ourselves_and_ancestors()
    groups = cgroup.leftovers(daemon_id)
    left = [*_marked(daemon_id, spared), *_recorded(run_dir, spared)]
    for group in groups:
        group.kill()
    for process, unit in left:
        units.add(unit)
        procfs.send(process, signal.SIGKILL)
    are_empty = [group.remove() for group in groups]
    return left, not left and all(are_empty)


def _ourselves_and_ancestors() -> set[int]:
    spared: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in spared:
        spared.add(pid)
        row = procfs.look(pid)
        pid = row.ppid if row else 0
    return spared


def _marked(daemon_id: str, spared: set[int]) -> Iterator[Found]:
    for pid in procfs.pids():
        row = None if pid in spared else procfs.look(pid)
        if row is not None and row.alive:
            marks = procfs.environment(pid)
            if marks.get(MARK_INSTANCE.encode(), b"").startswith(f"{daemon_id}.".encode()):
                yield row, marks.get(MARK_UNIT.encode(), b"").decode("utf-8", "replace")
            elif marks.get(MARK_CONTROL.encode()) == daemon_id.encode():
                yield row, ""


# -- recorded identities, where neither cgroups nor environments tell (the portable rung) ----------


def write_record(run_dir: str, children: Iterable[HeldChild]) -> None:
    """Write down who lives, whole or not at all: `boot <id>`, then `pid start_time key unit` a
    line, leaders first.
    """
    lines = [f"boot {procfs.boot_id()}"]
    for child in children:
        if child.tree_alive:
            pids = {child.pid: child.start_time, **child.members}
            lines += [f"{pid} {start} {child.key} {child.unit}" for pid, start in pids.items()]
    path = f"{run_dir}/{RECORD_NAME}"
    with open(path + ".new", "w", encoding="utf-8") as file:  # private by our umask
        file.write("\n".join(lines) + "\n")
    os.rename(path + ".new", path)


def forget_record(run_dir: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(f"{run_dir}/{RECORD_NAME}")


def _recorded(run_dir: str, spared: set[int]) -> Iterator[Found]:
    """Yield each recorded process that is still the same one, with the process group that it
    leads, if it does.
    """
    try:
        text = procfs.slurp(f"{run_dir}/{RECORD_NAME}").decode("utf-8", "replace")
    except OSError:
        return
    head, *lines = text.splitlines() or [""]
    if head != f"boot {procfs.boot_id()}":
        return  # start times of another boot name nobody
    for words in (line.split(" ", 3) for line in lines):
        if len(words) == 4 and words[0].isdigit() and words[1].isdigit():
            row = procfs.look(int(words[0]))
            if row is not None and row.start_time == int(words[1]) and row.pid not in spared:
                group = [
                    one
                    for one in procfs.table().values()
                    if one.pgid == row.pid and one.pid not in spared
                ]
                yield from ((one, words[3]) for one in (group or [row]) if one.alive)
