"""The ledger: one SQLite file, one thread that writes, readers beside it; asynchronous outside, plain SQL inside.

The writer takes what is queued and commits it together. What is posted waits a moment for company, so that a busy
moment is one transaction; a daemon that is killed loses that moment of events, never of exits and executions,
which somebody waits for.

Law: operations take effect in the order in which they were queued, each whole or not at all, and one that fails alone
fails only for whoever asked. Nothing here ever blocks the loop or makes a request wait for a full disk: while the disk
takes nothing, what is queued stays in memory (bounded, and what is dropped is counted) and is tried again; `write`
returns False at once, and `call`, which needs its result, fails instead of being deferred.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import schema

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_RETRY_BATCH = 64  # small on purpose: where some room came back, some of what waits gets in


class LedgerDegradedError(PxError, kind="ledger_degraded", title="The ledger cannot be written", status=503):
    """The disk takes nothing, or gives nothing, at present; asking again later may work."""

    def __init__(self, why: str) -> None:
        hint = "free space under the state directory; see `pxctl doctor`"
        super().__init__(f"the ledger cannot be used at present: {why}", hint=hint)


class LedgerUnavailableError(PxError, kind="ledger_unavailable", title="The ledger cannot be opened", status=503):
    """The ledger cannot be opened at all, or is closed."""


class StoreLimits(msgspec.Struct, frozen=True):
    batch_max: int = 1000  # operations of one commit
    pending_max: int = 10_000  # operations kept in memory while the disk takes nothing
    posted_seconds: float = 0.1  # how long an operation that nobody waits for waits for company
    posted_max: int = 256  # unless so many are queued
    retry_seconds: float = 1.0  # between tries while the disk takes nothing
    stall_seconds: float = 5.0  # after which a disk that does not answer counts as one that takes nothing
    close_seconds: float = 5.0  # how long `close` waits for the last writes


@dataclass(slots=True, eq=False)
class Job:
    operation: Callable[[sqlite3.Connection], Any]  # may run again when a commit fails
    keeps: bool  # and is tried again when the disk is full; one that needs a result is not
    future: asyncio.Future[Any] | None = None  # of whoever waits, until it was told
    dropped: bool = False  # whoever asked has given up, and it is not to run any more
    result: Any = None  # what the last run returned
    error: BaseException | None = None  # or raised by its own fault


class Ledger:
    """What is remembered. Make it with `open`; use it on the loop that opened it."""

    def __init__(self, path: Path, limits: StoreLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self.degraded: str | None = None  # why the disk takes nothing at present; None when all is well
        self.lost_writes = 0  # how many were dropped because too many were waiting for the disk
        self._loop = loop
        # Where a file that was damaged is now, and what SQLite said of it; None when it was sound.
        self._writing, self.recovered_from = schema.open_for_writing(path, time.time())
        try:
            self._reading = schema.connect(path, read_only=True)
            (last,) = self._writing.execute("SELECT coalesce(max(id), 0) FROM pipe_executions").fetchone()
            self._numbers: count[int] = count(last + 1)
        except BaseException:
            self._writing.close()
            raise
        self._limits = limits
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")
        # Called on the loop with the reason when the disk begins to take nothing, with None when it is back.
        self.on_change: Callable[[str | None], object] = lambda _: None
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._closing = False
        self._urgent = False  # whether somebody waits for what is queued, or much of it is
        self._writer = threading.Thread(target=self._write_on, name="ledger-writer", daemon=True)
        self._writer.start()

    @classmethod
    async def open(cls, path: Path, limits: StoreLimits | None = None) -> Ledger:
        """Open or create the ledger, private to this user, at the present schema version.

        A damaged file is moved aside and an empty one begun; `recovered_from` then says so.

        Raises ConfigError: A newer version of the program wrote it; LedgerUnavailableError: it cannot be
        opened: no permission, no room, a folder that is not there.
        """
        try:
            ledger = await asyncio.to_thread(cls, path, limits or StoreLimits(), asyncio.get_running_loop())
        except (sqlite3.Error, OSError) as error:
            hint = "check free space and permissions of its folder (`pxctl doctor`)"
            raise LedgerUnavailableError(f"cannot open the ledger {path}: {error}", hint=hint) from error
        ledger.post(methodcaller("execute", schema.AT_OPEN))
        return ledger

    async def close(self) -> None:
        """Write what is queued, within a bound, and close the file."""
        if self._closing:
            return
        with self._lock:
            self._closing = True
            self._lock.notify()
        await asyncio.to_thread(self._writer.join, self._limits.close_seconds)
        if self._writer.is_alive() or self._queue:
            _log.error("ledger_closed_with_unwritten_rows", why=self.degraded)
        await self._loop.run_in_executor(self._readers, self._reading.close)
        await asyncio.to_thread(self._readers.shutdown)

    # -- writing ---------------------------------------------------------------------------------------------------

    async def write(self, operation: Callable[[sqlite3.Connection], object]) -> bool:
        """Run an operation in the next commit; False while the disk takes nothing (it is kept and tried again).

        It runs in the writer's thread, maybe more than once; it executes statements, no BEGIN or COMMIT. An error of
        its own is raised.
        """
        try:
            await self._queued(operation, keeps=True)
        except LedgerDegradedError:
            return False
        return True

    def post(self, operation: Callable[[sqlite3.Connection], object]) -> None:
        """Queue an operation and go on; it takes effect in order with all others. Its failure is logged."""
        self._put(Job(operation, keeps=True))

    async def call(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run an operation in the next commit, and return its result.

        Raises LedgerDegradedError: the disk takes nothing; it has no effect, unless it stalled at the commit.
        """
        result: T = await self._queued(operation, keeps=False)
        return result

    async def flush(self) -> bool:
        """Wait until everything queued so far is committed; False when the disk takes nothing."""
        return await self.write(lambda _: None)

    async def _queued(self, operation: Callable[[sqlite3.Connection], Any], *, keeps: bool) -> Any:
        job = Job(operation, keeps, future := self._loop.create_future())
        self._put(job)
        try:
            async with asyncio.timeout(self._limits.stall_seconds):
                return await future
        except asyncio.CancelledError:
            job.dropped = not keeps
            raise
        except TimeoutError as error:
            job.dropped = not keeps
            raise LedgerDegradedError("the disk does not answer") from error

    def _put(self, job: Job) -> None:
        """Queue an operation; while the disk takes nothing its waiter is told so at once."""
        with self._lock:
            if self.degraded is None and not self._closing:
                self._queue.append(job)
                self._urgent |= job.future is not None or len(self._queue) >= self._limits.posted_max
                if self._urgent or len(self._queue) == 1:
                    self._lock.notify()
                return
            if self._closing:
                job.error = LedgerUnavailableError("the ledger is closed")
            elif job.keeps and len(self._queue) < self._limits.pending_max:
                self._queue.append(job)
            else:
                self.lost_writes += job.keeps
        self._in_loop(self._settle, [job], self.degraded)

    def _settle(self, jobs: Iterable[Job], why: str | None) -> None:
        """Tell those who wait, each once, on the loop; `why` their jobs are deferred, None when they are done."""
        for job in jobs:
            future, job.future = job.future, None
            if future is None:
                if why is None and job.error is not None:
                    _log.error("ledger_write_failed", problem=str(job.error))
            elif future.done():
                continue
            elif why is not None:
                future.set_exception(LedgerDegradedError(why))
            elif job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)

    def _in_loop(self, callback: Callable[..., None], *values: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *values)

    # -- the writer's thread ---------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                try:
                    self._commit(batch)
                except sqlite3.Error as error:
                    with suppress(sqlite3.Error):
                        if self._writing.in_transaction:
                            self._writing.execute("ROLLBACK")
                    self._degrade(f"{type(error).__name__}: {error}")
                    if self._closing:
                        return  # the last try failed: what is left is told by `close`
                    continue
                with self._lock:
                    for _ in batch:
                        self._queue.popleft()
                    was_degraded, self.degraded = self.degraded is not None, None
                self._in_loop(self._settle, batch, None)
                if was_degraded:
                    self._in_loop(self._announce, None)
        finally:
            self._writing.close()

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
            return list(islice(self._queue, self._limits.batch_max if self.degraded is None else _RETRY_BATCH))

    def _commit(self, batch: list[Job]) -> None:
        """Commit all that does not fail by itself: anew without what did, for that is rare and savepoints are not free.

        Raises sqlite3.Error: the disk takes nothing, and nothing is written.
        """
        execute, is_whole = self._writing.execute, False
        while not is_whole:
            is_whole = True
            execute("BEGIN IMMEDIATE")
            if not batch:
                # Write one page that says what it said before: nothing else waits to show whether the disk is back.
                execute(f"PRAGMA user_version = {int(execute('PRAGMA user_version').fetchone()[0])}")
            for job in batch:
                if job.dropped or job.error is not None:
                    continue
                try:
                    job.result = job.operation(self._writing)
                except Exception as error:
                    if schema.of_the_disk(error):
                        raise
                    job.error, is_whole = error, False
                    break
            execute("COMMIT" if is_whole else "ROLLBACK")

    def _degrade(self, why: str) -> None:
        """Tell all that wait, and keep what may be kept."""
        with self._lock:
            first, self.degraded = self.degraded is None, why
            waiting = list(self._queue)
            kept = [job for job in waiting if job.keeps]
            self.lost_writes += max(0, len(kept) - self._limits.pending_max)
            self._queue = deque(kept[: self._limits.pending_max])
        self._in_loop(self._settle, waiting, why)
        if first:
            self._in_loop(self._announce, why)

    # -- reading, and a disk that takes nothing --------------------------------------------------------------------

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run queries; they see every write that was committed, not what a full disk keeps waiting.

        Raises LedgerDegradedError: the file cannot be read at present.
        """
        if self._closing:
            raise LedgerUnavailableError("the ledger is closed")
        try:
            return await self._loop.run_in_executor(self._readers, operation, self._reading)
        except sqlite3.Error as error:
            if schema.of_the_disk(error):
                raise LedgerDegradedError(str(error)) from error
            raise

    def next_number(self) -> int:
        """Return a fresh id for an execution of a pipe: nobody waits for a commit to learn it. From any thread."""
        return next(self._numbers)

    async def prune(
        self, now: float, limits: Mapping[str, schema.TableLimit] = schema.LIMITS, batch: int = 500
    ) -> dict[str, int]:
        """Remove the oldest rows beyond the limits at `now` (Unix seconds); return how many went of each table.

        In small batches, so that nobody waits for a long transaction. What is still open stays, and so does the newest
        row of a table: its id is where numbering goes on. Executions of pipes have files beside their rows
        (`pipes.prune`).

        Raises LedgerDegradedError: the disk takes nothing; what was removed before that stays removed.
        """
        gone: dict[str, int] = {}
        for table, limit in limits.items():
            over, beyond = limit.over, f"(SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET ?)"  # noqa: S608  # our own words
            sql = f"""DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {over} IS NOT NULL
                AND ({over} < ? OR rowid <= {beyond}) AND rowid < (SELECT max(rowid) FROM {table})
                ORDER BY rowid LIMIT ?)"""  # noqa: S608  # as above
            values, count = (now - limit.age_seconds, max(1, limit.rows), batch), batch
            while count == batch:
                count = (await self.call(methodcaller("execute", sql, values))).rowcount
                gone[table] = gone.get(table, 0) + count
        return {table: count for table, count in gone.items() if count}

    def _announce(self, why: str | None) -> None:
        if why is None:
            _log.warning("ledger_recovered", lost_writes=self.lost_writes)
        else:
            _log.error("ledger_degraded", why=why)
        self.on_change(why)
