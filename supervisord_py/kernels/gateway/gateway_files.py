"""What is written down of the shared gateway, so that other control planes and daemons find and use it.

Law: `gateway.json` appears whole or not at all and names no secret; the token lies beside it, 0600. Who writes holds
`gateway.lock`. A file that does not make sense counts as none. Blocking file I/O, small.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.process.spec import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METADATA = "gateway.json"
LOCK = "gateway.lock"
USERS = "users"


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """A running gateway.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        pid, start_time, boot_id: Which process it is.
        token_file: Where the token lies.
        python: Interpreter that runs it.
        started_at: Unix seconds.
        daemon: Id of the daemon whose keeper holds it.
        instance: Its key there.
    """

    url: str
    pid: int
    start_time: int
    boot_id: str
    token_file: str
    python: str
    started_at: float
    daemon: str
    instance: str

    @property
    def identity(self) -> Identity:
        """The process, beyond reuse of its pid."""
        return Identity(self.pid, self.start_time, self.boot_id)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])


_KEYS = {
    "url": str,
    "pid": int,
    "start_time": int,
    "boot_id": str,
    "token_file": str,
    "pythonPath": str,
    "startedAt": float,
    "daemon": str,
    "instance": str,
}


class GatewayFiles:
    """The directory that all who share a gateway know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def metadata(self) -> Path:
        """`gateway.json`."""
        return self.folder / METADATA

    def prepare(self) -> None:
        """Make the directory, private."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # -- the gateway -------------------------------------------------------------------------------------------------

    def read(self) -> GatewayRecord | None:
        """Return what is written of the gateway; None where nothing sensible is."""
        try:
            members = json.loads(self.metadata.read_text(encoding="utf-8"))
            record = GatewayRecord(*(kind(members[key]) for key, kind in _KEYS.items()))
            return record if record.port > 0 and record.pid > 0 else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, record: GatewayRecord) -> None:
        """Write it, tmp and rename."""
        values = (
            record.url,
            record.pid,
            record.start_time,
            record.boot_id,
            record.token_file,
            record.python,
            record.started_at,
            record.daemon,
            record.instance,
        )
        self._place(self.metadata, json.dumps(dict(zip(_KEYS, values, strict=True)), indent=1) + "\n")

    def remove(self, instance: str) -> None:
        """Remove what is written of a gateway, unless another's is there by now."""
        record = self.read()
        if record is None or record.instance == instance:
            self.metadata.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.token_path(instance).unlink(missing_ok=True)

    def token_path(self, instance: str) -> Path:
        """Where the token of a gateway lies."""
        return self.folder / f"token-{instance}"

    def write_token(self, instance: str, token: str) -> Path:
        """Put a token away, 0600."""
        path = self.token_path(instance)
        self._place(path, token)
        return path

    def read_token(self, record: GatewayRecord) -> str | None:
        """Return the token of a gateway; None when its file is gone, or may be read by others."""
        try:
            fd = os.open(record.token_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        with os.fdopen(fd, encoding="ascii", errors="replace") as file:
            status = os.fstat(file.fileno())
            is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            return file.read().strip() or None if is_private else None

    def _place(self, path: Path, text: str) -> None:
        draft = self.folder / f".{secrets.token_hex(6)}"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    # -- who uses it -------------------------------------------------------------------------------------------------

    def register(self, daemon: str) -> int:
        """Say that a daemon uses the gateway; it does as long as the descriptor that is returned is open."""
        users = self.folder / USERS
        users.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(users / daemon, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        except OSError:
            os.close(fd)
            raise
        return fd

    def others(self, daemon: str) -> tuple[str, ...]:
        """Return the other daemons that use it; marks of dead ones are removed."""
        return tuple(name for name in self._users() if name != daemon and self._is_held(name))

    def _users(self) -> Iterator[str]:
        try:
            yield from sorted(os.listdir(self.folder / USERS))
        except OSError:
            return

    def _is_held(self, name: str) -> bool:
        path = self.folder / USERS / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)
