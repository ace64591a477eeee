"""Where one kernel's connection file and sockets lie: `run_dir/k/<digest of the session>/`,
private.

Paths and key are the session's, so that the sockets of Jupyter's clients find a replacement by
themselves, which is made when its predecessor is gone. What no living kernel has is swept. Nothing
outside of `run_dir/k` is ever removed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from supervisord_py.errors import ConfigError

FOLDER = "k"
FILE = "connection.json"
# folder of the sockets of kernels that were begun and not ordered yet: they are moved from there
PREPARED = "prepared"
SECRET = ".secret"  # noqa: S105  a file's name
"""From which the keys of all sessions follow: a session that is started again has the one that
its clients know.
"""
SOCKET_PATH_MAX = (104 if sys.platform == "darwin" else 108) - 1
"""Bytes of a socket's path, without its closing zero: unix(7), sys/un.h."""
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}
"""With `ipc` a port is only the end of the socket's name."""


class Connection(Struct, frozen=True):
    """Jupyter's connection file (0600), and what is in it.

    The key signs messages; it is not in repr.
    """

    file: Path
    key: str

    def __repr__(self) -> str:
        return f"Connection({self.file})"

    def endpoint(self, channel: str) -> str:
        return f"ipc://{self.file.parent}/s-{PORTS[channel]}"


def folder_of(run_dir: Path, session_id: str) -> Path:
    # short: a socket's path must be
    return run_dir / FOLDER / hashlib.sha256(session_id.encode()).hexdigest()[:12]


def make(run_dir: Path, session_id: str) -> Connection:
    """Make the folder (0700) and the connection file (0600); what a dead predecessor has left there
    goes.

    Raises ConfigError: the path would be too long for a socket; OSError: the folder cannot be made.
    """
    folder = folder_of(run_dir, session_id)
    longest = max(len(os.fsencode(folder / f"s-{number}")) for number in PORTS.values())
    if longest > SOCKET_PATH_MAX:
        room = SOCKET_PATH_MAX - (longest - len(os.fsencode(run_dir)))
        why = (
            f"its sockets' paths in {run_dir} would be {longest} bytes long, the system takes "
            f"{SOCKET_PATH_MAX}"
        )
        hint = (
            f"move the runtime directory to a path of at most {room} bytes (PX_HOME, or "
            "XDG_RUNTIME_DIR)"
        )
        raise ConfigError(
            f"the kernel cannot be started: {why}", hint=hint, unit=f"kernel:{session_id}"
        )
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = folder.parent / SECRET
    if not secret.exists():
        write_private(secret, secrets.token_bytes(32))
    key = hmac.digest(secret.read_bytes(), session_id.encode(), "sha256").hex()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    members = {"ip": f"{folder}/s", "key": key, "transport": "ipc"}
    members |= {"signature_scheme": "hmac-sha256", "kernel_name": ""}
    ports = {f"{channel}_port": number for channel, number in PORTS.items()}
    write_private(folder / FILE, json.dumps({**ports, **members}, indent=1).encode())
    return Connection(folder / FILE, key)


def read(file: Path) -> Connection:
    """Read a connection file. Raises OSError: it is not there; ValueError: it is none."""
    try:
        return Connection(file, str(json.loads(file.read_bytes())["key"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is no connection file: {error!r}") from error


def sweep(run_dir: Path, alive: Collection[str]) -> None:
    """Remove the folders of sessions that have no living kernel."""
    kept = {folder_of(run_dir, session) for session in alive}
    for folder in (run_dir / FOLDER).glob("*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)  # which leaves files and links alone


def write_private(path: Path, content: bytes) -> None:
    """Write a private file (0600) that appears whole or not at all. Blocking."""
    draft = path.with_name(f".{secrets.token_hex(6)}")
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_bytes(content)
    draft.replace(path)
