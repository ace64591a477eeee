"""The one thread that writes: takes what is queued, commits it together, and outlives a full disk.

What is posted waits a moment for company, so that a busy moment is one transaction; a daemon that is killed loses that
moment of runs and events, never of exits and executions, which somebody waits for.

Law: operations take effect in the order in which they were queued, each whole or not at all, and one that fails alone
fails only for whoever asked. When the disk takes nothing, what is queued stays in memory (bounded, and what is dropped
is counted) and is tried again; nobody waits for that: waiters are told `DEFERRED` at once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)
_RETRYABLE = frozenset(
    (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )
)
"""Errors of the file or the disk, not of the operation."""
_PRIMARY_CODE = 0xFF
_RETRY_BATCH = 64  # small on purpose: where some room came back, some of what waits gets in


class Durability(StrEnum):
    """How safe a write is when the call returns."""

    COMMITTED = "committed"
    DEFERRED = "deferred"


class DeferredError(Exception):
    """The disk takes nothing now. Reaches only those who need a result."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of the writer."""

    batch_max: int = 1000  # operations in one commit
    pending_max: int = 10_000  # operations kept in memory while the disk takes nothing
    posted_seconds: float = 0.1  # how long what nobody waits for may wait for company; one transaction instead of many
    posted_max: int = 256  # so many of them do not wait
    retry_seconds: float = 1.0  # between two tries
    stall_seconds: float = 5.0  # how long a waiter waits for a disk that neither takes nor refuses
    close_seconds: float = 5.0  # how long `close` waits for the last writes


@dataclass(slots=True, eq=False)
class Job:
    """One queued operation.

    Attributes:
        done: Called in the writer's thread with (result, error) once it is committed, failed or deferred; or None.
    """

    operation: Callable[[sqlite3.Connection], Any]  # takes the connection; may run again when a commit fails
    done: Callable[[Any, BaseException | None], None] | None
    keeps: bool  # whether it is kept and tried again when the disk is full; one that needs a result is not
    dropped: bool = False  # set from any thread: whoever asked has given up, and it is not to run any more
    result: Any = None  # what the last run returned
    error: BaseException | None = None  # what the last run raised by its own fault

    def tell(self, error: BaseException | None) -> None:
        """Tell whoever waits, once."""
        done, self.done = self.done, None
        if done is not None:
            done(self.result, error)
        elif error is not None and not isinstance(error, DeferredError):
            _log.error("ledger_write_failed", problem=str(error))


class Writer:
    """Owns the writing connection and its thread.

    Args:
        connection: In autocommit mode; used by this thread alone from `start` on, closed at its end.
        limits: Bounds.
        on_change: Called in the writer's thread with the reason when the disk gives out, with None when it is back.
    """

    def __init__(
        self, connection: sqlite3.Connection, limits: StoreLimits, on_change: Callable[[str | None], None]
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._on_change = on_change
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._closing = False
        self._urgent = False  # whether somebody waits for what is queued, or much of it is
        self._degraded: str | None = None
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)

    @property
    def degraded(self) -> str | None:
        """Why the disk takes nothing, None while it does."""
        return self._degraded

    @property
    def lost(self) -> int:
        """How many operations were dropped for want of room since the start."""
        return self._lost

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue an operation; while the disk takes nothing its waiter is told so at once."""
        with self._lock:
            if self._closing:
                self._lost += 1
                told: BaseException | None = sqlite3.ProgrammingError("the ledger is closed")
            elif self._degraded is not None:
                told = DeferredError(self._degraded)
                if not job.keeps:
                    pass
                elif len(self._queue) >= self._limits.pending_max:
                    self._lost += 1
                else:
                    self._queue.append(Job(job.operation, None, keeps=True))
            else:
                self._queue.append(job)
                waited_for = job.done is not None
                self._urgent = self._urgent or waited_for or len(self._queue) >= self._limits.posted_max
                if self._urgent or len(self._queue) == 1:
                    self._lock.notify()
                return
        job.tell(told)

    def close(self) -> bool:
        """Write what is queued, end the thread; return whether everything was written in time."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join(self._limits.close_seconds)
        return not self._thread.is_alive() and not self._queue

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                if not self._write(batch) and self._closing:
                    return  # the last try failed: what is left is counted by `close`
        finally:
            self._connection.close()

    def _next_batch(self) -> list[Job] | None:
        """Wait for work, or while the disk takes nothing for the time of the next try; None: there is nothing more."""
        with self._lock:
            if self._degraded is None:
                self._lock.wait_for(lambda: self._queue or self._closing)
                if not self._urgent:
                    self._lock.wait_for(lambda: self._urgent or self._closing, self._limits.posted_seconds)
                self._urgent = False
            else:
                self._lock.wait_for(lambda: self._closing, self._limits.retry_seconds)
            if not self._queue and self._closing:
                return None
            most = self._limits.batch_max if self._degraded is None else _RETRY_BATCH
            return [self._queue[index] for index in range(min(len(self._queue), most))]

    def _write(self, batch: list[Job]) -> bool:
        try:
            self._commit(batch)
        except sqlite3.Error as error:
            self._roll_back()
            self._degrade(f"{type(error).__name__}: {error}")
            return False
        except BaseException as error:  # a defect must not end the thread that all count on
            self._roll_back()
            _log.exception("ledger_writer_failed")
            self._settle(batch, error)
            return True
        self._settle(batch, None)
        return True

    def _commit(self, batch: list[Job]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        if not batch:
            _probe(self._connection)
        alone = len(batch) == 1  # most are, and need no savepoint: the whole transaction is theirs to undo
        for job in batch:
            job.result = job.error = None
            if not job.dropped:
                (self._run_alone if alone else self._run_among_others)(job)
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _run_alone(self, job: Job) -> None:
        try:
            job.result = job.operation(self._connection)
        except Exception as error:
            if is_retryable(error):
                raise
            job.error = error
            self._connection.execute("ROLLBACK")

    def _run_among_others(self, job: Job) -> None:
        self._connection.execute("SAVEPOINT job")
        try:
            job.result = job.operation(self._connection)
        except Exception as error:
            if is_retryable(error):
                raise
            job.error = error
            self._connection.execute("ROLLBACK TO job")
        self._connection.execute("RELEASE job")

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            _log.error("ledger_rollback_failed", problem=str(error))

    def _settle(self, batch: list[Job], error: BaseException | None) -> None:
        with self._lock:
            for _ in batch:
                self._queue.popleft()
            recovered, self._degraded = self._degraded is not None, None
        for job in batch:
            job.tell(error or job.error)
        if recovered:
            self._on_change(None)

    def _degrade(self, why: str) -> None:
        """Tell all that wait, and keep what may be kept."""
        with self._lock:
            first, self._degraded = self._degraded is None, why
            waiting = list(self._queue)
            kept = [job for job in waiting if job.keeps]
            self._lost += max(0, len(kept) - self._limits.pending_max)
            self._queue = deque(kept[: self._limits.pending_max])
        for job in waiting:
            job.tell(DeferredError(why))
        if first:
            self._on_change(why)


def _probe(connection: sqlite3.Connection) -> None:
    """Write one page that says what it said before: nothing else is waiting to show whether the disk is back."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {int(version)}")


def is_retryable(error: BaseException) -> bool:
    """Say whether an error is the file's or the disk's rather than the operation's."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and (code & _PRIMARY_CODE) in _RETRYABLE
