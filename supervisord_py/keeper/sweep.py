"""Remove what an earlier keeper of the same directories left: found by mark, by cgroup, or by recorded identity.

A process is touched only when it bears this daemon's mark in the environment it was started with, is in this daemon's
cgroup, or has exactly the pid *and* start time that a keeper of this boot wrote down. A planted record with a
bystander's pid does nothing. We ourselves and our ancestors are never touched.
"""

from __future__ import annotations

import os
import select
import signal
import time

from supervisord_py.keeper import cgroup, processes, system
from supervisord_py.keeper.control import MARK_CONTROL
from supervisord_py.keeper.protocol import MARK_INSTANCE, MARK_UNIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.processes import Process

SWEEP_SECONDS = 10.0
PAUSE_SECONDS = 0.01
RECORD_NAME = "children"
_INSTANCE = MARK_INSTANCE.encode()
_UNIT = MARK_UNIT.encode()
_CONTROL = MARK_CONTROL.encode()


class Found:
    """One process that was left, and whose it was."""

    __slots__ = ("key", "process", "unit")

    def __init__(self, process: Process, key: str, unit: str) -> None:
        self.process = process
        self.key = key
        self.unit = unit


class Swept:
    """What a sweep found and what it could not remove.

    Attributes:
        interrupted: `interrupted` of the protocol's hello: one entry an instance.
        survivors: Processes that are still there.
    """

    __slots__ = ("interrupted", "survivors")

    def __init__(self) -> None:
        self.interrupted: dict[str, dict[str, Any]] = {}
        self.survivors: list[Process] = []

    def note(self, found: Found) -> None:
        """Remember whose process this was."""
        if found.key and found.key not in self.interrupted:
            entry = {"key": found.key, "unit": found.unit, "pid": found.process.pid}
            self.interrupted[found.key] = entry


def sweep(daemon_id: str, run_dir: str) -> Swept:
    """Kill what is left, again and again until nothing is, for at most SWEEP_SECONDS; remove the groups."""
    swept = Swept()
    until = time.monotonic() + SWEEP_SECONDS
    spared = _self_and_ancestors()
    while True:
        groups = cgroup.leftovers(daemon_id)
        left = [*_marked(daemon_id, spared), *_recorded(run_dir, spared)]
        for found in left:
            swept.note(found)
        for group in groups:
            _note_group(swept, group, spared)
            group.kill()
        for found in left:
            processes.send(found.process, signal.SIGKILL)
        empty = [group.remove() for group in groups]
        if not left and all(empty):
            break
        if time.monotonic() >= until:
            swept.survivors = [found.process for found in left]
            break
        select.select((), (), (), PAUSE_SECONDS)
    forget_record(run_dir)
    return swept


def _self_and_ancestors() -> set[int]:
    spared: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in spared:
        spared.add(pid)
        row = processes.look(pid)
        pid = row.ppid if row else 0
    return spared


def _marked(daemon_id: str, spared: set[int]) -> list[Found]:
    found = []
    prefix, control = f"{daemon_id}.".encode(), daemon_id.encode()
    for pid in processes.pids():
        if pid in spared:
            continue
        row = processes.look(pid)
        if row is None or not row.alive:
            continue
        marks = processes.environment(pid)
        key = marks.get(_INSTANCE, b"")
        if key.startswith(prefix):
            found.append(Found(row, key.decode("ascii", "replace"), marks.get(_UNIT, b"").decode("utf-8", "replace")))
        elif marks.get(_CONTROL) == control:
            found.append(Found(row, "", ""))
    return found


def _note_group(swept: Swept, group: cgroup.Group, spared: set[int]) -> None:
    """Name those whose environment says nothing by the group they are in."""
    for path in cgroup.walk(group.path, 1):
        for pid in cgroup.Group(path).members():
            row = processes.look(pid)
            if row is not None and pid not in spared and path != group.path:
                unit = processes.environment(pid).get(_UNIT, b"").decode("utf-8", "replace")
                swept.note(Found(row, os.path.basename(path), unit))


# -- recorded identities, where neither cgroups nor environments tell (the portable rung) ----------------------------


def write_record(run_dir: str, instances: Iterable[Instance]) -> None:
    """Write down who lives, whole or not at all: `boot <id>`, then `pid start_time key unit` a line, leaders first."""
    lines = [f"boot {system.boot_id()}"]
    for one in instances:
        if one.tree_alive:
            people = {one.pid: one.start_time, **one.members}
            lines += [f"{pid} {start} {one.key} {one.unit}" for pid, start in people.items()]
    path = f"{run_dir}/{RECORD_NAME}"
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, ("\n".join(lines) + "\n").encode())
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def forget_record(run_dir: str) -> None:
    """Remove the record."""
    try:
        os.unlink(f"{run_dir}/{RECORD_NAME}")
    except OSError:
        return


def _recorded(run_dir: str, spared: set[int]) -> list[Found]:
    try:
        text = processes.slurp(f"{run_dir}/{RECORD_NAME}").decode("utf-8", "replace")
    except OSError:
        return []
    head, *lines = text.splitlines() or [""]
    if head != f"boot {system.boot_id()}":
        return []  # start times of another boot name nobody
    found = []
    for line in lines:
        found += _by_identity(line, spared)
    return found


def _by_identity(line: str, spared: set[int]) -> list[Found]:
    """Return the recorded process, if it is still the same one, with the process group that it leads, if it does."""
    words = line.split(" ", 3)
    if len(words) != 4 or not (words[0].isdigit() and words[1].isdigit()):
        return []
    row = processes.look(int(words[0]))
    if row is None or row.start_time != int(words[1]) or row.pid in spared:
        return []
    group = [one for one in processes.table().values() if one.pgid == row.pid and one.pid not in spared]
    return [Found(one, words[2], words[3]) for one in (group or [row]) if one.alive]
