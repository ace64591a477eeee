"""The file of the ledger: its tables and how they came to be, how it is opened, what is forgotten,
and when.

Laws: a file of any older version becomes the present one or stays exactly as it was; a file of a
newer version is refused, because an older program would lose what it does not understand. `PRAGMA
user_version` holds the number. Nobody else can ever read the files, under any umask. A damaged file
is moved aside, never deleted, and an empty one is begun. An error while opening counts as damage,
except errors of the disk, of permissions and of locks.

The time to open does not grow with the file: a large one is checked page by page only after an
unclean end, and then beside the work (`Ledger.check_later`). What was not found then is found by
the query that meets it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from supervisord_py.errors import EXIT_BAD_SETTINGS, ConfigError
from supervisord_py.ledger import place

# Numbered steps, each in its own transaction, never edited once released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE instances (
            key TEXT PRIMARY KEY, unit TEXT NOT NULL, pid INTEGER, start_time INTEGER, boot_id TEXT,
            started_at REAL NOT NULL, ready_at REAL, ended_at REAL, reason TEXT, code INTEGER, signal INTEGER,
            verdict TEXT, max_rss_bytes INTEGER, cpu_seconds REAL, start_method TEXT, port INTEGER,
            log_position INTEGER, log_end INTEGER, spec_digest TEXT) STRICT""",
        "CREATE INDEX instances_unit ON instances (unit, started_at)",
        "CREATE INDEX instances_open ON instances (key) WHERE ended_at IS NULL",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY, unit TEXT NOT NULL, instance TEXT, started_at REAL NOT NULL, ended_at REAL,
            outcome TEXT, status INTEGER, error_kind TEXT, cold_start_ms REAL, duration_seconds REAL,
            request_id TEXT) STRICT""",
        "CREATE INDEX runs_unit ON runs (unit, id)",
        "CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT""",
        "CREATE INDEX events_unit ON events (unit, id)",
        "CREATE TABLE pins (unit TEXT PRIMARY KEY, forever INTEGER NOT NULL, pinned_at REAL NOT NULL) STRICT",
        """CREATE TABLE unit_state (
            unit TEXT PRIMARY KEY, state TEXT NOT NULL, facts TEXT NOT NULL, last_used REAL,
            restarts INTEGER NOT NULL, updated_at REAL NOT NULL) STRICT""",
        """CREATE TABLE idempotency (
            key TEXT NOT NULL, route TEXT NOT NULL, body_digest TEXT NOT NULL, status INTEGER, content_type TEXT,
            body BLOB, created_at REAL NOT NULL, PRIMARY KEY (key, route)) STRICT""",
        "CREATE INDEX idempotency_age ON idempotency (created_at)",
    ),
    (
        """CREATE TABLE kernel_sessions (
            id TEXT PRIMARY KEY, name TEXT NOT NULL, cwd TEXT NOT NULL, interpreter TEXT NOT NULL,
            backend TEXT NOT NULL, language TEXT NOT NULL, owner TEXT NOT NULL, created_at REAL NOT NULL,
            state TEXT NOT NULL, kernelspec TEXT, last_used REAL, reason TEXT, restarts INTEGER NOT NULL,
            instance TEXT, failure TEXT) STRICT""",
        "CREATE INDEX kernel_sessions_name ON kernel_sessions (name)",
        """CREATE TABLE kernel_cells (
            id TEXT PRIMARY KEY, session TEXT NOT NULL, call TEXT NOT NULL, ordinal INTEGER NOT NULL,
            code TEXT NOT NULL, status TEXT NOT NULL, queued_at REAL NOT NULL, started_at REAL NOT NULL, instance TEXT,
            title TEXT, ended_at REAL, duration_seconds REAL, execution_count INTEGER,
            total_bytes INTEGER NOT NULL DEFAULT 0,
            truncated INTEGER NOT NULL DEFAULT 0, lossy INTEGER NOT NULL DEFAULT 0, error TEXT, variables TEXT,
            steps TEXT NOT NULL DEFAULT '[]') STRICT""",
        "CREATE INDEX kernel_cells_session ON kernel_cells (session)",
        "CREATE INDEX kernel_cells_open ON kernel_cells (id) WHERE ended_at IS NULL",
    ),
    (
        """CREATE TABLE pipe_executions (
            id INTEGER PRIMARY KEY, pipe_name TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'queued',
            "trigger" TEXT NOT NULL, queue_group TEXT NOT NULL, queued_at TEXT NOT NULL,
            agent TEXT NOT NULL DEFAULT 'pi', model TEXT, provider TEXT, preset_id TEXT, not_before TEXT,
            started_at TEXT, finished_at TEXT, queue_wait_ms INTEGER, duration_ms INTEGER, timeout_seconds REAL,
            pid INTEGER, start_time INTEGER, boot_id TEXT, instance TEXT, trigger_event TEXT, trigger_key TEXT,
            api_port INTEGER, context_start TEXT, context_end TEXT, exit_code INTEGER, signal INTEGER,
            error_type TEXT, error_message TEXT, retry_of INTEGER, retry_count INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
            cache_read_tokens INTEGER NOT NULL DEFAULT 0, cache_write_tokens INTEGER NOT NULL DEFAULT 0,
            total_tokens INTEGER NOT NULL DEFAULT 0, cost REAL NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0,
            output_dir TEXT, session_path TEXT, agent_version TEXT, incomplete INTEGER NOT NULL DEFAULT 0,
            stdout_bytes INTEGER NOT NULL DEFAULT 0, stderr_bytes INTEGER NOT NULL DEFAULT 0,
            lost_bytes INTEGER NOT NULL DEFAULT 0, invalid_utf8 INTEGER NOT NULL DEFAULT 0,
            plan TEXT, preset_snapshot TEXT, rendered_prompt TEXT, progress TEXT, stdout TEXT, stderr TEXT) STRICT""",
        "CREATE INDEX pipe_executions_status ON pipe_executions (pipe_name, status)",
        "CREATE UNIQUE INDEX pipe_executions_running ON pipe_executions (pipe_name) WHERE status = 'running'",
        "CREATE INDEX pipe_executions_waiting ON pipe_executions (queued_at, id) WHERE status = 'queued'",
        "CREATE INDEX pipe_executions_queued ON pipe_executions (pipe_name, queued_at DESC)",
        "CREATE INDEX pipe_executions_history ON pipe_executions (id, pipe_name, status, queued_at)",
        "CREATE INDEX pipe_executions_of_pipe ON pipe_executions (pipe_name, id, status, queued_at)",
        "CREATE INDEX pipe_executions_usage ON pipe_executions (started_at, pipe_name, total_tokens, cost)",
        """CREATE TABLE pipe_scheduler_state (
            pipe_name TEXT PRIMARY KEY, last_run_at TEXT, last_success_at TEXT,
            consecutive_failures INTEGER NOT NULL DEFAULT 0, enabled INTEGER, enabled_file INTEGER, muted INTEGER,
            schedule TEXT, anchor_at TEXT, last_due TEXT, occurrences INTEGER NOT NULL DEFAULT 0,
            last_context_end TEXT, last_decision TEXT, last_decision_at TEXT, notified INTEGER NOT NULL DEFAULT 0,
            first_seen_at TEXT) STRICT""",
        """CREATE TABLE pipe_claims (
            pipe_name TEXT NOT NULL, event_name TEXT NOT NULL, event_key TEXT NOT NULL, claimed_at TEXT NOT NULL,
            execution INTEGER, PRIMARY KEY (pipe_name, event_name, event_key)) STRICT""",
        "CREATE INDEX pipe_claims_age ON pipe_claims (claimed_at)",
        "CREATE INDEX pipe_claims_event ON pipe_claims (event_name, event_key)",
        "CREATE INDEX pipe_claims_execution ON pipe_claims (execution)",
    ),
    ("ALTER TABLE kernel_cells ADD COLUMN timeout_seconds REAL",),
    ("ALTER TABLE instances ADD COLUMN memory_peak_bytes INTEGER",),
    ("DROP TABLE runs",),  # a run is an event
    # Each of them is written anew with each change of an execution; nothing, or little, is asked of
    # them.
    tuple(
        f"DROP INDEX pipe_executions_{name}" for name in ("status", "queued", "history", "usage")
    ),
    # What a start asks must not grow with the history.
    (
        "CREATE INDEX instances_interrupted ON instances (ended_at) WHERE reason = 'interrupted'",
        "CREATE INDEX idempotency_open ON idempotency (key) WHERE status IS NULL",
    ),
    # What happens often has a table, and limits, of its own: it must not push out what is rare.
    (
        """CREATE TABLE run_events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT""",
        "CREATE INDEX run_events_unit ON run_events (unit, id)",
        """CREATE TABLE failure_events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT""",
        "CREATE INDEX failure_events_unit ON failure_events (unit, id)",
        """CREATE TABLE failed_run_events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT""",
        "CREATE INDEX failed_run_events_unit ON failed_run_events (unit, id)",
        """INSERT INTO failed_run_events SELECT id, time, unit, event, reason, instance, cause, facts FROM events
            WHERE event IN ('run_failed', 'execution_failed', 'execution_timed_out')
            OR (event = 'run' AND instr(facts, '"outcome":"') > 0 AND instr(facts, '"outcome":"completed"') = 0
                AND instr(facts, '"outcome":"cancelled"') = 0)""",
        """INSERT INTO run_events SELECT id, time, unit, event, reason, instance, cause, facts FROM events
            WHERE (event = 'run' OR event GLOB 'execution_*') AND id NOT IN (SELECT id FROM failed_run_events)""",
        """INSERT INTO failure_events SELECT id, time, unit, event, reason, instance, cause, facts FROM events
            WHERE event IN ('start_failed', 'died', 'interrupted', 'survivors', 'unassigned', 'log_degraded',
                'runtime_limit', 'pipe_broken', 'reload_refused', 'rolled_back', 'keeper_lost', 'ledger_degraded',
                'ledger_damaged', 'ledger_rebuilt', 'ledger_rows_unreadable', 'ledger_wishes_lost')
            OR (reason IN ('memory_limit', 'oom_kill', 'runtime_limit', 'cpu_limit', 'watchdog', 'timeout',
                'readiness_timeout', 'early_exit', 'spawn_failed', 'interrupted')
                AND event <> 'run' AND event <> 'run_failed' AND event NOT GLOB 'execution_*')""",
        "DELETE FROM events WHERE id IN (SELECT id FROM run_events)",
        "DELETE FROM events WHERE id IN (SELECT id FROM failed_run_events)",
        "DELETE FROM events WHERE id IN (SELECT id FROM failure_events)",
    ),
    # A cost of 0 without a source is not known.
    (
        "ALTER TABLE pipe_executions ADD COLUMN cost_source TEXT",
        "ALTER TABLE pipe_executions ADD COLUMN warnings TEXT",
    ),
)
VERSION = len(MIGRATIONS)
EVENT_TABLES = ("run_events", "events", "failure_events", "failed_run_events")
"""Together they have each event once, and ids that no two of them share."""
_ALL_EVENTS = " UNION ALL ".join(
    f"SELECT id, time, unit, event, reason, instance, cause, facts, '{table}' AS journal FROM main.{table}"  # noqa: S608  # our own words
    for table in EVENT_TABLES
)
AT_OPEN = "UPDATE idempotency SET status = 0 WHERE status IS NULL"
"""What a start finds unfinished was cut off: nobody works on it any more."""
_DAY = 86_400.0
SMALL_BYTES = 8 * 1024 * 1024
"""A file of at most this size is checked at each opening: that takes a few milliseconds."""
_PRIVATE = 0o600
_BUSY_MILLISECONDS = 5000
_REFUSED = frozenset({
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH,
})  # fmt: skip
"""The file, or its folder, is not to be written: at the opening that stays so until somebody
changes it.
"""
_PASSING = _REFUSED | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
"""What passes, or is put right, without another file."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SPARE_DESCRIPTORS = 8  # what SQLite opens beside the main file, and some more


class TableLimit(msgspec.Struct, frozen=True):
    """At most so many rows, none older than so many seconds."""

    over: str  # when a row of it was over, as Unix seconds; NULL while it is not
    rows: int = 100_000
    age_seconds: float = 90 * _DAY


_SESSION_OVER = "iif(state IN ('stopped', 'failed'), coalesce(last_used, created_at), NULL)"
LIMITS = {
    **{table: TableLimit("time") for table in EVENT_TABLES},
    "instances": TableLimit("ended_at"),
    "kernel_cells": TableLimit("ended_at", 20_000),
    "kernel_sessions": TableLimit(_SESSION_OVER, 1_000),
    "idempotency": TableLimit("iif(status IS NULL, NULL, created_at)", age_seconds=_DAY),
    "pipe_claims": TableLimit(
        "round((julianday(claimed_at) - 2440587.5) * 86400, 3)", age_seconds=7 * _DAY
    ),
}


class LedgerVersionError(ConfigError):
    """A newer version of the program wrote the ledger; trying again without a change is
    pointless.
    """

    exit_code = EXIT_BAD_SETTINGS


def _code(error: BaseException) -> int:
    """Return the primary result code of SQLite that an error carries, 0 where it carries none."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0


