"""Agents, presets and the means to start them, as the files stand at the moment somebody asks.

Law (A1): a file is read whole before it is used, and read again when it has changed; a run under way never notices.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog

from supervisord_py.pipes.adapters import load_adapters, sentence
from supervisord_py.pipes.preflight import VersionCache
from supervisord_py.pipes.presets import load_presets, read_presets
from supervisord_py.process import program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.pipes.adapters import Adapters
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.preflight import ProgramRunner
    from supervisord_py.pipes.presets import Presets
    from supervisord_py.process.keeper_client import KeeperClient

_log = structlog.get_logger(__name__)
SETTLE_SECONDS = 2.0  # the coarsest clocks of file systems tick so seldom: a younger file may change unseen
T = TypeVar("T")


def machine_zone(
    environ: Mapping[str, str], *, localtime: str = "/etc/localtime", timezone: str = "/etc/timezone"
) -> str:
    """Return `TZ` where it names a zone, else what /etc/localtime points to, else what /etc/timezone says, else UTC."""
    wanted, linked = environ.get("TZ", "").lstrip(":"), os.path.realpath(localtime).rpartition("zoneinfo/")[2]
    try:
        written = Path(timezone).read_text("utf-8", "replace")[:256].strip()
    except OSError:
        written = ""
    found = next(filter(_is_zone, (wanted, linked, written)), "UTC")
    if wanted and found != wanted:
        _log.warning("time_zone_unknown", wanted=wanted, taken=found, hint="write TZ=Area/City, or pipes.timezone")
    return found


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return bool(name)


class ReadAgain(Generic[T]):
    """What one file says; it is read again only where it has changed, or is young."""

    def __init__(self, read: Callable[[Path], T], wall: Callable[[], float] = time.time) -> None:
        self._read = read
        self._wall = wall
        self._known: tuple[Path, tuple[int, ...], T] | None = None

    def now(self, file: Path) -> T:
        """Return what the file says, any number of threads may ask. Blocking."""
        known, stamp, is_young = self._known, (0, 0, 0, 0), False
        try:
            found = file.stat()
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
            is_young = abs(self._wall() - found.st_ctime) <= SETTLE_SECONDS
        except OSError:
            pass  # there is none
        if known is not None and known[:2] == (file, stamp):
            return known[2]
        read = self._read(file)
        self._known = None if is_young else (file, stamp, read)
        return read


class AgentShelf:
    """What is needed to start agents; `environ` is the daemon's environment, to pick from."""

    def __init__(self, config: PipesConfig, placement: KeeperClient, environ: Mapping[str, str]) -> None:
        self.config = config  # the room's, also after a reload
        self.environ = dict(environ)  # not the mapping of the process itself, which decodes every value at every look
        self._adapters: ReadAgain[Adapters] = ReadAgain(load_adapters)
        self._presets: ReadAgain[Presets] = ReadAgain(load_presets)
        self.versions = VersionCache()
        self.run: ProgramRunner = partial(program.run, placement)  # runs small programs
        self.zone = "UTC"  # the machine's time zone, once it is open

    async def open(self) -> None:
        """Learn the machine's time zone."""
        self.zone = await asyncio.to_thread(machine_zone, self.environ)

    def adapters_now(self) -> Adapters:
        """Return the agents that are known; their file is read only where it has changed (7 ms). Blocking."""
        return self._adapters.now(self.config.agents_file)

    def presets_now(self) -> Presets:
        """Return the presets; their file is read only where it has changed. Blocking."""
        return self._presets.now(self.config.presets_file)

    def problems(self) -> dict[str, list[str]]:
        """Return everything that is wrong with the files of agents and presets, in sentences. Blocking."""
        found = {"agents": self.adapters_now().problems, "presets": self.presets_now().problems}
        return {name: [sentence(each) for each in problems] for name, problems in found.items()}

    async def look(self) -> tuple[Adapters, Presets]:
        """Return agents and presets as their files stand; presets that make no sense are looked at twice (I3)."""
        config = self.config  # a stat of each file: cheaper than a thread
        adapters, presets = self._adapters.now(config.agents_file), self._presets.now(config.presets_file)
        if presets.file_problem is not None:
            presets = await read_presets(config.presets_file)
        return adapters, presets
