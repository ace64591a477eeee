"""A disk that takes nothing: nobody waits for it, nothing is lost that fits into memory, and it is said."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.ledger import pins, writer
from supervisord_py.ledger.store import Durability, Ledger, LedgerDegradedError, StoreLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    OpenLedger = Callable[..., Awaitable[Ledger]]


BLOB = b"x" * 50_000


def insert(unit: str) -> Callable[[sqlite3.Connection], object]:
    return lambda connection: connection.execute("INSERT INTO pins VALUES (?, 0, 0)", (unit,))


def insert_large(key: str) -> Callable[[sqlite3.Connection], object]:
    sql = "INSERT INTO idempotency VALUES (?, 'r', 'd', 200, 't', ?, 0)"
    return lambda connection: connection.execute(sql, (key, BLOB))


def limit_pages(more: int) -> Callable[[sqlite3.Connection], object]:
    """Let the file grow by so many pages only: SQLite then says that the disk is full."""

    def run(connection: sqlite3.Connection) -> None:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {count + more}")

    return run


async def units(ledger: Ledger) -> list[str]:
    return [it.unit for it in await pins.everything(ledger)]


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


async def hold(ledger: Ledger) -> tuple[threading.Event, asyncio.Future[Durability]]:
    """Keep the writer busy: what is queued now goes into its next commit. Set the event to let it go on."""
    begun, gate = threading.Event(), threading.Event()

    def run(_: sqlite3.Connection) -> None:
        begun.set()
        gate.wait(60)

    holding = asyncio.ensure_future(ledger.write(run))
    assert await asyncio.to_thread(begun.wait, 60)
    return gate, holding


async def full(ledger: Ledger) -> None:
    """Fill the disk."""
    await ledger.write(limit_pages(0))
    assert await ledger.write(insert_large("filler")) is Durability.DEFERRED


async def make_room(ledger: Ledger) -> None:
    """Raise the limit from outside the queue, as space on a disk comes back: the writer's connection is its own."""
    ledger._writer._connection.execute("PRAGMA max_page_count = 1000000")


async def test_a_full_disk_holds_up_nobody_and_loses_nothing(ledger: Ledger) -> None:
    told: list[object] = []
    ledger.on_degraded(lambda why: told.append(("degraded", why)))
    ledger.on_recovered(lambda lost: told.append(("recovered", lost)))
    await full(ledger)
    assert ledger.degraded is not None
    assert "full" in ledger.degraded
    assert await ledger.write(insert_large("b")) is Durability.DEFERRED
    ledger.post(insert_large("c"))
    assert await ledger.flush() is Durability.DEFERRED
    with pytest.raises(LedgerDegradedError, match="full"):
        await ledger.call(insert("never"))
    assert await units(ledger) == []  # what is there can still be read
    await make_room(ledger)
    await until(lambda: ledger.degraded is None)
    assert await ledger.flush() is Durability.COMMITTED
    keys = await ledger.read(lambda it: [row[0] for row in it.execute("SELECT key FROM idempotency ORDER BY rowid")])
    assert keys == ["filler", "b", "c"]
    assert await units(ledger) == []
    assert told == [("degraded", ledger_why(told)), ("recovered", 0)]


def ledger_why(told: list[object]) -> str:
    first = told[0]
    assert isinstance(first, tuple)
    return str(first[1])


async def test_what_waits_for_the_disk_is_there_for_whoever_asks(ledger: Ledger) -> None:
    """What was promised is found: a row that a full disk keeps waiting is seen by every question, in its order."""
    ledger.post(insert("before"))
    await broken(ledger)
    assert await ledger.write(insert("b")) is Durability.DEFERRED
    ledger.post(insert("c"))
    ledger.post(lambda it: it.execute("UPDATE pins SET unit = 'd' WHERE unit = 'b'"))
    ledger.post(insert("c"))  # an error of its own is nobody else's
    assert await units(ledger) == ["before", "c", "d"]
    assert await units(ledger) == ["before", "c", "d"]  # nothing of it stayed from the first time
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await ledger.read(lambda it: it.execute("SELECT * FROM no_table"))
    mend(ledger)
    await until(lambda: ledger.degraded is None)
    assert await units(ledger) == ["before", "c", "d"]