def is_locked(error: BaseException) -> bool:
    """Tell whether another process holds the file locked."""
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def of_the_disk(error: BaseException, *, or_damage: bool = True) -> bool:
    """Say whether an error is the disk's (or the file's) rather than the operation's."""
    return _code(error) in _PASSING or (or_damage and is_damage(error))


def is_damage(error: BaseException) -> bool:
    """Say whether SQLite met content that is no sound database."""
    return _code(error) in _DAMAGE


_DAMAGED_TEXT = object()
"""What stands for a text that is not UTF-8."""


def _text_or_damage(raw: bytes) -> object:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _DAMAGED_TEXT


def readable_rows(
    connection: sqlite3.Connection, sql: str, values: Sequence[object] = ()
) -> tuple[list[tuple[Any, ...]], int]:
    """Return the rows of a query whose texts are all UTF-8, and how many others there are.

    Raises sqlite3.Error.
    """
    try:
        return connection.execute(sql, values).fetchall(), 0
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        # The module says so of text that is not UTF-8, but with no code by which to tell it from
        # other errors.
        if of_the_disk(error):
            raise
    rows = []
    unreadable = 0
    factory = connection.text_factory
    connection.text_factory = _text_or_damage
    try:
        for row in connection.execute(sql, values):
            if any(cell is _DAMAGED_TEXT for cell in row):
                unreadable += 1
            else:
                rows.append(row)
    finally:
        connection.text_factory = factory
    return rows, unreadable


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; transactions are begun by hand.

    It may be used in any one thread.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            # Made anew with each connection: in the file its text could be damaged.
            connection.execute(f"CREATE TEMP VIEW all_events AS {_ALL_EVENTS}")
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            # What is applied and not committed stays in memory: a full disk is noticed by the
            # commit alone.
            connection.execute("PRAGMA cache_spill = OFF")
            connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def ended_uncleanly(path: Path) -> bool:
    """Say whether who had the file open last did not close it: the last one to do so removes the
    write-ahead log.
    """
    return path.with_name(f"{path.name}-wal").exists()


