"""The ledger: one SQLite file, one writer, readers beside it; asynchronous outside, plain SQL inside.

Law: nothing here ever blocks the loop or makes a request wait for a full disk. `write` returns once the row is
committed, or at once with `DEFERRED` while the disk takes nothing; what is deferred is kept in order and written
later, and until then `read` does not see it. `call` needs its result, so it fails instead of being deferred.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import files
from supervisord_py.ledger.migrations import AT_OPEN, NUMBERED
from supervisord_py.ledger.writer import DeferredError, Durability, Job, StoreLimits, Writer, is_retryable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisord_py.ledger.files import Recovery

__all__ = ["Durability", "Ledger", "LedgerDegradedError", "LedgerUnavailableError", "StoreLimits"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class LedgerDegradedError(PxError):
    """The disk takes nothing, or gives nothing, at present; asking again later may work."""

    kind = "ledger_degraded"
    title = "The ledger cannot be written"
    status = 503


class LedgerUnavailableError(PxError):
    """The ledger cannot be opened at all, or is closed."""

    kind = "ledger_unavailable"
    title = "The ledger cannot be opened"
    status = 503


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened file: its two connections, what was done about damage, and the greatest ids of numbered tables."""

    writing: sqlite3.Connection
    reading: sqlite3.Connection
    recovered: Recovery | None
    numbers: tuple[tuple[str, int], ...]


