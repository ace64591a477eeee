"""Which pipes are there? Folders under the pipes directory, read again when their `pipe.md` changes.

A look costs a stat a pipe; a file is read only when its inode, size or change time is another, and reported only when
its bytes are. A broken pipe is listed with its problem and harms no other; what it was before it broke is not used.
Two things are waited for, since they pass by themselves: a file that was written this moment and makes no sense yet,
and a file that an editor has moved away and is about to put back. When the directory itself cannot be looked at, what
was seen is kept: a network home that is gone for a minute must not end what runs.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from supervisord_py.config.documents import did_you_mean
from supervisord_py.errors import UnknownUnitError
from supervisord_py.pipes.declaring.fields import DEFAULT_AGENT
from supervisord_py.pipes.declaring.files import PIPE_FILE, BlindError
from supervisord_py.pipes.declaring.pipe_file import look_at_pipe
from supervisord_py.pipes.declaring.problems import config_error
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.pipes.models import Declared

SETTLE_SECONDS = 0.3
"""A file younger than that may still be being written."""
GONE_SECONDS = 0.8
"""For so long a folder whose `pipe.md` is gone keeps its pipe: editors save by moving files."""

_Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Device, inode, size and change time (ns); None where it cannot be looked at."""


class ChangeKind(StrEnum):
    """What became of a pipe."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    BROKEN = "broken"
    MENDED = "mended"


@dataclass(frozen=True, slots=True)
class Change:
    """`broken`: it became so, is new and so, or is so in another way. `mended`: it was."""

    kind: ChangeKind
    name: str


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a look saw of a folder.

    Attributes:
        stamp: Of the file that was read.
        settled: The stamp vouches for the bytes: the file was not young when it was read.
        gone_at: When the file was first missed (monotonic seconds).
    """

    declared: Declared
    stamp: _Stamp
    settled: bool
    gone_at: float | None = None


class PipeCatalog:
    """The pipes of one directory. `refresh` blocks and may be called in any thread; the rest touches no file.

    Args:
        pipes_dir: Folders of pipes; missing is empty.
        limit_bytes: Of each `pipe.md`.
        default_agent: Of pipes that name none.
        clock: Monotonic seconds.
        wall: Unix seconds, to compare with the times of files.
    """

    def __init__(
        self,
        pipes_dir: Path,
        limit_bytes: int,
        *,
        default_agent: str = DEFAULT_AGENT,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.pipes_dir = pipes_dir
        self._root = os.fspath(pipes_dir)
        self._limit_bytes = limit_bytes
        self._default_agent = default_agent
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._readings: dict[str, _Reading] = {}
        self._declared: Mapping[str, Declared] = MappingProxyType({})
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why the pipes directory could not be looked at the last time; None when it could."""
        return self._trouble

    @property
    def unsettled(self) -> bool:
        """Whether a file was so young, or gone so lately, that another look soon will know more."""
        return any(not each.settled or each.gone_at is not None for each in tuple(self._readings.values()))

    def reconfigure(self, limit_bytes: int, default_agent: str) -> None:
        """Take other settings; the next look reads everything again."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._default_agent = default_agent
            self._readings = {name: replace(each, stamp=None) for name, each in self._readings.items()}

    def all(self) -> Mapping[str, Declared]:
        """Return what the last look saw, by name, sorted; broken ones included."""
        return self._declared

    def get(self, name: str) -> Declared | None:
        """Return a pipe, broken or not; None where there is none."""
        return self._declared.get(name)

    def definition(self, name: str) -> PipeDefinition:
        """Return a usable pipe.

        Raises:
            UnknownUnitError: There is none of that name; the nearest is named.
            ConfigError: There is one, and it is broken.
        """
        found = self._declared.get(name)
        if found is None:
            detail = f"there is no pipe {shown(name)} in {self.pipes_dir}{did_you_mean(name, self._declared)}"
            raise UnknownUnitError(detail, hint="pxctl pipe list", unit=f"pipe:{name[:100]}")
        if isinstance(found, BrokenPipe):
            raise config_error(found)
        return found

    def refresh(self) -> tuple[Change, ...]:
        """Look at the directory, read what changed, and say what did, by name. Each change is told once."""
        with self._lock:
            try:
                names = self._names()
            except BlindError as error:
                self._trouble = str(error)
                return ()
            self._trouble = None
            before = self._readings
            after = {name: each for name in names if (each := self._look(name, before.get(name))) is not None}
            self._readings = after
            changes = _changes(before, after)
            if changes or not self._declared:
                self._declared = MappingProxyType({name: each.declared for name, each in after.items()})
            return changes

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._root) as found:
                return sorted(each.name for each in found if not each.name.startswith(".") and _maybe_folder(each))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise BlindError(f"cannot look into {self.pipes_dir}: {error.strerror}") from None

    def _look(self, name: str, known: _Reading | None) -> _Reading | None:
        """Return what is to be known of a folder now; None when it holds no pipe."""
        try:
            stamp = _stamp(f"{self._root}/{name}/{PIPE_FILE}")
        except FileNotFoundError:
            return self._missed(known)
        if known is not None and known.settled and stamp is not None and stamp == known.stamp:
            return known if known.gone_at is None else replace(known, gone_at=None)
        return self._read(self.pipes_dir / name, stamp, known)

    def _missed(self, known: _Reading | None) -> _Reading | None:
        if known is None:
            return None
        now = self._clock()
        since = known.gone_at if known.gone_at is not None else now
        return replace(known, gone_at=since) if now - since < GONE_SECONDS else None

    def _read(self, folder: Path, stamp: _Stamp, known: _Reading | None) -> _Reading | None:
        try:
            declared = look_at_pipe(folder, limit_bytes=self._limit_bytes, default_agent=self._default_agent)
        except BlindError as error:
            self._trouble = str(error)
            return known and replace(known, stamp=None)
        settled = stamp is None or declared.fingerprint is None or abs(self._wall() - stamp[3] / 1e9) > SETTLE_SECONDS
        if known is not None and isinstance(declared, BrokenPipe) and not settled:
            # Still being written, perhaps: the next look will know. Until then it counts as what it was.
            return _Reading(known.declared, stamp, settled=False)
        if known is not None and _same(known.declared, declared):
            declared = known.declared
        return _Reading(declared, stamp if declared.fingerprint else None, settled)


def _maybe_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True


def _stamp(path: str) -> _Stamp:
    """Take the stamp of a file, following links; a link that leads nowhere is a file that has none.

    Raises:
        FileNotFoundError: There is no such file.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        os.lstat(path)
        return None
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            raise FileNotFoundError(errno.ENOENT, "no folder", path) from None
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


def _same(old: Declared, new: Declared) -> bool:
    """Say whether nothing changed but the stamp of the file."""
    if type(old) is not type(new) or old.fingerprint is None or new.fingerprint is None:
        return old == new
    return old == replace(new, fingerprint=old.fingerprint) and old.fingerprint.digest == new.fingerprint.digest


def _changes(before: Mapping[str, _Reading], after: Mapping[str, _Reading]) -> tuple[Change, ...]:
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        kind = _kind(old.declared if old else None, new.declared if new else None)
        if kind is not None:
            found.append(Change(kind, name))
    return tuple(found)


def _kind(old: Declared | None, new: Declared | None) -> ChangeKind | None:
    if old is new:
        return None
    if new is None:
        return ChangeKind.REMOVED
    if isinstance(new, BrokenPipe):
        return ChangeKind.BROKEN
    if old is None:
        return ChangeKind.ADDED
    return ChangeKind.MENDED if isinstance(old, BrokenPipe) else ChangeKind.CHANGED