async def test_where_sqlite_gives_up_what_waits_the_file_alone_answers(ledger: Ledger) -> None:
    """No page for it even in memory: SQLite then drops all of what was applied, not one operation."""
    await ledger.write(insert("written"))
    await full(ledger)
    ledger.post(insert("small"))
    assert await units(ledger) == ["written"]
    assert await ledger.read(lambda it: it.execute("SELECT count(*) FROM idempotency").fetchone()[0]) == 0
    await make_room(ledger)


async def test_all_that_waited_is_seen_while_it_is_being_written(ledger: Ledger, path: Path) -> None:
    """The first batch that gets in is not the last: the rest is still seen, and nobody waits for it."""
    await broken(ledger)
    for number in range(200):
        ledger.post(insert(f"{number:03}"))
    begun, gate = threading.Event(), threading.Event()
    once = iter([True])

    def stop(_: sqlite3.Connection) -> None:
        if next(once, False):
            return  # a question's
        begun.set()
        gate.wait(60)

    ledger.post(stop)
    assert len(await units(ledger)) == 200
    mend(ledger)
    assert await asyncio.to_thread(begun.wait, 60)
    assert ledger.degraded is None  # three batches are in, the fourth waits
    asking = asyncio.ensure_future(units(ledger))
    await asyncio.sleep(0)
    gate.set()
    assert len(await asking) == 200


async def test_questions_that_never_cease_do_not_keep_the_writer_from_trying(ledger: Ledger) -> None:
    await broken(ledger)
    ledger.post(insert("a"))
    mend(ledger)
    async with asyncio.timeout(60):
        while ledger.degraded is not None:
            assert await units(ledger) == ["a"]


async def test_those_who_ask_a_writer_that_has_ended_are_told(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    await ledger.close()
    told: list[BaseException | None] = []
    ledger._writer.ask(writer.Job(insert("a"), lambda _, error: told.append(error), keeps=False))
    assert isinstance(told[0], writer.DeferredError)


class Broken:
    """The writer's connection on a disk that takes no commit."""

    def __init__(self, sound: sqlite3.Connection) -> None:
        self.sound = sound

    @property
    def in_transaction(self) -> bool:
        return self.sound.in_transaction

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self.sound.execute(sql, *values)


async def broken(ledger: Ledger) -> None:
    """Have the disk take nothing from now on."""
    await ledger.flush()
    ledger._writer._connection = Broken(ledger._writer._connection)  # type: ignore[assignment]  # as far as it goes
    with pytest.raises(LedgerDegradedError):
        await ledger.call(lambda _: None)


def mend(ledger: Ledger) -> None:
    """Let the disk take everything again."""
    connection = ledger._writer._connection
    assert isinstance(connection, Broken)
    ledger._writer._connection = connection.sound


async def test_those_who_wait_when_the_disk_gives_out_are_told_at_once(ledger: Ledger) -> None:
    await ledger.write(limit_pages(0))
    gate, holding = await hold(ledger)
    waiting = [asyncio.ensure_future(ledger.write(insert_large(f"{number}"))) for number in range(5)]
    asking = asyncio.ensure_future(ledger.call(insert("with a result")))
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*waiting) == [Durability.DEFERRED] * 5
        await holding
        with pytest.raises(LedgerDegradedError):
            await asking
    await make_room(ledger)
    await until(lambda: ledger.degraded is None)
    await ledger.flush()
    assert await ledger.read(lambda it: it.execute("SELECT count(*) FROM idempotency").fetchone()[0]) == 5


