"""What must outlive the ledger: the ids that were given away, and what users set (pins, pipes
turned off or on).

It lies in a small JSON file beside the ledger, `pxd.kept.json`, which is written anew, whole,
whenever it changes: a draft, fsync, rename, fsync of the folder. It is a copy: a ledger that is
sound is always right. It counts when the ledger is gone or was damaged, and then the new ledger
begins with it. A file that is missing or damaged is never a reason not to start; ids then go on
from the clock, which is beyond all that were ever given.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from supervisord_py.ledger.schema import EVENT_TABLES, readable_rows

VERSION = 1
MAX_BYTES = 64 * 1024 * 1024
EVENT_RESERVE = 1_000_000_000
"""Ids of events that a start may give away without another write of the file."""
_PRIVATE = 0o600
_Id = Annotated[int, Meta(ge=0, lt=2**53)]  # what JSON carries exactly


class PipeWish(msgspec.Struct, frozen=True):
    """What was set for a pipe on this machine, and what its file said then."""

    enabled: bool
    enabled_file: bool | None = None


class Kept(msgspec.Struct, frozen=True):
    """The content of the file."""

    version: int = VERSION
    executions: _Id = 0  # the greatest id of an execution that was given away
    events: _Id = 0  # no greater id of an event was given away
    pins: dict[str, bool] = {}  # by unit: whether it is pinned for ever
    unpinned: tuple[str, ...] = ()  # units whose own pin was taken back
    pipes: dict[str, PipeWish] = {}
    damage: dict[str, str] = {}  # by file name of a ledger that was moved aside: why
    reported: tuple[str, ...] = ()  # the same names, once an event has reported them


def path_beside(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.stem}.kept.json")


def read(path: Path) -> tuple[Kept | None, str | None]:
    """Return what the file holds, None where there is none; and what is wrong with it, None
    where it is sound.
    """
    try:
        # A FIFO would never answer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            kept = msgspec.json.decode(file.read(MAX_BYTES), type=Kept)
    except FileNotFoundError:
        return None, None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return None, f"{path} cannot be read: {error}"
    if kept.version != VERSION:
        return None, f"{path} has version {kept.version}, not {VERSION}"
    return kept, None


def write(path: Path, kept: Kept) -> None:
    """Replace the file, so that a crash leaves the old or the new one whole.

    Blocking. Raises OSError.
    """
    draft = path.with_name(f"{path.name}.draft")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        with open(os.open(draft, flags, _PRIVATE), "wb") as file:
            file.write(msgspec.json.encode(kept, order="sorted"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders
            raise
    finally:
        os.close(folder)


def highest_number(folders: Iterable[Path]) -> int:
    """Return the greatest number that is the name of something in one of these folders, 0 where
    there is none.
    """
    highest = 0
    for folder in folders:
        with contextlib.suppress(OSError):
            numbers = (
                int(name)
                for name in os.listdir(folder)
                if name.isascii() and name.isdigit() and len(name) < 16
            )
            highest = max(highest, *numbers, 0)
    return highest


# -- between the file and a ledger -----------------------------------------------------------------

_PINS = "SELECT unit, forever FROM pins ORDER BY unit"
_PIPES = """SELECT pipe_name, enabled, enabled_file FROM pipe_scheduler_state
    WHERE enabled IS NOT NULL ORDER BY pipe_name"""
_UNPINNED = "SELECT unit FROM unit_state WHERE instr(facts, '\"unpinned\":true') > 0 ORDER BY unit"
_LAST_EXECUTION = "SELECT coalesce(max(id), 0) FROM pipe_executions"


def last_execution(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_LAST_EXECUTION).fetchone()[0])


def last_event(connection: sqlite3.Connection) -> int:
    """Return the greatest id of an event, 0 where there is none."""
    return max(_last_of(connection, table) for table in EVENT_TABLES)


def _last_of(connection: sqlite3.Connection, table: str) -> int:
    sql = f"SELECT coalesce(max(id), 0) FROM {table}"  # noqa: S608  # our own words
    return int(connection.execute(sql).fetchone()[0])


def _last_event_of_any_version(connection: sqlite3.Connection) -> int:
    """Do the same in a ledger that may be older: it has fewer tables of events."""
    there = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    return max(
        _last_of(connection, table) for table in EVENT_TABLES if table in there or table == "events"
    )


def _named_rows(connection: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query whose first column, a name, is sound."""
    rows, _ = readable_rows(connection, sql)
    return [row for row in rows if isinstance(row[0], str)]


