"""Which tools are there? Folders under the tool directories, read again when they change.

A broken tool is an entry with its error and harms no other. Names, never paths, come from outside: a name is looked up
among the folders that were found, so `../x` can lead nowhere. The first directory that has a name wins; the others of
that name are listed as errors. The catalog does blocking file operations, tens of microseconds a tool; it is meant for
one thread.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError, PxError, UnknownUnitError
from supervisord_py.tools.config import ToolDefaults
from supervisord_py.tools.declaring.declaration import name_trouble
from supervisord_py.tools.declaring.fingerprint import MANIFEST, Stamp, newest, signature
from supervisord_py.tools.declaring.manifest import load_tool, sources_of
from supervisord_py.tools.declaring.problems import Problems, clip, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisord_py.tools.spec import ToolSpec

FRESH_SECONDS = 0.2
"""How long a look at the directories serves `get` of a known name whose tool is not broken."""
RETRY_BROKEN_SECONDS = 1.0
"""A broken tool is read again after that even if nothing seems to have changed: its error may lie anywhere."""
RACY_SECONDS = 0.1
"""A file that young may change again without a new time stamp."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tool folder. Exactly one of `spec` and `error` is set."""

    name: str
    folder: Path
    spec: ToolSpec | None
    error: ConfigError | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was read of a folder, and what it was read from. `read_at` is monotonic seconds."""

    entry: Entry
    sources: tuple[str, ...]
    signature: tuple[Stamp, ...]
    read_at: float
    trusted: bool


class _BlindError(Exception):
    """There was no descriptor to look with."""


class Catalog:
    """The tools of several directories.

    Args:
        paths: Directories of tool folders; the first has precedence. Missing ones are empty.
        defaults: What counts where a tool says nothing.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        defaults: ToolDefaults | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = tuple(Path(os.path.abspath(path)) for path in paths)
        self.defaults = defaults or ToolDefaults()
        self._clock = clock
        self._readings: dict[Path, _Reading] = {}
        self._by_name: dict[str, Entry] = {}
        self._shadowed: list[Entry] = []
        self._refreshed_at = float("-inf")

    def reconfigure(self, paths: Sequence[Path], defaults: ToolDefaults) -> None:
        """Take other directories and defaults, and read everything again."""
        self.paths = tuple(Path(os.path.abspath(path)) for path in paths)
        self.defaults = defaults
        self._readings = {}
        self.refresh()

    def refresh(self) -> None:
        """Look at every directory and read again what changed.

        A look that cannot see, because descriptors ran out, keeps what the last one saw: a tool is not removed by that.
        """
        try:
            seen = [folder for path in self.paths for folder in self._folders(path)]
        except _BlindError:
            self._refreshed_at = self._clock()
            return
        readings: dict[Path, _Reading] = {}
        by_name: dict[str, Entry] = {}
        shadowed: list[Entry] = []
        for folder in seen:
            if folder in readings:
                continue
            reading = readings[folder] = self._reading(folder)
            first = by_name.setdefault(reading.entry.name, reading.entry)
            if first is not reading.entry:
                shadowed.append(_shadow(reading.entry, first))
        self._readings, self._by_name, self._shadowed = readings, by_name, shadowed
        self._refreshed_at = self._clock()

    def get(self, name: str) -> ToolSpec:
        """Return the spec of a tool.

        Raises:
            UnknownUnitError: There is no such tool; the hint names the nearest.
            ConfigError: There is one, and it is broken.
        """
        entry = self.entry(name)
        if entry.spec is None:
            raise entry.error or ConfigError(f"{entry.folder} cannot be read", unit=f"tool:{name}")
        return entry.spec

    def entry(self, name: str) -> Entry:
        """Return the entry of a name, broken or not.

        Raises:
            UnknownUnitError: There is none.
        """
        found = self._by_name.get(name)
        is_fresh = self._clock() - self._refreshed_at < FRESH_SECONDS
        if found is None or found.spec is None or not is_fresh:  # nobody is refused for what an earlier look saw
            self.refresh()
            found = self._by_name.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def entries(self) -> list[Entry]:
        """Look again and return every entry, by name; a shadowed one follows the one that shadows it."""
        self.refresh()
        return sorted([*self._by_name.values(), *self._shadowed], key=lambda entry: entry.name)

    def names(self) -> tuple[str, ...]:
        """Return the names found by the last look, sorted; looks only if there was none."""
        if self._refreshed_at == float("-inf"):
            self.refresh()
        return tuple(sorted(self._by_name))

    def _folders(self, path: Path) -> Iterator[Path]:
        """Yield the tool folders of one directory, links to folders included, by name."""
        try:
            with os.scandir(path) as found:
                names = sorted(each.name for each in found if not each.name.startswith("."))
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                raise _BlindError from error
            return
        for name in names:
            folder = path / name
            if _is_tool(folder):
                yield folder

    def _reading(self, folder: Path) -> _Reading:
        known = self._readings.get(folder)
        now = self._clock()
        if known is not None and known.trusted:
            aged = known.entry.spec is None and now - known.read_at >= RETRY_BROKEN_SECONDS
            if not aged and known.signature == signature(folder, known.sources):
                return known
        return self._read(folder, now)

    def _read(self, folder: Path, now: float) -> _Reading:
        """Read a folder; what changed meanwhile, or may yet change unseen, is read again at the next look."""
        before = signature(folder, ())
        entry = _load(folder, self.defaults)
        spec = entry.spec
        sources = sources_of(spec.folder, spec.entrypoint, spec.command) if spec is not None else ("main.py",)
        stamps = signature(folder, sources)
        settled = abs(time.time() - newest(stamps)) > RACY_SECONDS
        return _Reading(entry, sources, stamps, now, trusted=settled and stamps[: len(before)] == before)

    def _unknown(self, name: str) -> UnknownUnitError:
        trouble = name_trouble(name)
        shown = clip(repr(name), 100)
        if trouble:
            return UnknownUnitError(f"{shown} is no tool's name: it {trouble}", hint="pxctl tools list", unit=None)
        nearest = did_you_mean(name, self._by_name)
        detail = f"there is no tool {shown} in {', '.join(str(path) for path in self.paths) or 'any directory'}"
        return UnknownUnitError(detail + nearest, hint="pxctl tools list", unit=f"tool:{name}")


def _is_tool(folder: Path) -> bool:
    """Say whether a folder is meant to be a tool: it has a tool.json, or nobody may look whether it has."""
    try:
        os.lstat(folder / MANIFEST)
    except PermissionError:
        return os.path.isdir(folder)
    except (OSError, ValueError):
        return False
    return True


def _load(folder: Path, defaults: ToolDefaults) -> Entry:
    try:
        spec = load_tool(folder, defaults)
    except ConfigError as error:
        return Entry(folder.name, folder, None, error)
    except (PxError, OSError) as error:
        problems = Problems(f"tool:{folder.name}")
        problems.add_file(folder, str(error))
        return Entry(folder.name, folder, None, problems.error())
    return Entry(folder.name, folder, spec, None, spec.warnings)


def _shadow(entry: Entry, first: Entry) -> Entry:
    problems = Problems(f"tool:{entry.name}")
    problems.add_file(entry.folder, f"is hidden by {first.folder}, which has the same name and comes first")
    return Entry(entry.name, entry.folder, None, problems.error(), entry.warnings)
