"""The files of the ledger: private from the first instant, opened alike everywhere, moved aside when broken.

Law: nobody else can ever read them, under any umask; a broken file is moved aside, never deleted, and the daemon starts
with an empty one. Whatever an opening meets is damage, but for what the disk, the permissions or another program did.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from supervisord_py.ledger.migrations import check_version, migrate

if TYPE_CHECKING:
    from pathlib import Path

SIDE_FILES = ("-wal", "-shm")
_PRIVATE = 0o600
_BUSY_MILLISECONDS = 5000
_NOT_DAMAGE = frozenset(
    (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_PROTOCOL,
    )
)
"""What passes, or is put right, without another file."""
_PRIMARY_CODE = 0xFF


class DamagedError(Exception):
    """The file is no sound ledger. The message is SQLite's."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done about a damaged ledger: where the file is now, and what SQLite said of it."""

    moved_to: Path
    detail: str


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

    Raises sqlite3.Error: the file cannot be opened or is not a ledger.
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


def open_checked(path: Path) -> sqlite3.Connection:
    """Open, check and migrate; the writer's connection.

    Raises DamagedError: the file is damaged; ConfigError: A newer program wrote it; sqlite3.Error: it cannot be
    opened for another reason.
    """
    try:
        connection = connect(path)
        try:
            check_version(connection, str(path))
            _check(connection)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes the file in its messages, whatever it holds
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY_CODE in _NOT_DAMAGE:
            raise
        raise DamagedError(str(error)) from error
    return connection


def _check(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found is not None and found[0] != "ok":
        raise DamagedError(str(found[0]))


def begin_anew(path: Path, damage: DamagedError, now: float) -> tuple[sqlite3.Connection, Recovery]:
    """Move a damaged ledger aside and open an empty one; `now` is Unix seconds, for the name of the file."""
    moved = move_aside(path, now)
    make_private(path)
    return open_checked(path), Recovery(moved, str(damage))
