"""The place of a tool's `.venv` while it is rebuilt: the old one steps aside and comes back if the new one fails.

A virtual environment knows its own path, so the new one is built where it will live, with a marker file inside that
goes last. What an interrupted build left (marker, stepped-aside old one, half-deleted trees) is set right by the next.
Links are never followed when something is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError
from supervisord_py.tools.declaring.fingerprint import INCOMPLETE, SYNCED, VENV

if TYPE_CHECKING:
    from collections.abc import Iterator

PREVIOUS = ".venv.previous"
_DISCARDED = ".venv.discarded-"


class VenvPlace:
    """The `.venv` of one tool folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / VENV
        self._previous = folder / PREVIOUS

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude a second build of the same folder, also by another process.

        Raises:
            ConflictError: One is under way.
        """
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            name = self.folder.name
            raise ConflictError(f"tool:{name} is being synced already", unit=f"tool:{name}") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def repair(self) -> bool:
        """Set right what an interrupted build left; True when there was something."""
        interrupted = os.path.lexists(self.folder / INCOMPLETE)
        if interrupted:
            self._discard(self.venv)
        if os.path.lexists(self._previous):
            interrupted = True
            if os.path.lexists(self.venv):
                self._discard(self._previous)
            else:
                os.rename(self._previous, self.venv)
        return interrupted

    def begin(self) -> None:
        """Let the old environment step aside and mark the new one as incomplete."""
        if os.path.lexists(self.venv):
            os.rename(self.venv, self._previous)
        os.mkdir(self.venv, 0o700)
        self.mark()

    def mark(self) -> None:
        """Write the marker (again: some builders empty the folder first)."""
        Path(self.folder / INCOMPLETE).touch()

    def commit(self, source: str) -> None:
        """Declare the new environment complete; `source` is noted for people."""
        Path(self.folder / SYNCED).write_text(f"{source}\n", encoding="utf-8")
        os.unlink(self.folder / INCOMPLETE)
        if os.path.lexists(self._previous):
            self._discard(self._previous)

    def roll_back(self) -> None:
        """Take the new environment away and let the old one come back."""
        if os.path.lexists(self.venv):
            self._discard(self.venv)
        if os.path.lexists(self._previous):
            os.rename(self._previous, self.venv)

    def sweep(self) -> None:
        """Delete what was discarded; slow, so callers do it in a thread, and safe to be cut off."""
        for name in os.listdir(self.folder):
            if name.startswith(_DISCARDED):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        """Take a tree out of the way at once; a link loses the link only."""
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
        else:
            os.rename(path, self.folder / f"{_DISCARDED}{secrets.token_hex(4)}")