async def test_what_is_kept_in_memory_is_bounded_and_the_loss_is_counted(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger(StoreLimits(pending_max=3, retry_seconds=0.02, close_seconds=30))
    lost: list[int] = []
    ledger.on_recovered(lost.append)
    await full(ledger)
    for number in range(9):
        ledger.post(insert(f"{number}"))
    assert ledger.lost_writes == 7
    await make_room(ledger)
    await until(lambda: ledger.degraded is None)
    await ledger.flush()
    assert await units(ledger) == ["0", "1"]  # the oldest stay: later ones build on them
    await until(lambda: lost)
    assert lost == [7]


async def test_more_than_fits_is_cut_when_the_disk_gives_out(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger(StoreLimits(pending_max=3, retry_seconds=0.02, close_seconds=30))
    await ledger.write(limit_pages(0))
    gate, holding = await hold(ledger)
    for number in range(5):
        ledger.post(insert_large(f"{number}"))
    gate.set()
    await holding
    await until(lambda: ledger.lost_writes == 2)
    await make_room(ledger)
    await until(lambda: ledger.degraded is None)


async def test_recovery_is_noticed_when_nothing_is_waiting(ledger: Ledger) -> None:
    def fail(_: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    await ledger.flush()  # what the opening queued is done
    with pytest.raises(LedgerDegradedError, match="I/O"):
        await ledger.call(fail)
    await until(lambda: ledger.degraded is None)


async def test_a_disk_that_is_still_full_is_not_thought_well_because_nothing_is_waiting(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def still_full(_: sqlite3.Connection) -> None:
        tries.append(1)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        if len(tries) <= 3:
            raise error

    monkeypatch.setattr(writer, "_probe", still_full)
    await ledger.flush()
    with pytest.raises(LedgerDegradedError):
        await ledger.call(still_full)
    await until(lambda: ledger.degraded is None)
    assert len(tries) == 4


async def test_a_rollback_that_fails_too_does_not_end_the_writer(ledger: Ledger) -> None:
    class Dead:
        in_transaction = True

        def execute(self, _: str) -> None:
            raise sqlite3.OperationalError("disk I/O error")

    sound = ledger._writer._connection
    ledger._writer._connection = Dead()  # type: ignore[assignment]  # as far as the writer goes
    assert await ledger.write(insert("a")) is Durability.DEFERRED
    ledger._writer._connection = sound
    await until(lambda: ledger.degraded is None)
    assert await units(ledger) == ["a"]


async def test_another_program_that_holds_the_file_delays_but_breaks_nothing(path: Path, ledger: Ledger) -> None:
    await ledger.call(lambda it: it.execute("PRAGMA busy_timeout = 1"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert await ledger.write(insert("a")) is Durability.DEFERRED
    other.execute("ROLLBACK")
    other.close()
    await until(lambda: ledger.degraded is None)
    assert await units(ledger) == ["a"]


async def test_a_disk_that_stalls_does_not_stall_those_who_write(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger(StoreLimits(stall_seconds=0.05, close_seconds=30))
    gate, _ = await hold(ledger)
    assert await ledger.write(insert("kept")) is Durability.DEFERRED
    with pytest.raises(LedgerDegradedError, match="does not answer"):
        await ledger.call(insert("given up"))
    gate.set()

    def settled() -> bool:
        return not ledger._writer._queue

    await until(settled)
    assert await units(ledger) == ["kept"]


async def test_closing_with_a_full_disk_ends_and_says_so(
    open_ledger: OpenLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = await open_ledger()
    await full(ledger)
    async with asyncio.timeout(60):
        await ledger.close()
        await ledger.close()
    assert "ledger_closed_with_unwritten_rows" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="only on macOS there is no tmpfs")
async def test_a_disk_that_is_really_full(short_tmp: Path, require: Callable[[object, str], None]) -> None:
    """S10 on a small tmpfs: degraded, alive, and everything is there when space returns."""
    require(os.geteuid() == 0, "root, to mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(short_tmp)], capture_output=True, check=False
    )
    require(mounted.returncode == 0, "the right to mount a small file system")
    try:
        ledger = await Ledger.open(short_tmp / "pxd.db", StoreLimits(retry_seconds=0.02, close_seconds=30))
        await ledger.write(insert("before"))
        filler = short_tmp / "filler"
        with filler.open("wb") as file:
            while os.statvfs(short_tmp).f_bavail:
                file.write(b"\0" * 4096)
                file.flush()
        outcomes = [await ledger.write(insert_large(f"{number}")) for number in range(12)]
        assert outcomes[-1] is Durability.DEFERRED
        assert ledger.degraded is not None
        assert await units(ledger) == ["before"]
        filler.unlink()
        await until(lambda: ledger.degraded is None)
        assert await ledger.flush() is Durability.COMMITTED
        assert await ledger.read(lambda it: it.execute("SELECT count(*) FROM idempotency").fetchone()[0]) == 12
        await ledger.close()
    finally:
        subprocess.run(["umount", str(short_tmp)], check=True)
