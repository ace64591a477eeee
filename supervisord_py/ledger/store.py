"""The ledger: one SQLite file, one thread that writes, readers beside it; asynchronous outside,
plain SQL inside.

Beside it, in `kept.py`'s file, the same thread writes what must outlive the ledger. Content that
SQLite finds damaged while the ledger is open makes us rename the file at once and report it
(`on_damage`): the next opening begins another.

The writer takes what is queued and commits it together. What is posted waits a moment for company,
so that a busy moment is one transaction; a daemon that is killed loses that moment of events, never
of exits and executions, which somebody waits for.

Law: operations take effect in the order in which they were queued, each whole or not at all, and
one that fails alone fails only for whoever asked. Nothing here ever blocks the loop or makes a
request wait for a full disk: while the disk takes nothing, what is queued stays in memory (bounded,
and what is dropped is counted) and is tried again; `write` returns False at once, and `call`, which
needs its result, fails instead of being deferred.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import kept as kept_files
from supervisord_py.ledger import place, schema
from supervisord_py.ledger.kept import EVENT_RESERVE, Kept
from supervisord_py.ledger.place import LedgerUnavailableError, LedgerUnusableError

__all__ = [
    "Ledger",
    "LedgerDegradedError",
    "LedgerUnavailableError",
    "LedgerUnusableError",
    "StoreLimits",
]

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_WISH_TRIGGERS = (
    *(
        f"CREATE TEMP TRIGGER px_{table}_{word} AFTER {word} ON main.{table} BEGIN SELECT "
        "px_wishes_changed(); END"
        for table, word in (
            ("pins", "INSERT"),
            ("pins", "UPDATE"),
            ("pins", "DELETE"),
            ("pipe_scheduler_state", "INSERT"),
            ("pipe_scheduler_state", "DELETE"),
            ("unit_state", "DELETE"),
        )
    ),
    """CREATE TEMP TRIGGER px_pipes_update
        AFTER UPDATE OF enabled, enabled_file ON main.pipe_scheduler_state
        BEGIN SELECT px_wishes_changed(); END""",
    """CREATE TEMP TRIGGER px_unpinned_insert AFTER INSERT ON main.unit_state
        WHEN instr(new.facts, '"unpinned":true') > 0 BEGIN SELECT px_wishes_changed(); END""",
    """CREATE TEMP TRIGGER px_unpinned_update AFTER UPDATE OF facts ON main.unit_state
        WHEN (instr(new.facts, '"unpinned":true') > 0) <> (instr(old.facts, '"unpinned":true') > 0)
        BEGIN SELECT px_wishes_changed(); END""",
)
_PAGES_OF_BATCHES = 20  # of rows that are removed: so many batches are looked for at once
_RETRY_BATCH = 64  # small on purpose: where some room came back, some of what waits gets in


class LedgerDegradedError(
    PxError, kind="ledger_degraded", title="The ledger cannot be written", status=503
):
    """The disk takes nothing, or gives nothing, at present; asking again later may work."""

    def __init__(self, why: str) -> None:
        hint = "free space under the state directory; see `pxctl doctor`"
        super().__init__(f"the ledger cannot be used at present: {why}", hint=hint)


class StoreLimits(msgspec.Struct, frozen=True):
    batch_max: int = 1000  # operations of one commit
    pending_max: int = 10_000  # operations kept in memory while the disk takes nothing
    posted_seconds: float = 0.1  # how long an operation that nobody waits for waits for company
    posted_max: int = 256  # unless so many are queued
    retry_seconds: float = 1.0  # between tries while the disk takes nothing
    # after which a disk that does not answer counts as one that takes nothing
    stall_seconds: float = 5.0
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

    def __init__(
        self,
        path: Path,
        limits: StoreLimits,
        loop: asyncio.AbstractEventLoop,
        find_number: Callable[[], int] = lambda: 0,
    ) -> None:
        self.path = path
        # why the disk takes nothing at present; None when all is well
        self.degraded: str | None = None
        # what is wrong with the file beside the ledger; None when all is well
        self.kept_trouble: str | None = None
        self.unreadable: dict[str, int] = {}  # rows that were left out of an answer, by table
        self.lost_writes = 0  # how many were dropped because too many were waiting for the disk
        self._loop = loop
        self._limits = limits
        now = time.time()
        place.check_place(path)
        self.ended_uncleanly = schema.ended_uncleanly(path)
        is_new = not path.exists() or path.stat().st_size == 0
        # The file beside it shows that there was one, which somebody has moved or removed.
        self.was_missing = is_new and kept_files.path_beside(path).exists()
        # Where a file that was damaged is now, and what SQLite said of it; None when it was sound.
        self._writing, self.recovered_from = schema.open_for_writing(path, now)
        self._kept_path = kept_files.path_beside(path)
        try:
            self._kept = self._begin_kept(
                is_new or self.recovered_from is not None, find_number, now
            )
        except sqlite3.Error as error:
            self._writing.close()
            if not schema.is_damage(error) or self.recovered_from is not None:
                raise
            # A large file is not looked at as a whole, so the first queries may be those that meet
            # its damage.
            moved = place.move_aside(path, now)
            self._writing, _ = schema.open_for_writing(path, now)
            self.recovered_from = {"moved_to": str(moved), "detail": str(error)}
            self._kept = self._begin_kept(is_new=True, find_number=find_number, now=now)
        try:
            self._reading = schema.connect(path, read_only=True)
        except BaseException:
            self._writing.close()
            raise
        self._numbers: count[int] = count(self._kept.executions + 1)
        # the greatest id of an execution that was given away
        self._given_number = self._kept.executions
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")
        # Called on the loop with the reason when the disk begins to take nothing, with None when it
        # is back.
        self.on_change: Callable[[str | None], object] = lambda _: None
        # The same, of the file beside the ledger.
        self.on_kept_change: Callable[[str | None], object] = lambda _: None
        # Called on the loop once, when the open file was found damaged: where it is now (None: it
        # could not be renamed), and why.
        self.on_damage: Callable[[str | None, str], object] = lambda _moved, _why: None
        # Called on the loop when rows of a table could not be read: its name.
        self.on_unreadable: Callable[[str], object] = lambda _: None
        self.damage: str | None = None  # what SQLite found wrong with the open file
        # where that file is now; None where it could not be renamed
        self.damage_moved_to: str | None = None
        # for writing the file beside the ledger; the loop never waits for it
        self._kept_lock = threading.Lock()
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._closing = False
        self._urgent = False  # whether somebody waits for what is queued, or much of it is
        # since the file beside the ledger was written; the writer's thread alone
        self._wishes_changed = False
        # the connection of the check that runs beside the work
        self._checking: sqlite3.Connection | None = None
        self._watch_wishes()
        self._writer = threading.Thread(target=self._write_on, name="ledger-writer", daemon=True)
        self._writer.start()

    @classmethod
    async def open(
        cls,
        path: Path,
        limits: StoreLimits | None = None,
        *,
        find_number: Callable[[], int] = lambda: 0,
    ) -> Ledger:
        """Open or create the ledger, private to this user, at the present schema version.

        A damaged file is moved aside and an empty one begun; `recovered_from` then says so.
        `find_number` returns the greatest id of an execution that left something on the disk; it is
        asked, in a thread, where the ledger is new.

        Raises LedgerVersionError: a newer version of the program wrote it; LedgerUnusableError: it
        cannot be used as it lies there; LedgerUnavailableError: it cannot be opened at present.
        """
        loop = asyncio.get_running_loop()
        try:
            ledger = await asyncio.to_thread(cls, path, limits or StoreLimits(), loop, find_number)
        except (sqlite3.Error, OSError) as error:
            hint = "check free space and permissions of its folder (`pxctl doctor`)"
            if schema.is_locked(error):
                hint = f"close the other program that has it open: fuser -v {path}"
            raise LedgerUnavailableError(
                f"cannot open the ledger {path}: {error}", hint=hint
            ) from error
        ledger.post(methodcaller("execute", schema.AT_OPEN))
        return ledger

    # -- what must outlive the ledger --------------------------------------------------------------

    def _begin_kept(self, is_new: bool, find_number: Callable[[], int], now: float) -> Kept:
        """Read the file beside the ledger, bring ledger and file into step, and write the file.

        Blocking.
        """
        kept, trouble = kept_files.read(self._kept_path)
        if trouble is not None:
            _log.warning("kept_file_unreadable", why=trouble)
        is_known = kept is not None
        if kept is None:
            kept = Kept()
            if self.recovered_from is not None:
                kept, is_known = kept_files.salvage(Path(self.recovered_from["moved_to"]))
        if self.recovered_from is not None:
            moved = Path(self.recovered_from["moved_to"]).name
            kept = msgspec.structs.replace(
                kept, damage={**kept.damage, moved: self.recovered_from["detail"]}
            )
        on_disk = 0
        if is_new:
            kept_files.restore(kept, self._writing, now)
            fresh = [
                each.path
                for each in place.moved_ledgers(self.path)
                if each.path.name not in kept.reported
            ]
            if fresh:
                carried = kept_files.carry_over(fresh[-1], self._writing)
                _log.info("executions_carried_over", executions=carried, of=str(fresh[-1]))
            on_disk = find_number()
        else:
            kept = kept_files.with_wishes(kept, self._writing)
        executions = max(kept.executions, on_disk, kept_files.last_execution(self._writing))
        events = max(kept.events, kept_files.last_event(self._writing))
        # A ledger that is gone, and nothing that says how far its ids went: the clock is beyond
        # them.
        is_lost = is_new and not is_known
        had_life = self.recovered_from is not None or trouble is not None or on_disk > 0
        if is_lost and had_life:
            executions = max(executions, int(now))
        # Who was killed may have told ids that neither the ledger nor the file has.
        if self.ended_uncleanly or (is_lost and had_life):
            events = max(events, int(now * 1e6))
        if is_lost and had_life and trouble is None:
            trouble = f"{self._kept_path} is missing"
        if trouble is not None and is_lost:
            trouble += (
                "; pins may be lost, and pipes are turned off because it is not known which of "
                "them were"
            )
        self.first_event = events
        # why what users set may be lost; None when it is not
        self.lost_wishes = trouble if is_lost else None
        # What was moved aside and is not there any more is nobody's question any more.
        there = {moved.path.name for moved in place.moved_ledgers(self.path)}
        kept = msgspec.structs.replace(
            kept,
            executions=executions,
            events=events + EVENT_RESERVE,
            damage={name: why for name, why in kept.damage.items() if name in there},
            reported=tuple(name for name in kept.reported if name in there),
        )
        self._write_kept(kept)
        return kept

    def _write_kept(self, kept: Kept) -> bool:
        """Write the file beside the ledger. A failure is noted, and harms nothing else."""
        try:
            kept_files.write(self._kept_path, kept)
        except (OSError, msgspec.EncodeError, UnicodeError) as error:
            self.kept_trouble = f"{self._kept_path} cannot be written: {error}"
            return False
        self.kept_trouble = None
        return True

    def _watch_wishes(self) -> None:
        """Have this connection note when a transaction changes what users set.

        Nothing of it is stored in the file.
        """

        def changed() -> None:
            self._wishes_changed = True

        self._writing.create_function("px_wishes_changed", 0, changed)
        for statement in _WISH_TRIGGERS:
            self._writing.execute(statement)

    def _keep(self) -> None:
        """Write the file beside the ledger where something of it has changed.

        In the writer's thread.
        """
        with self._kept_lock:
            had_trouble = self.kept_trouble is not None
            try:
                self._keep_changes()
            except Exception:  # of a mistake of ours: the ledger itself must go on
                _log.exception("kept_file_failed")
            has_trouble = self.kept_trouble is not None
        if has_trouble != had_trouble:
            self._in_loop(self._announce_kept, self.kept_trouble)

    def _keep_changes(self) -> None:
        with self._lock:
            given = self._given_number
        kept = self._kept
        if given > kept.executions:
            kept = msgspec.structs.replace(kept, executions=given)
        if self._wishes_changed and self.degraded is None and self.damage is None:
            try:
                kept = kept_files.with_wishes(kept, self._writing)
            except sqlite3.Error as error:
                _log.warning("wishes_unreadable", error=str(error))
            self._wishes_changed = False
        if self.degraded is None and self.damage is None:
            with suppress(sqlite3.Error):
                if kept_files.last_event(self._writing) > kept.events - EVENT_RESERVE // 2:
                    kept = msgspec.structs.replace(kept, events=kept.events + EVENT_RESERVE)
        is_due = kept is not self._kept or self.kept_trouble is not None
        if is_due:
            self._kept = kept
            self._write_kept(kept)

    def _end_kept(self) -> None:
        """Note exactly how far ids went, once everything is written: the next start goes on from
        there.
        """
        if self.degraded is not None or self.damage is not None or self.lost_writes:
            return  # ids were given away that the ledger does not have
        try:
            events = max(self.first_event, kept_files.last_event(self._writing))
        except sqlite3.Error:
            return
        with self._kept_lock:
            self._kept = msgspec.structs.replace(self._kept, events=events)
            self._write_kept(self._kept)

    def _announce_kept(self, why: str | None) -> None:
        if why is None:
            _log.info("kept_file_recovered")
        else:
            _log.error("kept_file_degraded", why=why)
        self.on_kept_change(why)

    # -- damage ------------------------------------------------------------------------------------

    def why_moved(self, name: str) -> str | None:
        """Return why the ledger of that file name was moved aside, None where that is not known."""
        return self._kept.damage.get(name)

    def take_news(self) -> list[dict[str, Any]]:
        """Return the ledgers that were moved aside and never returned here before: `moved_to`
        and `detail` of each.
        """
        news = []
        with self._kept_lock:
            for moved in place.moved_ledgers(self.path):
                name = moved.path.name
                if name not in self._kept.reported:
                    news.append(
                        {"moved_to": str(moved.path), "detail": self._kept.damage.get(name)}
                    )
            if news:
                reported = tuple(Path(str(each["moved_to"])).name for each in news)
                self._kept = msgspec.structs.replace(
                    self._kept, reported=(*self._kept.reported, *reported)
                )
        return news

    def check_later(self) -> None:
        """Check every page of the file beside the work, where the last end was unclean.

        Damage goes to `on_damage`.
        """
        if not self.ended_uncleanly or self.recovered_from is not None:
            return
        with suppress(OSError):  # it was moved aside meanwhile
            if self.path.stat().st_size <= schema.SMALL_BYTES:
                return  # the opening has looked at all of it
            threading.Thread(target=self._check, name="ledger-check", daemon=True).start()

    def _check(self) -> None:
        try:
            connection = schema.connect(self.path, read_only=True)
        except sqlite3.Error as error:
            _log.warning("ledger_not_checked", error=str(error))
            return
        try:
            with self._lock:
                self._checking = connection  # `close` interrupts it
                if self._closing:
                    return
            schema.check_pages(connection)
            _log.info("ledger_checked")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if schema.of_the_disk(error, or_damage=False) or self._closing:
                _log.warning("ledger_not_checked", error=str(error))
            else:
                self._found_damage(str(error))
        finally:
            with self._lock:
                self._checking = None
            connection.close()

    def _found_damage(self, why: str) -> None:
        """Rename the open file, once: what it still takes is kept with it, and the next opening
        begins another one.
        """
        with self._lock:
            if self.damage is not None:
                return
            self.damage = why
        moved: Path | None = None
        moved_to: str | None = None
        # One that was begun in this life is not moved again: a disk that damages everything would
        # fill up.
        if self.recovered_from is None:
            try:
                moved = place.move_aside(self.path, time.time())
                moved_to = str(moved)
            except (OSError, PxError) as error:
                _log.error("ledger_not_moved", error=str(error))
        self.damage_moved_to = moved_to
        _log.error("ledger_damaged", why=why, moved_to=moved_to)
        if moved is not None:
            with self._kept_lock:
                self._kept = msgspec.structs.replace(
                    self._kept, damage={**self._kept.damage, moved.name: why}
                )
                self._write_kept(self._kept)
        self._in_loop(self._announce_damage, moved_to, why)

    def _announce_damage(self, moved_to: str | None, why: str) -> None:
        self.on_damage(moved_to, why)

    def report_unreadable(self, table: str, rows: int) -> None:
        """Note that so many rows were left out of an answer because their text is damaged.

        From any thread.
        """
        with self._lock:
            is_news = rows > self.unreadable.get(table, 0)
            self.unreadable[table] = max(rows, self.unreadable.get(table, 0))
        if is_news:
            _log.warning("rows_unreadable", table=table, rows=rows)
            self._in_loop(self._announce_unreadable, table)

    def _announce_unreadable(self, table: str) -> None:
        self.on_unreadable(table)

    async def close(self) -> None:
        """Write what is queued, within a bound, and close the file."""
        if self._closing:
            return
        with self._lock:
            self._closing = True
            self._lock.notify()
            if self._checking is not None:
                self._checking.interrupt()
        await asyncio.to_thread(self._writer.join, self._limits.close_seconds)
        if self._writer.is_alive() or self._queue:
            _log.error("ledger_closed_with_unwritten_rows", why=self.degraded)
        await self._loop.run_in_executor(self._readers, self._reading.close)
        await asyncio.to_thread(self._readers.shutdown)

    # -- writing -----------------------------------------------------------------------------------

    async def write(self, operation: Callable[[sqlite3.Connection], object]) -> bool:
        """Run an operation in the next commit; False while the disk takes nothing (it is kept and
        tried again).

        It runs in the writer's thread, maybe more than once; it executes statements, no BEGIN or
        COMMIT. An error of its own is raised.
        """
        try:
            await self._queued(operation, keeps=True)
        except LedgerDegradedError:
            return False
        return True

    def post(self, operation: Callable[[sqlite3.Connection], object]) -> None:
        """Queue an operation and go on; it takes effect in order with all others.

        Its failure is logged.
        """
        self._put(Job(operation, keeps=True))

    async def call(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run an operation in the next commit, and return its result.

        Raises LedgerDegradedError: the disk takes nothing; it has no effect, unless it stalled at
        the commit.
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
                self._urgent |= (
                    job.future is not None or len(self._queue) >= self._limits.posted_max
                )
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
        """Tell those who wait, each once, on the loop; `why` their jobs are deferred, None when
        they are done.
        """
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

    # -- the writer's thread -----------------------------------------------------------------------

    def _write_on(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                # An empty batch is a try whether the disk is back, or one more write of the file
                # beside the ledger.
                if (batch or self.degraded is not None) and not self._write_batch(batch):
                    self._keep()
                    if self._closing:
                        return  # the last try failed: what is left is told by `close`
                    continue
                self._keep()
                self._in_loop(self._settle, batch, None)
            self._end_kept()
        finally:
            self._writing.close()

    def _write_batch(self, batch: list[Job]) -> bool:
        """Commit a batch; say whether the disk took it."""
        try:
            self._commit(batch)
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                if self._writing.in_transaction:
                    self._writing.execute("ROLLBACK")
            if schema.is_damage(error):
                self._found_damage(f"{type(error).__name__}: {error}")
            self._degrade(f"{type(error).__name__}: {error}")
            return False
        with self._lock:
            for _ in batch:
                self._queue.popleft()
            was_degraded, self.degraded = self.degraded is not None, None
        if was_degraded:
            self._in_loop(self._announce, None)
        return True

    def _next_batch(self) -> list[Job] | None:
        """Wait for work, or while the disk takes nothing for the time of the next try; None:
        there is nothing more.
        """
        with self._lock:
            if self.degraded is None:
                retry = self._limits.retry_seconds if self.kept_trouble is not None else None
                self._lock.wait_for(lambda: self._queue or self._closing, retry)
                if self._queue and not self._urgent:
                    self._lock.wait_for(
                        lambda: self._urgent or self._closing, self._limits.posted_seconds
                    )
                self._urgent = False
            else:
                self._lock.wait_for(lambda: self._closing, self._limits.retry_seconds)
            if not self._queue and self._closing:
                return None
            return list(
                islice(
                    self._queue, self._limits.batch_max if self.degraded is None else _RETRY_BATCH
                )
            )

    def _commit(self, batch: list[Job]) -> None:
        """Commit all that does not fail by itself: anew without what did, for that is rare and
        savepoints are not free.

        Raises sqlite3.Error: the disk takes nothing, and nothing is written.
        """
        execute, is_whole = self._writing.execute, False
        while not is_whole:
            is_whole = True
            execute("BEGIN IMMEDIATE")
            if not batch:
                # Write one page that says what it said before: nothing else waits to show whether
                # the disk is back.
                execute(
                    f"PRAGMA user_version = {int(execute('PRAGMA user_version').fetchone()[0])}"
                )
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

    # -- reading, and a disk that takes nothing ----------------------------------------------------

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run queries; they see every write that was committed, not what a full disk keeps waiting.

        Raises LedgerDegradedError: the file cannot be read at present.
        """
        if self._closing:
            raise LedgerUnavailableError("the ledger is closed")
        try:
            return await self._loop.run_in_executor(self._readers, operation, self._reading)
        except sqlite3.Error as error:
            if schema.is_damage(error):
                await asyncio.to_thread(self._found_damage, str(error))
            if schema.of_the_disk(error):
                raise LedgerDegradedError(str(error)) from error
            raise

    def next_number(self) -> int:
        """Return a fresh id for an execution of a pipe: nobody waits for a commit to learn it.

        From any thread.
        """
        number = next(self._numbers)
        with self._lock:
            self._given_number = max(self._given_number, number)
        return number

    async def prune(
        self,
        now: float,
        limits: Mapping[str, schema.TableLimit] = schema.LIMITS,
        *,
        lasting: Mapping[str, Collection[int]] = MappingProxyType({}),
        batch: int = 500,
    ) -> dict[str, int]:
        """Remove the oldest rows beyond the limits at `now` (Unix seconds); return how many went of
        each table.

        What is still open stays, and so does the newest row of a table: its id is where numbering
        goes on. So do the rows that `lasting` names, by table and rowid. Executions of pipes have
        files beside their rows (`pipes.prune`).

        Raises LedgerDegradedError: the disk takes nothing; what was removed before that stays
        removed.
        """
        gone: dict[str, int] = {}
        for table, limit in limits.items():
            count = await self._prune_table(table, limit, now, lasting.get(table, ()), batch)
            if count:
                gone[table] = count
        return gone

    async def _prune_table(
        self, table: str, limit: schema.TableLimit, now: float, lasting: Collection[int], batch: int
    ) -> int:
        """Look for old rows beside the writer, and remove them in small batches, so that nobody
        waits for long.
        """
        oldest = now - limit.age_seconds
        nth = f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET ?"  # noqa: S608  # our own words
        is_old = f"{limit.over} IS NOT NULL AND ({limit.over} < ? OR rowid <= ?)"
        candidates = f"""SELECT rowid FROM {table} WHERE {is_old} AND rowid > ?
            AND rowid < (SELECT max(rowid) FROM {table}) ORDER BY rowid LIMIT ?"""  # noqa: S608  # as above
        beyond = await self._numbers_of(nth, max(1, limit.rows))
        last_beyond = beyond[0] if beyond else -1
        page = batch * _PAGES_OF_BATCHES
        removed = 0
        at = -1
        while True:
            rows = await self._numbers_of(candidates, oldest, last_beyond, at, page)
            old = [row for row in rows if row not in lasting]
            for begin in range(0, len(old), batch):
                chosen = old[begin : begin + batch]
                # One that was taken up again since it was found is not old any more.
                marks = ", ".join("?" * len(chosen))
                sql = f"DELETE FROM {table} WHERE {is_old} AND rowid IN ({marks})"  # noqa: S608  # as above
                deleted = await self.call(
                    methodcaller("execute", sql, (oldest, last_beyond, *chosen))
                )
                removed += deleted.rowcount
            if len(rows) < page:
                return removed
            at = rows[-1]

    async def _numbers_of(self, sql: str, *values: object) -> list[int]:
        """Return the whole numbers that a query finds, one a row."""
        return await self.read(
            lambda connection: [int(row[0]) for row in connection.execute(sql, values)]
        )

    def _announce(self, why: str | None) -> None:
        if why is None:
            _log.warning("ledger_recovered", lost_writes=self.lost_writes)
        else:
            _log.error("ledger_degraded", why=why)
        self.on_change(why)
