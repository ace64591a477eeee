"""What is written down of the shared gateway, so that other control planes and daemons find and use it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from supervisord_py.errors import TimedOutError
from supervisord_py.kernels.gateway.roster import place
from supervisord_py.process import identity
from supervisord_py.process.spec import Identity, Liveness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

UNIT = "kernel:gateway"
LOCK_TRY_SECONDS = 0.05
_BUSY = (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR)


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """A running gateway, as `gateway.json` has it: no secret is in it.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        pid, start_time, boot_id: Which process it is.
        token_file: Where the token lies, 0600.
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
    def is_there(self) -> bool:
        """Whether this very process lives."""
        return identity.liveness(Identity(self.pid, self.start_time, self.boot_id)) is not Liveness.DEAD

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
    """The directory that all who share a gateway know. Who writes holds its lock. Blocking file I/O, small."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = folder / "gateway.json"

    def prepare(self) -> None:
        """Make the directory, private."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self) -> GatewayRecord | None:
        """Return what is written of the gateway; None where nothing sensible is."""
        try:
            members = json.loads(self.metadata.read_text(encoding="utf-8"))
            record = GatewayRecord(*(kind(members[key]) for key, kind in _KEYS.items()))
            return record if record.port > 0 and record.pid > 0 else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, record: GatewayRecord) -> None:
        """Write it down."""
        values = (getattr(record, name) for name in GatewayRecord.__dataclass_fields__)
        place(self.metadata, json.dumps(dict(zip(_KEYS, values, strict=True)), indent=1) + "\n")

    def remove(self, instance: str) -> None:
        """Remove what is written of a gateway, unless another's is there by now."""
        record = self.read()
        if record is None or record.instance == instance:
            self.metadata.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._token_path(instance).unlink(missing_ok=True)

    def write_token(self, instance: str, token: str) -> Path:
        """Put a token away."""
        path = self._token_path(instance)
        place(path, token)
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

    def _token_path(self, instance: str) -> Path:
        return self.folder / f"token-{instance}"

    @contextlib.asynccontextmanager
    async def locked(self, seconds: float) -> AsyncIterator[None]:
        """Hold the lock, which ends with its holder, however that ends.

        Raises:
            TimedOutError: Another daemon has held it for so long.
        """
        path = self.folder / "gateway.lock"
        give_up_at = asyncio.get_running_loop().time() + seconds
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _is_taken(fd):
                if asyncio.get_running_loop().time() >= give_up_at:
                    raise TimedOutError(
                        f"Timed out waiting for shared gateway lock: {path} is held for more than {seconds:g} s.",
                        hint="Another daemon is starting the gateway; see its log, and try again.",
                    )
                await asyncio.sleep(LOCK_TRY_SECONDS)
            yield
        finally:
            os.close(fd)


def _is_taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _BUSY:
            raise
        return False
    return True


def listens(pid: int, port: int) -> bool:
    """Say whether exactly this process listens on the port of 127.0.0.1: a listener that is not gets no token."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr == ("127.0.0.1", port) for each in connections)
