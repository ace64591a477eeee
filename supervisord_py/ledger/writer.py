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
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from supervisord_py.ledger.files import of_the_disk

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)
_RETRY_BATCH = 64  # small on purpose: where some room came back, some of what waits gets in


class DeferredError(Exception):
    """The disk takes nothing now. Reaches only those who need a result."""


class StoreLimits(msgspec.Struct, frozen=True):
    """Bounds of the ledger."""

    batch_max: int = 1000  # operations of one commit
    pending_max: int = 10_000  # operations kept in memory while the disk takes nothing
    posted_seconds: float = 0.1  # how long an operation that nobody waits for waits for company
    posted_max: int = 256  # unless so many are queued
    retry_seconds: float = 1.0  # between tries while the disk takes nothing
    stall_seconds: float = 5.0  # after which a disk that does not answer counts as one that takes nothing
    close_seconds: float = 5.0  # how long `close` waits for the last writes


@dataclass(slots=True, eq=False)
class Job:
    """One queued operation. `done` is called in the writer's thread once it is committed, failed or deferred."""

    operation: Callable[[sqlite3.Connection], Any]  # may run again when a commit fails
    done: Callable[[Any, BaseException | None], None] | None  # given result and error
    keeps: bool  # and tried again when the disk is full; one that needs a result is not
    dropped: bool = False  # set from any thread: whoever asked has given up, and it is not to run any more
    result: Any = None  # what the last run returned
    error: BaseException | None = None  # or raised by its own fault

    def tell(self, error: BaseException | None) -> None:
        """Tell whoever waits, once."""
        done, self.done = self.done, None
        if done is not None:
            done(self.result, error)
        elif error is not None and not isinstance(error, DeferredError):
            _log.error("ledger_write_failed", problem=str(error))


class Writer:
    """Owns the writing connection, in autocommit mode, and its thread.

    `on_change`: called in the writer's thread with the reason when the disk gives out, with None when it is back.
    Attributes: degraded: Why the disk takes nothing, None while it does. lost: How many operations were dropped for
    want of room since the start.
    """

    def __init__(
        self, connection: sqlite3.Connection, limits: StoreLimits, on_change: Callable[[str | None], None]
    ) -> None:
        self.degraded: str | None = None
        self.lost = 0
        self._connection = connection
        self._limits = limits
        self._on_change = on_change
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._closing = False
        self._urgent = False  # whether somebody waits for what is queued, or much of it is
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue an operation; while the disk takes nothing its waiter is told so at once."""
        with self._lock:
            if self._closing:
                self.lost += 1
                told: BaseException | None = sqlite3.ProgrammingError("the ledger is closed")
            elif self.degraded is not None:
                told = DeferredError(self.degraded)
                if job.keeps and len(self._queue) >= self._limits.pending_max:
                    self.lost += 1
                elif job.keeps:
                    self._queue.append(Job(job.operation, None, keeps=True))
            else:
                self._queue.append(job)
                self._urgent |= job.done is not None or len(self._queue) >= self._limits.posted_max
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
            if self.degraded is None:
                self._lock.wait_for(lambda: self._queue or self._closing)
                if not self._urgent:
                    self._lock.wait_for(lambda: self._urgent or self._closing, self._limits.posted_seconds)
                self._urgent = False
            else:
                self._lock.wait_for(lambda: self._closing, self._limits.retry_seconds)
            if not self._queue and self._closing:
                return None
            most = self._limits.batch_max if self.degraded is None else _RETRY_BATCH
            return [self._queue[index] for index in range(min(len(self._queue), most))]

    def _write(self, batch: list[Job]) -> bool:
        defect: BaseException | None = None
        try:
            while not self._commit(batch):
                pass  # anew without what failed: that is rare, and a savepoint for each job is not free
        except BaseException as error:
            try:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            except sqlite3.Error as failed:
                _log.error("ledger_rollback_failed", problem=str(failed))
            if isinstance(error, sqlite3.Error):
                self._degrade(f"{type(error).__name__}: {error}")
                return False
            _log.exception("ledger_writer_failed")  # a defect must not end the thread that all count on
            defect = error
        with self._lock:
            for _ in batch:
                self._queue.popleft()
            recovered, self.degraded = self.degraded is not None, None
        for job in batch:
            job.tell(defect or job.error)
        if recovered:
            self._on_change(None)
        return True

    def _commit(self, batch: list[Job]) -> bool:
        """Commit what has not failed by itself; False, and nothing is written, where one more did."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        if not batch:
            # Write one page that says what it said before: nothing else is waiting to show whether the disk is back.
            execute(f"PRAGMA user_version = {int(execute('PRAGMA user_version').fetchone()[0])}")
        for job in batch:
            if job.dropped or job.error is not None:
                continue
            try:
                job.result = job.operation(self._connection)
            except Exception as error:
                if of_the_disk(error):
                    raise
                job.error = error
                execute("ROLLBACK")
                return False
        execute("COMMIT")
        return True

    def _degrade(self, why: str) -> None:
        """Tell all that wait, and keep what may be kept."""
        with self._lock:
            first, self.degraded = self.degraded is None, why
            waiting = list(self._queue)
            kept = [job for job in waiting if job.keeps]
            self.lost += max(0, len(kept) - self._limits.pending_max)
            self._queue = deque(kept[: self._limits.pending_max])
        for job in waiting:
            job.tell(DeferredError(why))
        if first:
            self._on_change(why)
