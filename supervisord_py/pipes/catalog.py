"""Which pipes are there? Folders under the pipes directory, read again when their `pipe.md` changes.

A look costs a stat a pipe; a file is read only when its inode, size or change time is another, and reported only when
its bytes are. A broken pipe is listed with its problem and harms no other; what it was before it broke is not used.
What makes no sense, or is not there, while an editor writes or moves the file is waited for: it counts when it has
stood so for `SETTLE_SECONDS`. When the directory itself cannot be looked at, what was seen is kept: a network home
that is gone for a minute must not end what runs.
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
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from supervisord_py.config.documents import Problem, did_you_mean, read_bounded
from supervisord_py.errors import PxError, UnknownUnitError
from supervisord_py.pipes.definition import DEFAULT_AGENT, PIPE_FILE, declare, name_trouble
from supervisord_py.pipes.models import BrokenPipe
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.models import Declared

SETTLE_SECONDS = 0.5
_BLIND = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
"""Errors that say nothing about the file: nothing to look with, or a network disk that is away."""
_HINTS = {
    errno.ENOENT: f"write a {PIPE_FILE}, or mend the link that leads nowhere",
    errno.EACCES: "let its owner read it: chmod u+rX the folder and the file",
    errno.EFBIG: "put long texts into files beside it",
}
_Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Device, inode, size, change time (ns, which no program can set back); None where it cannot be looked at."""


class BlindError(Exception):
    """It could not be looked at, which says nothing about what is there."""


class DiskError(PxError):
    """A file or folder of a pipe cannot be written."""

    kind = "disk"
    title = "The pipes directory cannot be written"


def read_pipe(folder: Path, *, default_agent: str = DEFAULT_AGENT) -> Declared:
    """Read the pipe of a folder, whose name is the pipe's; what is wrong makes it a broken one. Blocking.

    Raises BlindError: it cannot be looked at for now; it may be as it was.
    """
    file = folder / PIPE_FILE
    try:
        raw = read_bounded(file)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        words = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if number in _BLIND:
            raise BlindError(f"cannot read {file}: {words}") from None
        words = words if words.startswith("is ") else f"cannot be read: {words}"
        return BrokenPipe(folder.name, folder, Problem(message=words, file=str(file), hint=_HINTS.get(number or 0)))
    return declare(raw, folder=folder, default_agent=default_agent)


def write_pipe(file: Path, text: str) -> None:
    """Replace a file atomically. A link stays one: what it leads to is replaced, and keeps mode and owner. Blocking.

    Raises DiskError: it cannot be written; the old file is as it was.
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
    kind: ChangeKind
    name: str


class _Reading(NamedTuple):
    """What is known of a folder; `doubted_at` (monotonic): since when its file makes no sense, or is not there."""

    declared: Declared
    stamp: _Stamp
    doubted_at: float | None = None


class PipeCatalog:
    """The pipes of one directory. `refresh` blocks and may be called in any thread; the rest touches no file.

    Args:
        pipes_dir: Folders of pipes; missing is empty.
        default_agent: Of pipes that name none.

    Attributes:
        pipes: What the last look saw, by name, sorted; broken ones included.
        trouble: Why the directory could not be looked at the last time.
    """

    def __init__(self, pipes_dir: Path, *, default_agent: str = DEFAULT_AGENT) -> None:
        self.pipes_dir = pipes_dir
        self.pipes: Mapping[str, Declared] = {}
        self.trouble: str | None = None
        self._default_agent = default_agent
        self._lock = threading.Lock()
        self._readings: dict[str, _Reading] = {}

    @property
    def unsettled(self) -> bool:
        """Whether another look soon will know more of a file."""
        return any(each.doubted_at is not None for each in tuple(self._readings.values()))

    def reconfigure(self, default_agent: str) -> None:
        """Take a setting; where it is another, the next look reads everything again."""
        with self._lock:
            if default_agent != self._default_agent:
                self._default_agent = default_agent
                self._readings = {name: each._replace(stamp=None) for name, each in self._readings.items()}

    def declared(self, name: str) -> Declared:
        """Return a pipe, broken or not. Raises UnknownUnitError: there is none of that name; the nearest is named."""
        found = self.pipes.get(name)
        if found is None:
            detail = f"there is no pipe {shown(name)} in {self.pipes_dir}{did_you_mean(name, self.pipes)}"
            raise UnknownUnitError(detail, hint="pxctl pipe list", unit=f"pipe:{name[:100]}")
        return found

    def fresh(self, name: str) -> Declared | None:
        """Return a pipe as its file stands now, even if it does not read: one stat, and a read where it changed.

        Blocking. None where there is none; what it finds is told as a change by the next `refresh`.
        """
        known = self._readings.get(name)
        if known is None and name_trouble(name):
            return None
        try:
            stamp = _stamp(f"{self.pipes_dir}/{name}/{PIPE_FILE}")
            found = known.declared if known and stamp is not None and stamp == known.stamp else self._read(name)
        except (FileNotFoundError, BlindError):  # away for a moment, perhaps
            return known and known.declared
        return known.declared if known is not None and known.declared == found else found

    def refresh(self) -> tuple[Change, ...]:
        """Look at the directory, read what changed, and say what did, by name. Each change is told once."""
        with self._lock:
            try:
                with os.scandir(self.pipes_dir) as found:
                    names = sorted(each.name for each in found if not each.name.startswith("."))
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
            if changes or not self.pipes:
                self.pipes = {name: each.declared for name, each in after.items()}
            return changes

    def _look(self, name: str, known: _Reading | None) -> _Reading | None:
        """Return what is to be known of a folder now; None when it holds no pipe."""
        found, stamp, age = None, None, 0.0
        try:
            stamp = _stamp(f"{self.pipes_dir}/{name}/{PIPE_FILE}")
            if known is not None and stamp is not None and stamp == known.stamp:
                return known if known.doubted_at is None else known._replace(doubted_at=None)
            age = 0.0 if stamp is None else abs(time.time() - stamp[3] / 1e9)
            found = self._read(name)
        except FileNotFoundError:
            if known is None:
                return None
        except BlindError as error:
            self.trouble = str(error)
            return known and known._replace(stamp=None)
        if known is not None and known.declared == found:
            return known._replace(stamp=stamp, doubted_at=None)
        if known is not None and (found is None or isinstance(found, BrokenPipe)):
            now = time.monotonic()
            since = now - age if known.doubted_at is None else known.doubted_at
            if now - since < SETTLE_SECONDS:
                return known._replace(doubted_at=since)
        return None if found is None else _Reading(found, stamp)

    def _read(self, name: str) -> Declared:
        return read_pipe(self.pipes_dir / name, default_agent=self._default_agent)


def _stamp(path: str) -> _Stamp:
    """Take the stamp of a file, following links; a link that leads nowhere is a file that has none.

    Raises FileNotFoundError: there is no such file.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        os.lstat(path)
        return None
    except NotADirectoryError:
        raise FileNotFoundError(errno.ENOENT, "no folder", path) from None
    except OSError:
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
