"""The files of the ledger: private from the first instant, opened alike everywhere, moved aside when broken.

Law: nobody else can ever read them, under any umask, and nothing that could still be read is deleted.
"""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SIDE_FILES = ("-wal", "-shm")
_PRIVATE = 0o600
_BUSY_MILLISECONDS = 5000


def make_private(path: Path) -> None:
    """Create the file when it is missing, and take it and its side files from everybody else.

    SQLite gives the side files that it makes the mode of the main file, whatever the umask.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    try:
        os.fchmod(fd, _PRIVATE)  # an older or copied file, or a umask that took even our own bits
    finally:
        os.close(fd)
    for suffix in SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.chmod(_PRIVATE)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; transactions are begun by hand. It may be used in any one thread.

    Raises:
        sqlite3.Error: The file cannot be opened or is not a ledger.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            # What is applied and not committed stays in memory: a full disk is noticed by the commit alone.
            connection.execute("PRAGMA cache_spill = OFF")
            connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def move_aside(path: Path, now: float) -> Path:
    """Rename a broken ledger and its side files to `NAME.corrupt-TIME`; return the new path of the main file."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    for suffix in SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    path.rename(target)
    return target
