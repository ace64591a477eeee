"""A disk that takes nothing: nobody waits for it, nothing is lost that fits into memory, and it is said."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisord_py.ledger.instances import PINS
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
    return [it.unit for it in await PINS.find(ledger, "ORDER BY unit")]


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
    assert await units(ledger) == []  # what is there can still be read, what waits is not there yet
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


async def test_recovery_is_noticed_when_nothing_is_waiting(ledger: Ledger) -> None:
    def fail(_: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    await ledger.flush()  # what the opening queued is done
    with pytest.raises(LedgerDegradedError, match="I/O"):
        await ledger.call(fail)
    await until(lambda: ledger.degraded is None)


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
