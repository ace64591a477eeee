"""Agents, presets and the means to start them, as the files stand at the moment somebody asks.

Law (A1): a file is read whole before it is used, and read again when it has changed; a run under way never notices.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog

from supervisord_py.pipes.adapters import load_adapters, sentence
from supervisord_py.pipes.preflight import VersionCache
from supervisord_py.pipes.presets import load_presets, read_presets
from supervisord_py.process import program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.pipes.adapters import Adapters
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.preflight import Run
    from supervisord_py.pipes.presets import Presets
    from supervisord_py.pipes.room import Pipes


LOCALTIME = "/etc/localtime"
TIMEZONE = "/etc/timezone"
_OFFSET = re.compile(r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)(?P<sign>[+-]?)0?(?P<hours>[0-9]{1,2})(?::00)?")
"""`TZ` of POSIX without daylight saving, as tzset(3) reads it: west of Greenwich counts positive."""
_log = structlog.get_logger(__name__)


def machine_zone(environ: Mapping[str, str], *, localtime: str = LOCALTIME, timezone: str = TIMEZONE) -> str:
    """Return `TZ` where it names a zone, else what /etc/localtime points to, else what /etc/timezone says, else UTC.

    A `TZ` that is none of the known zones, nor whole hours from Greenwich, is told in the log.
    """
    wanted = environ.get("TZ", "").lstrip(":")
    linked = os.path.realpath(localtime).rpartition("zoneinfo/")[2]
    found = next(filter(_is_zone, (wanted, _by_offset(wanted), linked, _first_line(timezone))), "UTC")
    if wanted and found not in {wanted, _by_offset(wanted)}:
        _log.warning("time_zone_unknown", wanted=wanted, taken=found, hint="write TZ=Area/City, or pipes.timezone")
    return found


def _by_offset(wanted: str) -> str:
    """Return the zone of `UTC-3`, which is three hours east: `Etc/GMT-3`; "" where it is no such text."""
    found = _OFFSET.fullmatch(wanted)
    return "" if found is None else f"Etc/GMT{found['sign'] or '+'}{int(found['hours'])}"


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(256).strip()
    except OSError:
        return ""


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return bool(name)


SETTLE_SECONDS = 2.0  # the coarsest clocks of file systems tick so seldom
T = TypeVar("T")
_Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Device, inode, size and change time (ns); None where there is no file."""


class ReadAgain(Generic[T]):
    """What one file says.

    Args:
        read: Reads it; a file that is not there, too.
        wall: Unix seconds, to compare with the times of files.
    """

    def __init__(self, read: Callable[[Path], T], wall: Callable[[], float] = time.time) -> None:
        self._read = read
        self._wall = wall
        self._known: tuple[Path, _Stamp, T] | None = None

    def now(self, file: Path) -> T:
        """Return what the file says, any number of threads may ask."""
        known, stamp = self._known, _stamp(file)
        if known is not None and known[:2] == (file, stamp):
            return known[2]
        found = self._read(file)
        is_young = stamp is not None and abs(self._wall() - stamp[3] / 1e9) <= SETTLE_SECONDS
        self._known = None if is_young else (file, stamp, found)
        return found


def _stamp(file: Path) -> _Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


class AgentShelf:
    """What is needed to start agents; `environ` is the daemon's environment, to pick from."""

    def __init__(self, room: Pipes, environ: Mapping[str, str]) -> None:
        self._room = room
        self.environ = dict(environ)  # not the mapping of the process itself, which decodes every value at every look
        self._adapters: ReadAgain[Adapters] = ReadAgain(load_adapters)
        self._presets: ReadAgain[Presets] = ReadAgain(load_presets)
        self.versions = VersionCache()
        self.run: Run = partial(program.run, room.placement)  # runs small programs
        self.zone = "UTC"  # the machine's time zone, once it is open

    @property
    def config(self) -> PipesConfig:
        """The room's settings at present."""
        return self._room.config

    async def open(self) -> None:
        """Learn the machine's time zone."""
        self.zone = await asyncio.to_thread(machine_zone, self.environ)

    def adapters_now(self) -> Adapters:
        """Return the agents that are known; their file is read only where it has changed (7 ms). Blocking."""
        return self._adapters.now(self._room.config.agents_file)

    def presets_now(self) -> Presets:
        """Return the presets; their file is read only where it has changed. Blocking."""
        return self._presets.now(self._room.config.presets_file)

    def problems(self) -> dict[str, list[str]]:
        """Return everything that is wrong with the files of agents and presets, in sentences. Blocking."""
        found = {"agents": self.adapters_now().problems, "presets": self.presets_now().problems}
        return {name: [sentence(each) for each in problems] for name, problems in found.items()}

    async def look(self) -> tuple[Adapters, Presets]:
        """Return agents and presets as their files stand; presets that make no sense are looked at twice (I3)."""
        adapters, presets = self.adapters_now(), self.presets_now()  # a stat each: cheaper than a thread
        if presets.file_problem is not None:
            presets = await read_presets(self._room.config.presets_file)
        return adapters, presets
