"""Which kernels at servers are ours: a note for each, so that a later control plane finds them, and none is forgotten.

Law: the note is there before the kernel is used and goes after the kernel is known to be gone; what has a note and no
session is deleted at its server. A note holds no token. Blocking file I/O, small: call it on a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1


@dataclass(frozen=True, slots=True)
class Held:
    """One kernel at a server.

    Attributes:
        instance: Key of its life; begins with the daemon's id and a dot.
        session_id: Whose it is: unit `kernel:<session id>`.
        kernel: Its id at the server.
        url: The server's address, without credentials.
        session: Of the websocket: the server replays what it kept only to the same one.
        started_at: Unix seconds.
        tag: Note of the room.
        facts: How the kernel named its process: pid and mark.
    """

    instance: str
    session_id: str
    kernel: str
    url: str
    session: str
    started_at: float
    tag: str = ""
    facts: tuple[str, ...] = ()

    @property
    def daemon(self) -> str:
        """The daemon that started it."""
        return self.instance.partition(".")[0]


class HeldKernels:
    """The notes in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, held: Held) -> None:
        """Write or replace a note."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{secrets.token_hex(6)}"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION, **asdict(held)}, file)
            draft.replace(self._path(held.instance))
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def read(self, instance: str) -> Held | None:
        """Return a note; None where there is none that makes sense."""
        return _read(self._path(instance))

    def of(self, daemon: str) -> tuple[Held, ...]:
        """Return the notes of one daemon, oldest first."""
        try:
            paths = sorted(self._folder.glob(f"{daemon}.*.json"))
        except OSError:
            return ()
        return tuple(held for path in paths if (held := _read(path)) is not None)

    def remove(self, instance: str) -> None:
        """Remove a note; that of none is removed already."""
        with contextlib.suppress(OSError):
            self._path(instance).unlink(missing_ok=True)

    def _path(self, instance: str) -> Path:
        return self._folder / f"{instance.replace('/', '_')}.json"


def _read(path: Path) -> Held | None:
    try:
        members = json.loads(path.read_text(encoding="utf-8"))
        if members.pop("version") != VERSION:
            return None
        return Held(**{**members, "facts": tuple(members.get("facts", ()))})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
