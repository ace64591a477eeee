"""Which pipes are there? Folders under the pipes directory, read again when their `pipe.md`
changes.

A look costs a stat a pipe; a file is read only when its inode, size or change time is another, and
reported only when its bytes are. A broken pipe is listed with its problem and harms no other; what
it was before it broke is not used. A file that is not there while an editor puts another one in its
place is waited for: it is gone after `SETTLE_SECONDS`. When the directory itself cannot be looked
at, what was seen is kept: a network home that is away for a minute must not end what runs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from supervisord_py.config.documents import Problem, did_you_mean, read_bounded
from supervisord_py.config.trust import untrusted, untrusted_directory
from supervisord_py.errors import PxError, UnknownUnitError
from supervisord_py.pipes.definition import PIPE_FILE, declare
from supervisord_py.pipes.models import DEFAULT_AGENT, BrokenPipe, Declared
from supervisord_py.pipes.schedule import shown

SETTLE_SECONDS = 0.5
_Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Device, inode, size, change time (ns, which no program can set back); None where it cannot be
looked at.
"""


class DiskError(PxError, kind="disk", title="The pipes directory cannot be written"):
    """A file or folder of a pipe cannot be written."""


def read_pipe(folder: Path, *, default_agent: str = DEFAULT_AGENT) -> Declared:
    """Read the pipe of a folder, whose name is the pipe's; what is wrong makes it a broken one.

    Blocking.
    """
    file = folder / PIPE_FILE
    try:
        return declare(read_bounded(file), folder=folder, default_agent=default_agent)
    except (OSError, ValueError) as error:
        words = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        hint = "write one, mend the link that leads nowhere, or let its owner read it: chmod u+rX"
        return BrokenPipe(folder.name, folder, Problem(message=words, file=str(file), hint=hint))


def write_pipe(file: Path, text: str) -> None:
    """Replace a file atomically. A link stays one: what it leads to is replaced, and keeps its
    mode. Blocking.

    Raises DiskError: it cannot be written; the old file is as it was.
    """
    target = file.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with os.fdopen(descriptor, "wb") as opened:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            opened.write(text.encode())
            opened.flush()
            os.fsync(descriptor)
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        detail = f"cannot write {file}: {error.strerror or error}"
        raise DiskError(detail, hint="pxctl doctor", unit=f"pipe:{file.parent.name}") from None


class PipeCatalog:
    """The pipes of one directory.

    `refresh` blocks and may be called in any thread; the rest touches no file.
    """

    def __init__(self, pipes_dir: Path, *, default_agent: str = DEFAULT_AGENT) -> None:
        self.pipes_dir = pipes_dir
        # what the last look saw, by name, sorted; broken ones included
        self.pipes: Mapping[str, Declared] = {}
        self.trouble: str | None = None  # why the directory could not be looked at the last time
        self._default_agent = default_agent
        self._lock = threading.Lock()
        self._stamps: dict[str, _Stamp] = {}  # of the files as they were read
        self._missed_at: dict[str, float] = {}  # since when a file is not there; monotonic

    def reconfigure(self, default_agent: str) -> None:
        """Take a setting; where it is another, the next look reads everything again."""
        with self._lock:
            if default_agent != self._default_agent:
                self._default_agent = default_agent
                self._stamps.clear()

    def declared(self, name: str) -> Declared:
        """Return a pipe, broken or not.

        Raises UnknownUnitError: there is none of that name; the nearest is named.
        """
        found = self.pipes.get(name)
        if found is None:
            detail = (
                f"there is no pipe {shown(name)} in "
                f"{self.pipes_dir}{did_you_mean(name, self.pipes)}"
            )
            raise UnknownUnitError(detail, hint="pxctl pipe list", unit=f"pipe:{name[:100]}")
        return found

    def is_current(self, name: str) -> bool:
        """Say whether a pipe's file is the one that was read: one stat."""
        known = self._stamps.get(name) if name in self.pipes else None
        if known is not None and self._untrusted(name) is not None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return known is not None and self._stamp(name) == known
        return False

    def refresh(self) -> list[tuple[str, str]]:
        """Look at the directory, read what changed; return what became of each that did, by name,
        and its name.

        Words are added, changed, removed, broken (new and so, become so, or in another way),
        mended. Each is told once.
        """
        with self._lock:
            try:
                with os.scandir(self.pipes_dir) as found:
                    names = sorted(each.name for each in found if not each.name.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                names = []
            except OSError as error:
                self.trouble = f"cannot look into {self.pipes_dir}: {error.strerror}"
                return []
            self.trouble = None
            # One whose folder is gone as a whole was removed by somebody: there is nothing to wait
            # for.
            before, after = (
                self.pipes,
                {name: each for name in names if (each := self._look(name)) is not None},
            )
            changes = []
            for name in sorted(before.keys() | after.keys()):
                old, new = before.get(name), after.get(name)
                if new is None:
                    changes.append(("removed", name))
                elif new is not old and isinstance(new, BrokenPipe):
                    changes.append(("broken", name))
                elif new is not old:
                    word = (
                        "added"
                        if old is None
                        else "mended"
                        if isinstance(old, BrokenPipe)
                        else "changed"
                    )
                    changes.append((word, name))
            if changes:
                self.pipes = after
            return changes

    def _look(self, name: str) -> Declared | None:
        """Return the pipe of a folder as it is now; None when it holds none."""
        known = self.pipes.get(name)
        try:
            stamp = self._stamp(name)
        except FileNotFoundError:
            self._stamps.pop(name, None)
            missed = time.monotonic() - self._missed_at.setdefault(name, time.monotonic())
            return known if missed < SETTLE_SECONDS else None
        self._missed_at.pop(name, None)
        if (trouble := self._untrusted(name)) is not None:
            # it is read once that is mended, which may change nothing of the file
            self._stamps[name] = None
            hint = (
                "chown it to the daemon's user, and take the right to write from others: chmod go-w"
            )
            folder = self.pipes_dir / name
            unsafe = BrokenPipe(
                name, folder, Problem(message=trouble, file=str(folder / PIPE_FILE), hint=hint)
            )
            return known if known == unsafe else unsafe
        if known is not None and stamp is not None and stamp == self._stamps.get(name):
            return known
        found = read_pipe(self.pipes_dir / name, default_agent=self._default_agent)
        # One that could not be read may be readable without a change of the file.
        self._stamps[name] = None if isinstance(found, BrokenPipe) and not found.digest else stamp
        return known if known == found else found

    def _untrusted(self, name: str) -> str | None:
        """Return why a pipe is not run: somebody else could have written it."""
        folder = f"{self.pipes_dir}/{name}"
        return (
            untrusted_directory(self.pipes_dir)
            or untrusted(folder)
            or untrusted(f"{folder}/{PIPE_FILE}")
        )

    def _stamp(self, name: str) -> _Stamp:
        """Take the stamp of a pipe's file, following links; a link that leads nowhere is a file
        that has none.

        Raises FileNotFoundError: there is no such file.
        """
        path = f"{self.pipes_dir}/{name}/{PIPE_FILE}"
        try:
            found = os.stat(path)
        except FileNotFoundError:
            os.lstat(path)
            return None
        except NotADirectoryError:
            raise FileNotFoundError(path) from None
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
