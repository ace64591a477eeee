"""The store: one writer in order, commits in groups, private files, a full disk, a clean end."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisord_py.ledger.instances import PINS
from supervisord_py.ledger.store import Durability, Ledger, LedgerDegradedError, LedgerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    OpenLedger = Callable[..., Awaitable[Ledger]]


BLOB = b"x" * 50_000


def insert(unit: str) -> Callable[[sqlite3.Connection], object]:
    return lambda connection: connection.execute("INSERT INTO pins VALUES (?, 0, 0)", (unit,))


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


async def test_what_was_written_is_there_after_the_await_and_after_a_restart(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    assert await ledger.write(insert("a")) is Durability.COMMITTED
    ledger.post(insert("b"))
    assert await ledger.flush() is Durability.COMMITTED
    assert await units(ledger) == ["a", "b"]
    await ledger.close()
    assert await units(await open_ledger()) == ["a", "b"]


async def test_what_was_posted_is_written_by_close(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    for number in range(2500):
        ledger.post(insert(f"{number:05}"))
    await ledger.close()
    assert len(await units(await open_ledger())) == 2500


async def test_writes_take_effect_in_the_order_in_which_they_were_asked(ledger: Ledger) -> None:
    seen: list[int] = []
    tasks = []
    for number in range(300):
        if number % 3 == 0:
            ledger.post(lambda _, number=number: seen.append(number))
        else:
            tasks.append(asyncio.ensure_future(ledger.write(lambda _, number=number: seen.append(number))))
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    await ledger.flush()
    assert seen == list(range(300))


async def test_what_is_queued_together_is_committed_together(ledger: Ledger) -> None:
    commits: list[str] = []
    gate, holding = await hold(ledger)
    ledger._writer._connection.set_trace_callback(commits.append)
    many = [asyncio.ensure_future(ledger.write(insert(f"{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(holding, *many)
    ledger._writer._connection.set_trace_callback(None)
    assert commits.count("COMMIT") == 2


async def test_an_operation_at_fault_fails_alone(ledger: Ledger) -> None:
    await ledger.write(insert("a"))
    gate, holding = await hold(ledger)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO pins VALUES ('half', 0, 0)")
        raise KeyError("a defect")

    tasks = [asyncio.ensure_future(ledger.write(it)) for it in (insert("b"), insert("a"), half, insert("c"))]
    await asyncio.sleep(0)
    ledger.post(insert("a"))
    gate.set()
    found = await asyncio.gather(holding, *tasks, return_exceptions=True)
    assert found[1] is found[4] is Durability.COMMITTED
    assert isinstance(found[2], sqlite3.IntegrityError)
    assert isinstance(found[3], KeyError)
    assert await units(ledger) == ["a", "b", "c"]
    assert ledger.degraded is None


async def test_call_returns_its_result(ledger: Ledger) -> None:
    assert await ledger.call(lambda connection: connection.execute("SELECT 41 + 1").fetchone()[0]) == 42
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await ledger.call(lambda connection: connection.execute("SELECT * FROM missing"))


async def test_readers_cannot_write(ledger: Ledger) -> None:
    with pytest.raises(LedgerDegradedError, match="readonly"):
        await ledger.read(insert("a"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await ledger.read(lambda connection: connection.execute("SELECT * FROM missing"))


async def test_a_long_read_does_not_hold_up_writes(ledger: Ledger) -> None:
    gate = threading.Event()
    reading = asyncio.ensure_future(ledger.read(lambda _: gate.wait(60)))
    assert await ledger.write(insert("a")) is Durability.COMMITTED
    assert not reading.done()
    gate.set()
    assert await reading


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_the_files_are_private_under_any_umask(path: Path, mask: int) -> None:
    """In a process of its own: the umask belongs to the whole process."""
    program = f"""
import asyncio, os, pathlib
os.umask({mask})
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.instances import PINS, PinRow
async def main():
    ledger = await Ledger.open(pathlib.Path({str(path)!r}))
    await ledger.write(PINS.put(PinRow("tool:x", True, 1.0)))
    for name in sorted(os.listdir({str(path.parent)!r})):
        print(name, oct(os.stat(os.path.join({str(path.parent)!r}, name)).st_mode & 0o7777))
    await ledger.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["pxd.db", "0o600", "pxd.db-shm", "0o600", "pxd.db-wal", "0o600"]


async def test_files_that_others_could_read_are_taken_back(path: Path, open_ledger: OpenLedger) -> None:
    await (await open_ledger()).close()
    wal = path.with_name("pxd.db-wal")
    wal.touch()
    for file in (path, wal):
        file.chmod(0o644)
    await open_ledger()
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, wal)] == [0o600, 0o600]


async def test_a_folder_that_is_not_there_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailableError, match=r"cannot open the ledger .*missing"):
        await Ledger.open(tmp_path / "missing" / "pxd.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LedgerUnavailableError):
        await Ledger.open(tmp_path / "folder")


async def test_a_writer_that_was_cancelled_takes_nothing_with_it(ledger: Ledger) -> None:
    gate, _ = await hold(ledger)
    task = asyncio.ensure_future(ledger.write(insert("a")))
    await asyncio.sleep(0)
    task.cancel()
    gate.set()
    await ledger.flush()
    assert await units(ledger) == ["a"]


async def test_after_the_end_nothing_is_taken(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    await ledger.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await ledger.write(insert("a"))
    ledger.post(insert("b"))
    with pytest.raises(LedgerUnavailableError):
        await units(ledger)
    assert ledger.lost_writes == 2
