"""Which pipes are there? Folders under the pipes directory, read again when their `pipe.md` changes.

A look costs a stat a pipe; a file is read only when its inode, size or change time is another, and reported only when
its bytes are. A broken pipe is listed with its problem and harms no other; what it was before it broke is not used.
Two things are waited for, since they pass by themselves: a file that was written this moment and makes no sense yet,
and a file that an editor has moved away and is about to put back. When the directory itself cannot be looked at, what
was seen is kept: a network home that is gone for a minute must not end what runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
import time
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from supervisord_py.config.documents import Problem, did_you_mean, read_bounded
from supervisord_py.errors import PxError, UnknownUnitError
from supervisord_py.pipes.definition import DEFAULT_AGENT, PIPE_FILE, declare, name_trouble
from supervisord_py.pipes.models import BrokenPipe
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.pipes.models import Declared

SETTLE_SECONDS = 0.3  # a file younger than that may still be being written
GONE_SECONDS = 0.8  # for so long a folder whose `pipe.md` is gone keeps its pipe: editors save by moving files
_BLIND = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
"""Errors that say nothing about the file: nothing to look with, or a network disk that is away."""
_Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Device, inode, size, change time (ns, which no program can set back); None where it cannot be looked at."""


class BlindError(Exception):
    """It could not be looked at, which says nothing about what is there."""


class DiskError(PxError):
    """A file or folder of a pipe cannot be written."""

    kind = "disk"
    title = "The pipes directory cannot be written"


def read_pipe(folder: Path, *, limit_bytes: int, default_agent: str = DEFAULT_AGENT) -> Declared:
    """Read the pipe of a folder, whose name is the pipe's; what is wrong makes it a broken one. Blocking.

    Raises:
        BlindError: It cannot be looked at for now; it may be as it was.
    """
    file = folder / PIPE_FILE
    try:
        raw = read_bounded(file, limit_bytes)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        words = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if number in _BLIND:
            raise BlindError(f"cannot read {file}: {words}") from None
        hints = {
            errno.ENOENT: f"write a {PIPE_FILE}, or mend the link that leads nowhere",
            errno.EACCES: f"let its owner read it: chmod u+rX {folder} {file}",
            errno.ELOOP: "mend the link, which leads in a circle",
            errno.EFBIG: "put long texts into files beside it",
        }
        words = words if words.startswith("is ") else f"cannot be read: {words}"
        return BrokenPipe(folder.name, folder, Problem(message=words, file=str(file), hint=hints.get(number or 0)))
    return declare(raw, folder=folder, default_agent=default_agent)


def write_pipe(file: Path, text: str) -> None:
    """Replace a file atomically. A link stays one: what it leads to is replaced, and keeps mode and owner. Blocking.

    Raises:
        DiskError: It cannot be written; the old file is as it was.
    """
    target = file.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            with contextlib.suppress(FileNotFoundError):
                before = target.stat()
                # The owner first: a change of owner takes set-user bits away, and root alone may give files away.
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            opened.write(text.encode())
            opened.flush()
            os.fsync(descriptor)
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        detail = f"cannot write {file}: {error.strerror or error}"
        raise DiskError(detail, hint="pxctl doctor", unit=f"pipe:{file.parent.name}") from None