def open_for_writing(path: Path, now: float) -> tuple[sqlite3.Connection, dict[str, Any] | None]:
    """Open, check and migrate. A damaged file becomes `NAME.corrupt-TIME` (`now`: Unix seconds), an
    empty one is begun.

    Returns the connection, and where a damaged file is now (`moved_to`) and why (`detail`).

    Raises LedgerUnusableError: it cannot be used as it lies there; LedgerVersionError: a newer
    program wrote it; sqlite3.Error, OSError: the disk, or a lock, does not let it be opened at
    present.
    """
    place.check_place(path)
    try:
        return _open_checked(path), None
    # SQLite quotes the file in its messages, whatever it holds
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if of_the_disk(error, or_damage=False):
            raise _refusal(path, error) from error
        damage = str(error)
    moved = place.move_aside(path, now)
    return _open_checked(path), {"moved_to": str(moved), "detail": damage}


def inspect(path: Path) -> str:
    """Look at the ledger as a start would, and change nothing; return one sentence about it.

    Raises LedgerUnusableError, LedgerVersionError: no start can use it; OSError: it cannot be
    looked at at present.
    """
    place.check_place(path)
    if not path.exists():
        return f"there is no ledger {path} yet"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None
        )
        try:
            version = refuse_newer(connection, str(path))
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if of_the_disk(error, or_damage=False):
            refusal = _refusal(path, error)
            raise (
                refusal if not isinstance(refusal, sqlite3.Error) else OSError(str(refusal))
            ) from error
        return f"the ledger {path} is damaged ({error}); the next start moves it aside"
    return f"the ledger {path} has schema version {version}"