class Ledger:
    """What is remembered. Make it with `open`; use it on the loop that opened it."""

    def __init__(self, path: Path, opened: Opened, limits: StoreLimits) -> None:
        self.path = path
        self.recovered_from = opened.recovered
        """What was done about a damaged file at the opening, None when it was sound."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._reading = opened.reading
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")
        self._closed = False
        self._numbers = dict(opened.numbers)
        self._numbering = threading.Lock()
        self._degraded_listeners: list[Callable[[str], None]] = []
        self._recovered_listeners: list[Callable[[int], None]] = []
        self._writer = Writer(opened.writing, limits, self._changed)
        self._writer.start()

    @classmethod
    async def open(cls, path: Path, limits: StoreLimits | None = None) -> Ledger:
        """Open or create the ledger, private to this user, at the present schema version.

        A damaged file is moved aside and an empty one begun; `recovered_from` then says so.

        Raises ConfigError: A newer version of the program wrote it; LedgerUnavailableError: it cannot be
        opened: no permission, no room, a folder that is not there.
        """
        try:
            opened = await asyncio.to_thread(_open, path)
        except (sqlite3.Error, OSError) as error:
            raise LedgerUnavailableError(
                f"cannot open the ledger {path}: {error}",
                hint="check free space and permissions of its folder (`pxctl doctor`)",
            ) from error
        ledger = cls(path, opened, limits or StoreLimits())
        for statement in AT_OPEN:
            ledger.post(partial(_execute, statement))
        return ledger

    async def close(self) -> None:
        """Write what is queued, within a bound, and close the file."""
        if self._closed:
            return
        self._closed = True
        written = await asyncio.to_thread(self._writer.close)
        if not written:
            _log.error("ledger_closed_with_unwritten_rows", why=self._writer.degraded)
        await self._loop.run_in_executor(self._readers, self._reading.close)
        await asyncio.to_thread(self._readers.shutdown)

    # -- writing ---------------------------------------------------------------------------------------------------

    async def write(self, operation: Callable[[sqlite3.Connection], object]) -> Durability:
        """Run an operation in the next commit.

        Args:
            operation: Runs in the writer's thread, maybe more than once; executes statements, no BEGIN or COMMIT.

        Returns:
            COMMITTED, or DEFERRED while the disk takes nothing (it is kept and tried again).

        Raises sqlite3.Error: the operation itself is at fault.
        """
        try:
            async with asyncio.timeout(self._limits.stall_seconds):
                await self._queued(operation, keeps=True)
        except (DeferredError, TimeoutError):
            return Durability.DEFERRED
        return Durability.COMMITTED

    def post(self, operation: Callable[[sqlite3.Connection], object]) -> None:
        """Queue an operation and go on; it takes effect in order with all others. Its failure is logged."""
        self._writer.put(Job(operation, None, keeps=True))

    async def call(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run an operation in the next commit, and return its result.

        Raises:
            LedgerDegradedError: The disk takes nothing; the operation has no effect, unless it stalled at the commit.
        """
        try:
            async with asyncio.timeout(self._limits.stall_seconds):
                result: T = await self._queued(operation, keeps=False)
        except (DeferredError, TimeoutError) as error:
            raise _degraded_error(str(error) or "the disk does not answer") from error
        return result

    async def flush(self) -> Durability:
        """Wait until everything queued so far is committed; DEFERRED when the disk takes nothing."""
        return await self.write(_nothing)

    async def _queued(self, operation: Callable[[sqlite3.Connection], Any], *, keeps: bool) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        job = Job(operation, partial(self._done, future), keeps)
        self._writer.put(job)
        try:
            return await future
        except asyncio.CancelledError:
            job.dropped = not keeps
            raise

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._in_loop(partial(_settle, future, result, error))

    # -- reading ---------------------------------------------------------------------------------------------------

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run queries; they see every write that was committed, not what a full disk keeps waiting.

        Raises LedgerDegradedError: the file cannot be read at present.
        """
        if self._closed:
            raise LedgerUnavailableError("the ledger is closed")
        try:
            return await self._loop.run_in_executor(self._readers, operation, self._reading)
        except sqlite3.Error as error:
            if is_retryable(error):
                raise _degraded_error(str(error)) from error
            raise

    def next_number(self, table: str) -> int:
        """Return a fresh id for one of the numbered tables; asks nobody. From any thread."""
        with self._numbering:
            self._numbers[table] += 1
            return self._numbers[table]

    # -- a disk that takes nothing ---------------------------------------------------------------------------------

    @property
    def degraded(self) -> str | None:
        """Why the disk takes nothing at present, None when all is well."""
        return self._writer.degraded

    @property
    def lost_writes(self) -> int:
        """How many writes were dropped, since the opening, because too many were waiting for the disk."""
        return self._writer.lost

    def on_degraded(self, callback: Callable[[str], None]) -> None:
        """Call back on the loop, with the reason, when the disk begins to take nothing."""
        self._degraded_listeners.append(callback)

    def on_recovered(self, callback: Callable[[int], None]) -> None:
        """Call back on the loop, with the writes lost since the opening, when the disk takes writes again."""
        self._recovered_listeners.append(callback)

    def _changed(self, why: str | None) -> None:
        self._in_loop(partial(self._announce, why))

    def _announce(self, why: str | None) -> None:
        if why is None:
            _log.warning("ledger_recovered", lost_writes=self.lost_writes)
            for recovered in self._recovered_listeners:
                recovered(self.lost_writes)
        else:
            _log.error("ledger_degraded", why=why)
            for degraded in self._degraded_listeners:
                degraded(why)

    def _in_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop has ended: nobody is left to be told
            return


def _open(path: Path) -> Opened:
    files.make_private(path)
    recovered: Recovery | None = None
    try:
        writing = files.open_checked(path)
    except files.DamagedError as error:
        writing, recovered = files.begin_anew(path, error, time.time())
    with ExitStack() as undo:
        undo.callback(writing.close)
        reading = files.connect(path, read_only=True)
        undo.callback(reading.close)
        opened = Opened(writing, reading, recovered, tuple((it, _greatest_id(writing, it)) for it in NUMBERED))
        undo.pop_all()
    return opened


def _greatest_id(connection: sqlite3.Connection, table: str) -> int:
    query = f"SELECT coalesce(max(id), 0) FROM {table}"  # noqa: S608  # a name of our own schema
    return int(connection.execute(query).fetchone()[0])


def _execute(statement: str, connection: sqlite3.Connection) -> None:
    connection.execute(statement)


def _nothing(_: sqlite3.Connection) -> None:
    """Take a place in the queue."""


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _degraded_error(why: str) -> LedgerDegradedError:
    return LedgerDegradedError(
        f"the ledger cannot be used at present: {why}", hint="free space under the state directory; see `pxctl doctor`"
    )