def _read_pins(connection: sqlite3.Connection) -> dict[str, bool]:
    return {unit: bool(forever) for unit, forever in _named_rows(connection, _PINS)}


def _read_pipes(connection: sqlite3.Connection) -> dict[str, PipeWish]:
    wishes = {}
    for name, enabled, enabled_file in _named_rows(connection, _PIPES):
        wishes[name] = PipeWish(bool(enabled), None if enabled_file is None else bool(enabled_file))
    return wishes


def _read_unpinned(connection: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(unit for (unit,) in _named_rows(connection, _UNPINNED))


def with_wishes(kept: Kept, connection: sqlite3.Connection) -> Kept:
    """Return it with what users set, as the ledger has it now. Raises sqlite3.Error."""
    return msgspec.structs.replace(
        kept,
        pins=_read_pins(connection),
        unpinned=_read_unpinned(connection),
        pipes=_read_pipes(connection),
    )


def restore(kept: Kept, connection: sqlite3.Connection, now: float) -> None:
    """Begin a new ledger with what users set. `now`: Unix seconds."""
    connection.execute("BEGIN IMMEDIATE")
    for unit, forever in kept.pins.items():
        sql = "INSERT OR IGNORE INTO pins (unit, forever, pinned_at) VALUES (?, ?, ?)"
        connection.execute(sql, (unit, forever, now))
    for name, wish in kept.pipes.items():
        sql = (
            "INSERT OR IGNORE INTO pipe_scheduler_state (pipe_name, enabled, enabled_file) VALUES "
            "(?, ?, ?)"
        )
        connection.execute(sql, (name, wish.enabled, wish.enabled_file))
    for unit in kept.unpinned:
        sql = """INSERT OR IGNORE INTO unit_state (unit, state, facts, restarts, updated_at)
            VALUES (?, 'cold', ?, 0, ?)"""
        connection.execute(sql, (unit, json.dumps({"unpinned": True}, separators=(",", ":")), now))
    connection.execute("COMMIT")


def _open_moved(moved: Path) -> sqlite3.Connection:
    """Open a damaged ledger for reading; it stays as it is. Raises sqlite3.Error."""
    # Without a log of its own nothing needs to be written beside it; with one that log is part of
    # it.
    how = "mode=ro" if moved.with_name(f"{moved.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{moved.absolute().as_uri()}?{how}", uri=True, isolation_level=None)


_OPEN = "SELECT {columns} FROM pipe_executions WHERE status IN ('queued', 'running') ORDER BY id"


def carry_over(moved: Path, connection: sqlite3.Connection) -> int:
    """Copy the executions that wait or run, as far as they can be read, into a new ledger;
    return how many.
    """
    columns = ", ".join(
        f'"{row[1]}"' for row in connection.execute("PRAGMA table_info(pipe_executions)")
    )
    try:
        with contextlib.closing(_open_moved(moved)) as source:
            rows, _ = readable_rows(source, _OPEN.format(columns=columns))
    except (sqlite3.Error, UnicodeDecodeError):
        return 0
    marks = ", ".join("?" * (columns.count(",") + 1))
    sql = f"INSERT OR IGNORE INTO pipe_executions ({columns}) VALUES ({marks})"  # noqa: S608  # our own words
    carried = 0
    for row in rows:
        with contextlib.suppress(sqlite3.Error):  # a damaged value that its column does not take
            connection.execute(sql, row)
            carried += 1
    return carried


def salvage(moved: Path) -> tuple[Kept, bool]:
    """Return what can still be read of a damaged ledger that was moved aside, and whether that
    is all of it.
    """
    kept = Kept()
    is_whole = True
    try:
        connection = _open_moved(moved)
    except sqlite3.Error:
        return kept, False
    questions = {
        "executions": last_execution, "events": _last_event_of_any_version, "pins": _read_pins,
        "pipes": _read_pipes, "unpinned": _read_unpinned,
    }  # fmt: skip
    with contextlib.closing(connection):
        for name, question in questions.items():
            try:
                kept = msgspec.structs.replace(kept, **{name: question(connection)})
            except (sqlite3.Error, UnicodeDecodeError, ValueError, TypeError):
                is_whole = False
    return kept, is_whole