def _refusal(path: Path, error: Exception) -> Exception:
    """Return what to raise for a file that cannot be opened: the error itself where that may
    pass.
    """
    if _code(error) not in _REFUSED or _is_short_of_descriptors():
        return error
    return place.unusable(path, f"SQLite says: {error}", f"ls -la {path.parent}")


def _is_short_of_descriptors() -> bool:
    """Say whether too few files can be opened: SQLite does not tell that from a file that cannot
    be.
    """
    opened = list[int]()
    try:
        while len(opened) < _SPARE_DESCRIPTORS:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return True
    finally:
        for fd in opened:
            os.close(fd)
    return False


def _open_checked(path: Path) -> sqlite3.Connection:
    try:
        # SQLite gives the side files that it makes the mode of the main file, whatever the umask.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            # an older or copied file, or a umask that took even our own bits
            os.fchmod(fd, _PRIVATE)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
    except OSError as error:
        raise place.refusal_of(path, error) from error
    connection = connect(path)
    try:
        if size <= SMALL_BYTES:
            check_pages(connection)
        migrate(connection, str(path))
        _check_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_pages(connection: sqlite3.Connection) -> None:
    """Look at every page of the file. Raises sqlite3.DatabaseError: it is damaged."""
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict is not None and verdict[0] != "ok":
        raise sqlite3.DatabaseError(str(verdict[0]))