class ChangeKind(StrEnum):
    """What became of a pipe. `broken`: it became so, is new and so, or is so in another way. `mended`: it was."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    BROKEN = "broken"
    MENDED = "mended"


class Change(NamedTuple):
    """What became of which pipe."""

    kind: ChangeKind
    name: str


class _Reading(NamedTuple):
    """What a look saw of a folder: `settled` where the stamp vouches for the bytes, `gone_at` since it was missed."""

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
        self.trouble: str | None = None
        """Why the pipes directory could not be looked at the last time; None when it could."""
        self._limit_bytes = limit_bytes
        self._default_agent = default_agent
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._readings: dict[str, _Reading] = {}
        self._declared: Mapping[str, Declared] = MappingProxyType({})

    @property
    def unsettled(self) -> bool:
        """Whether a file was so young, or gone so lately, that another look soon will know more."""
        return any(not each.settled or each.gone_at is not None for each in tuple(self._readings.values()))

    def reconfigure(self, limit_bytes: int, default_agent: str) -> None:
        """Take other settings; the next look reads everything again."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._default_agent = default_agent
            self._readings = {name: each._replace(stamp=None) for name, each in self._readings.items()}

    def all(self) -> Mapping[str, Declared]:
        """Return what the last look saw, by name, sorted; broken ones included."""
        return self._declared

    def get(self, name: str) -> Declared | None:
        """Return a pipe, broken or not; None where there is none."""
        return self._declared.get(name)

    def declared(self, name: str) -> Declared:
        """Return a pipe, broken or not.

        Raises:
            UnknownUnitError: There is none of that name; the nearest is named.
        """
        found = self._declared.get(name)
        if found is None:
            detail = f"there is no pipe {shown(name)} in {self.pipes_dir}{did_you_mean(name, self._declared)}"
            raise UnknownUnitError(detail, hint="pxctl pipe list", unit=f"pipe:{name[:100]}")
        return found

    def fresh(self, name: str) -> Declared | None:
        """Return a pipe as its file stands now, even if it does not read: one stat, and a read where it changed.

        Blocking. None where there is none; what it finds is told as a change by the next `refresh`.
        """
        known = self._readings.get(name)
        try:
            stamp = None if name_trouble(name) and known is None else _stamp(f"{self.pipes_dir}/{name}/{PIPE_FILE}")
            if known is not None and known.settled and stamp is not None and stamp == known.stamp:
                return known.declared
            if stamp is None and known is None:
                return None
            limit, agent = self._limit_bytes, self._default_agent
            found = read_pipe(self.pipes_dir / name, limit_bytes=limit, default_agent=agent)
        except (FileNotFoundError, BlindError):  # away for a moment, perhaps
            return known and known.declared
        return known.declared if known is not None and known.declared == found else found

    def refresh(self) -> tuple[Change, ...]:
        """Look at the directory, read what changed, and say what did, by name. Each change is told once."""
        with self._lock:
            try:
                with os.scandir(self.pipes_dir) as found:
                    names = sorted(each.name for each in found if not each.name.startswith(".") and _maybe_folder(each))
            except (FileNotFoundError, NotADirectoryError):
                names = []
            except OSError as error:
                self.trouble = f"cannot look into {self.pipes_dir}: {error.strerror}"
                return ()
            self.trouble = None
            before = self._readings
            after = {name: each for name in names if (each := self._look(name, before.get(name))) is not None}
            self._readings = after
            changes = tuple(
                Change(kind, name)
                for name in sorted(before.keys() | after.keys())
                if (kind := _kind(before.get(name), after.get(name))) is not None
            )
            if changes or not self._declared:
                self._declared = MappingProxyType({name: each.declared for name, each in after.items()})
            return changes

    def _look(self, name: str, known: _Reading | None) -> _Reading | None:
        """Return what is to be known of a folder now; None when it holds no pipe."""
        try:
            stamp = _stamp(f"{self.pipes_dir}/{name}/{PIPE_FILE}")
        except FileNotFoundError:
            if known is None:
                return None
            now = self._clock()
            since = known.gone_at if known.gone_at is not None else now
            return known._replace(gone_at=since) if now - since < GONE_SECONDS else None
        if known is not None and known.settled and stamp is not None and stamp == known.stamp:
            return known if known.gone_at is None else known._replace(gone_at=None)
        return self._read(self.pipes_dir / name, stamp, known)

    def _read(self, folder: Path, stamp: _Stamp, known: _Reading | None) -> _Reading | None:
        try:
            declared = read_pipe(folder, limit_bytes=self._limit_bytes, default_agent=self._default_agent)
        except BlindError as error:
            self.trouble = str(error)
            return known and known._replace(stamp=None)
        settled = stamp is None or not declared.digest or abs(self._wall() - stamp[3] / 1e9) > SETTLE_SECONDS
        if known is not None and isinstance(declared, BrokenPipe) and not settled:
            # Still being written, perhaps: the next look will know. Until then it counts as what it was.
            return _Reading(known.declared, stamp, settled=False)
        if known is not None and known.declared == declared:
            declared = known.declared
        return _Reading(declared, stamp if declared.digest else None, settled)


def _maybe_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True


def _stamp(path: str) -> _Stamp:
    """Take the stamp of a file, following links; a link that leads nowhere is a file that has none.

    Raises FileNotFoundError: there is no such file.
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


def _kind(before: _Reading | None, after: _Reading | None) -> ChangeKind | None:
    old, new = before and before.declared, after and after.declared
    if old is new:
        return None
    if new is None:
        return ChangeKind.REMOVED
    if isinstance(new, BrokenPipe):
        return ChangeKind.BROKEN
    if old is None:
        return ChangeKind.ADDED
    return ChangeKind.MENDED if isinstance(old, BrokenPipe) else ChangeKind.CHANGED
