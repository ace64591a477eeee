"""The files of the ledger: private from the first instant, opened alike everywhere, moved aside when broken.

Law: nobody else can ever read them, under any umask; a broken file is moved aside, never deleted, and the daemon starts
with an empty one. Whatever an opening meets is damage, but for what the disk, the permissions or another program did.
"""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from supervisord_py.ledger.migrations import migrate

if TYPE_CHECKING:
    from pathlib import Path

SIDE_FILES = ("-wal", "-shm")
_PRIVATE = 0o600
_BUSY_MILLISECONDS = 5000
_PASSING = frozenset({
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL,
})  # fmt: skip
"""What passes, or is put right, without another file."""


class Recovery(NamedTuple):
    """What was done about a damaged ledger: where the file is now, and what SQLite said of it."""

    moved_to: Path
    detail: str


def of_the_disk(error: BaseException, *, or_damage: bool = True) -> bool:
    """Say whether an error is the disk's (or the file's) rather than the operation's."""
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(code, int):
        return False
    return code & 0xFF in _PASSING or (or_damage and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; transactions are begun by hand. It may be used in any one thread."""
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


def open_for_writing(path: Path, now: float) -> tuple[sqlite3.Connection, Recovery | None]:
    """Open, check and migrate. A damaged file becomes `NAME.corrupt-TIME` (`now`: Unix seconds), an empty one is begun.

    Raises ConfigError: A newer program wrote it; sqlite3.Error, OSError: it cannot be opened, without being
    damaged.
    """
    try:
        return _open_checked(path), None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes the file in its messages, whatever it holds
        if of_the_disk(error, or_damage=False):
            raise
        damage = str(error)
    target = path.with_name(f"{path.name}.corrupt-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S.%fZ}")
    for suffix in ("", *SIDE_FILES):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(target.with_name(target.name + suffix))
    return _open_checked(path), Recovery(target, damage)


def _open_checked(path: Path) -> sqlite3.Connection:
    # SQLite gives the side files that it makes the mode of the main file, whatever the umask.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    os.fchmod(fd, _PRIVATE)  # an older or copied file, or a umask that took even our own bits
    os.close(fd)
    connection = connect(path)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found is not None and found[0] != "ok":
            raise sqlite3.DatabaseError(str(found[0]))
        migrate(connection, str(path))
    except BaseException:
        connection.close()
        raise
    return connection