# -- what every ledger of this version has ---------------------------------------------------------


class _Shape(NamedTuple):
    # by table: its columns, each with its place in the primary key (0: none)
    columns: dict[str, dict[str, int]]
    indexes: dict[str, str]  # by name: the statement that makes it


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
_COLUMNS = "SELECT name, pk FROM pragma_table_info(?)"


def _shape_of(connection: sqlite3.Connection) -> _Shape:
    tables = [str(name) for (name,) in connection.execute(_TABLES)]
    columns = {table: dict(connection.execute(_COLUMNS, (table,)).fetchall()) for table in tables}
    return _Shape(columns, dict(connection.execute(_INDEXES).fetchall()))


@cache
def _expected_shape() -> _Shape:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(connection)
        return _shape_of(connection)
    finally:
        connection.close()


def _check_tables(connection: sqlite3.Connection) -> None:
    """Check that tables and columns are there, and make indexes anew that are missing or not as
    they were made.

    Raises sqlite3.DatabaseError: something is missing that cannot be made again.
    """
    expected, present = _expected_shape(), _shape_of(connection)
    for table, columns in expected.columns.items():
        if table not in present.columns:
            raise sqlite3.DatabaseError(f"table {table} is missing")
        for column, key_place in columns.items():
            if present.columns[table].get(column) != key_place:
                raise sqlite3.DatabaseError(
                    f"column {column} of table {table} is missing, or is not as it was made"
                )
    for name, statement in expected.indexes.items():
        if present.indexes.get(name) != statement:
            # Queries name their index: with another one they have no solution.
            connection.execute(f'DROP INDEX IF EXISTS "{name}"')
            connection.execute(statement)


def migrate(connection: sqlite3.Connection, path: str = "", upto: int = VERSION) -> int:
    """Bring a file to the present version; return how many steps that took; errors as of
    `refuse_newer`.
    """
    first = refuse_newer(connection, path)
    for number, statements in enumerate(MIGRATIONS[first:upto], first + 1):
        with connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            for statement in (*statements, f"PRAGMA user_version = {number}"):
                connection.execute(statement)
    return max(0, upto - first)


def refuse_newer(connection: sqlite3.Connection, path: str) -> int:
    """Return the version of a file.

    Raises LedgerVersionError: it is newer; sqlite3.Error: there is no such version.
    """
    first = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if first > VERSION:
        detail = (
            f"the ledger {path} has schema version {first}; this pxd knows versions up to {VERSION}"
        )
        hint = f"install the newer supervisord-py again; to begin an empty ledger: mv {path} {path}.newer"
        raise LedgerVersionError(detail, hint=hint, file=path, line=None, pointer=None)
    if first < 0:
        raise sqlite3.DatabaseError(f"the schema version is {first}")
    return first
