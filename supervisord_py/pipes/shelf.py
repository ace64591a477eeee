"""Agents, presets and the means to start them, as the files stand at the moment somebody asks.

Law (A1): a file is read whole before it is used, and read again when it has changed; a run under way never notices.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog

from supervisord_py.pipes.adapters import load_adapters, sentence
from supervisord_py.pipes.preflight import VersionCache
from supervisord_py.pipes.presets import load_presets
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

    def __init__(self, read: Callable[[Path], T], file: Path) -> None:
        self._read = read
        self._file = file
        self._known: tuple[tuple[int, ...], T] | None = None

    def now(self) -> T:
        """Return what the file says, any number of threads may ask. Blocking."""
        known, stamp, is_young = self._known, (0, 0, 0, 0), False
        with suppress(OSError):  # there may be none
            found = os.stat(self._file)
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
            is_young = abs(time.time() - found.st_ctime) <= SETTLE_SECONDS
        if known is not None and known[0] == stamp:
            return known[1]
        read = self._read(self._file)
        self._known = None if is_young else (stamp, read)
        return read


class AgentShelf:
    """What is needed to start agents; `environ` is the daemon's environment, to pick from.

    Attributes:
        adapters_now, presets_now: Return the agents that are known, and the presets; their file is read (7 ms) only
            where it has changed. Blocking.
    """

    def __init__(self, config: PipesConfig, placement: KeeperClient, environ: Mapping[str, str]) -> None:
        self.config = config  # the room's, also after a reload
        self.environ = dict(environ)  # not the mapping of the process itself, which decodes every value at every look
        self.adapters_now: Callable[[], Adapters] = ReadAgain(load_adapters, config.agents_file).now
        self.presets_now: Callable[[], Presets] = ReadAgain(load_presets, config.presets_file).now
        self.versions = VersionCache()
        self.run: ProgramRunner = partial(program.run, placement)  # runs small programs
        self.zone = "UTC"  # the machine's time zone, once it is open

    async def open(self) -> None:
        """Learn the machine's time zone."""
        self.zone = await asyncio.to_thread(machine_zone, self.environ)

    def problems(self) -> dict[str, list[str]]:
        """Return everything that is wrong with the files of agents and presets, in sentences. Blocking."""
        found = {"agents": self.adapters_now().problems, "presets": self.presets_now().problems}
        return {name: [sentence(each) for each in problems] for name, problems in found.items()}

    async def look(self) -> tuple[Adapters, Presets]:
        """Return agents and presets as their files stand; presets that make no sense may be half written (I3)."""
        adapters, presets = self.adapters_now(), self.presets_now()  # a stat of each file: cheaper than a thread
        if presets.file_problem is not None:
            await asyncio.sleep(0.2)
            presets = self.presets_now()
        return adapters, presets
