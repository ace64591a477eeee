"""The ledger: one SQLite file, one writer, readers beside it; asynchronous outside, plain SQL inside.

Law: nothing here ever blocks the loop or makes a request wait for a full disk. `write` returns once the row is
committed, or at once with False while the disk takes nothing; what is deferred is kept in order and written
later, and until then `read` does not see it. `call` needs its result, so it fails instead of being deferred.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import files
from supervisord_py.ledger.migrations import AT_OPEN, NUMBERED
from supervisord_py.ledger.writer import DeferredError, Job, StoreLimits, Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class LedgerDegradedError(PxError):
    """The disk takes nothing, or gives nothing, at present; asking again later may work."""

    kind = "ledger_degraded"
    title = "The ledger cannot be written"
    status = 503

    def __init__(self, why: str) -> None:
        hint = "free space under the state directory; see `pxctl doctor`"
        super().__init__(f"the ledger cannot be used at present: {why}", hint=hint)


class LedgerUnavailableError(PxError):
    """The ledger cannot be opened at all, or is closed."""

    kind = "ledger_unavailable"
    title = "The ledger cannot be opened"
    status = 503


class Ledger:
    """What is remembered. Make it with `open`; use it on the loop that opened it."""

    def __init__(self, path: Path, limits: StoreLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._loop = loop
        writing, self.recovered_from = files.open_for_writing(path, time.time())
        """What was done about a damaged file at the opening, None when it was sound."""
        try:
            self._reading = files.connect(path, read_only=True)
            greatest = "SELECT coalesce(max(id), 0) FROM "
            self._numbers = {table: count(writing.execute(greatest + table).fetchone()[0] + 1) for table in NUMBERED}
        except BaseException:
            writing.close()
            raise
        self._limits = limits
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")
        self._closed = False
        self._listeners: list[Callable[[str | None], None]] = []
        self._writer = Writer(writing, limits, lambda why: self._in_loop(partial(self._announce, why)))

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
            raise LedgerUnavailableError(
                f"cannot open the ledger {path}: {error}",
                hint="check free space and permissions of its folder (`pxctl doctor`)",
            ) from error
        for statement in AT_OPEN:
            ledger.post(methodcaller("execute", statement))
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

    async def write(self, operation: Callable[[sqlite3.Connection], object]) -> bool:
        """Run an operation in the next commit; False while the disk takes nothing (it is kept and tried again).

        It runs in the writer's thread, maybe more than once; it executes statements, no BEGIN or COMMIT. An error of
        its own is raised.
        """
        try:
            async with asyncio.timeout(self._limits.stall_seconds):
                await self._queued(operation, keeps=True)
        except (DeferredError, TimeoutError):
            return False
        return True

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
            raise LedgerDegradedError(str(error) or "the disk does not answer") from error
        return result

    async def flush(self) -> bool:
        """Wait until everything queued so far is committed; False when the disk takes nothing."""
        return await self.write(lambda _: None)

    async def _queued(self, operation: Callable[[sqlite3.Connection], Any], *, keeps: bool) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        job = Job(operation, lambda *end: self._in_loop(partial(settle, *end)), keeps=keeps)
        self._writer.put(job)
        try:
            return await future
        except asyncio.CancelledError:
            job.dropped = not keeps
            raise

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
            if files.of_the_disk(error):
                raise LedgerDegradedError(str(error)) from error
            raise

    def next_number(self, table: str) -> int:
        """Return a fresh id for one of the numbered tables; asks nobody. From any thread."""
        return int(next(self._numbers[table]))

    # -- a disk that takes nothing ---------------------------------------------------------------------------------

    @property
    def degraded(self) -> str | None:
        """Why the disk takes nothing at present, None when all is well."""
        return self._writer.degraded

    @property
    def lost_writes(self) -> int:
        """How many writes were dropped, since the opening, because too many were waiting for the disk."""
        return self._writer.lost

    def on_change(self, callback: Callable[[str | None], None]) -> None:
        """Call back on the loop, with the reason when the disk begins to take nothing, with None when it is back."""
        self._listeners.append(callback)

    def _announce(self, why: str | None) -> None:
        if why is None:
            _log.warning("ledger_recovered", lost_writes=self.lost_writes)
        else:
            _log.error("ledger_degraded", why=why)
        for listener in self._listeners:
            listener(why)

    def _in_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop has ended: nobody is left to be told
            return
