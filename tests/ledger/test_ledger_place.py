"""Opening: what cannot be used is refused with a sentence, what is damaged is moved aside, rows
stay readable.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisord_py.errors import EXIT_BAD_SETTINGS, PxError
from supervisord_py.ledger import instances, place, schema
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import INSTANCES, PINS, InstanceRow, PinRow
from supervisord_py.ledger.store import (
    Ledger,
    LedgerDegradedError,
    LedgerUnusableError,
    StoreLimits,
)
from supervisord_py.process.event_words import Journal
from supervisord_py.process.events import ALL_EVENTS, JOURNALS, Event, EventStream, last_event
from waiting import eventually

OpenLedger = Callable[..., Awaitable[Ledger]]


def damage_pages(path: Path) -> None:
    """Overwrite every second page but the first ones: the file opens, and queries meet the
    damage.
    """
    with path.open("r+b") as file:
        for offset in range(8 * 4096, path.stat().st_size - 4096, 8192):
            file.seek(offset)
            file.write(b"\xa5" * 4096)


def fill(path: Path, rows: int) -> None:
    connection, _ = schema.open_for_writing(path, 0.0)
    connection.execute("BEGIN")
    sql = "INSERT INTO events (id, time, unit, event, facts) VALUES (?, 1.0, 'tool:x', 'e', ?)"
    connection.executemany(sql, [(number, "x" * 1500) for number in range(1, rows + 1)])
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "a link"])
async def test_what_is_no_file_is_refused_and_not_touched(
    path: Path, kind: str, suffix: str
) -> None:
    part = path.with_name(path.name + suffix)
    makes: dict[str, Callable[[], object]] = {
        "a directory": part.mkdir,
        "a FIFO": lambda: os.mkfifo(part),
        "a link": lambda: part.symlink_to("/nowhere/at/all"),
    }
    makes[kind]()
    for _ in range(2):
        with pytest.raises(LedgerUnusableError, match=kind) as caught:
            await Ledger.open(path)
        assert (caught.value.exit_code, str(part) in caught.value.detail) == (
            EXIT_BAD_SETTINGS,
            True,
        )
        assert caught.value.hint is not None
    assert [it.name for it in path.parent.iterdir()] == [part.name]


@pytest.mark.parametrize("is_folder", [True, False])
async def test_a_file_or_folder_without_permission_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    """Root may write everywhere, so the answer of access(2) is given here."""
    fill(path, 1)
    denied = path.parent if is_folder else path
    monkeypatch.setattr(place.os, "access", lambda asked, _: Path(asked) != denied)
    with pytest.raises(LedgerUnusableError, match="may not"):
        await Ledger.open(path)


async def test_errors_of_disk_and_locks_are_neither_damage_nor_final(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, 1)
    for code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
        error = sqlite3.OperationalError("refused")
        error.sqlite_errorcode = code

        def refuse(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(schema, "migrate", refuse)
        with pytest.raises(PxError, match="refused") as caught:
            await Ledger.open(path)
        assert caught.value.exit_code != EXIT_BAD_SETTINGS
    assert place.moved_ledgers(path) == []


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE events",
        "DROP TABLE pins",
        "ALTER TABLE instances DROP COLUMN port",
        "PRAGMA user_version = -3",
    ],
)
async def test_a_missing_table_or_column_is_damage(
    path: Path, open_ledger: OpenLedger, statement: str
) -> None:
    fill(path, 3)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    [moved] = place.moved_ledgers(path)
    assert str(moved.path) == ledger.recovered_from["moved_to"]
    assert ledger.why_moved(moved.path.name) == ledger.recovered_from["detail"]
    assert await ledger.write(INSTANCES.insert(InstanceRow("k", "tool:x", 1.0)))
    assert [it["moved_to"] for it in ledger.take_news()] == [str(moved.path)]
    assert ledger.take_news() == []
    await ledger.close()
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    assert ledger.take_news() == [], "an event tells it once"
    assert ledger.why_moved(moved.path.name) is not None, "and the reason stays while the file does"


async def test_a_missing_index_is_made_again(path: Path, open_ledger: OpenLedger) -> None:
    fill(path, 3)
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX pipe_executions_waiting")
    connection.commit()
    connection.close()
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    assert await last_event(ledger) == 3


async def test_damage_that_a_query_meets_moves_the_open_file_aside(
    path: Path, open_ledger: OpenLedger
) -> None:
    fill(path, 6000)
    assert path.stat().st_size > schema.SMALL_BYTES
    damage_pages(path)
    ledger = await open_ledger()
    seen: list[tuple[str | None, str]] = []
    ledger.on_damage = lambda moved_to, why: seen.append((moved_to, why))
    if ledger.recovered_from is None:  # the opening itself may have met it
        with pytest.raises(LedgerDegradedError):
            await ALL_EVENTS.find(ledger)
        await eventually(lambda: seen)
        assert seen[0][0] is not None
        await ledger.close()
        ledger = await open_ledger()
    [moved] = place.moved_ledgers(path)
    assert ledger.why_moved(moved.path.name)
    assert await ALL_EVENTS.find(ledger) == []
    stream = await EventStream.open(ledger)
    assert stream.publish("e") > 6000, "ids go on beyond those of the damaged one"


async def test_a_large_file_is_checked_beside_the_work_after_an_unclean_end_only(
    path: Path, open_ledger: OpenLedger
) -> None:
    fill(path, 6000)
    # The last one to close a file removes this: who finds one was not preceded by a clean end.
    ledger = await open_ledger()
    assert not ledger.ended_uncleanly
    await ledger.close()
    assert not path.with_name("pxd.db-wal").exists()
    damage_pages(path)
    path.with_name("pxd.db-wal").touch()
    ledger = await open_ledger()
    seen: list[str] = []
    ledger.on_damage = lambda _moved_to, why: seen.append(why)
    assert ledger.ended_uncleanly
    if ledger.recovered_from is None:
        ledger.check_later()
        await eventually(lambda: seen)
    assert len(place.moved_ledgers(path)) == 1


async def test_a_row_whose_text_is_damaged_is_left_out_and_reported(
    path: Path, open_ledger: OpenLedger
) -> None:
    ledger = await open_ledger()
    for number in range(1, 6):
        await ledger.write(
            JOURNALS[Journal.LIFE].insert(
                Event(number, 1.0, "tool:x", "e", facts={"text": f"word{number}"})
            )
        )
    await ledger.write(INSTANCES.insert(InstanceRow("key1", "tool:word3", 1.0)))
    await ledger.write(INSTANCES.insert(InstanceRow("key2", "tool:x", 1.0)))
    await ledger.write(PINS.put(PinRow("tool:word3", forever=True, pinned_at=1.0)))
    await ledger.write(PINS.put(PinRow("tool:x", forever=True, pinned_at=1.0)))
    cell = kernel_rows.KernelCellRow("c", "word3", "call", 0, "1", "ok", 1.0, 1.0, instance="k")
    await ledger.write(kernel_rows.CELLS.insert(cell))
    await ledger.close()
    # One byte of each, so that it is no UTF-8 any more.
    path.write_bytes(path.read_bytes().replace(b"word3", b"w\xffrd3"))
    ledger = await open_ledger(StoreLimits())
    seen: list[str] = []
    ledger.on_unreadable = seen.append
    assert ledger.recovered_from is None
    for _ in range(2):
        assert [it.id for it in await ALL_EVENTS.find(ledger, "ORDER BY id")] == [1, 2, 4, 5]
    assert [it.key for it in await instances.open_rows(ledger)] == ["key2"]
    assert [it.unit for it in await PINS.find(ledger)] == ["tool:x"]
    assert await kernel_rows.newest_of_all(ledger) == {}
    assert ledger.unreadable == {"all_events": 1, "instances": 1, "pins": 1}
    await eventually(lambda: sorted(seen) == ["all_events", "instances", "pins"])


async def test_what_a_start_asks_is_answered_from_an_index(ledger: Ledger) -> None:
    """No question of a start may read a whole table of the history."""
    asked: list[str] = []
    ledger._reading.set_trace_callback(asked.append)
    await instances.open_rows(ledger)
    await instances.interrupted_since(ledger, 1.0)
    await kernel_rows.newest_of_all(ledger)
    await kernel_rows.open_cells(ledger)
    await last_event(ledger)
    ledger._reading.set_trace_callback(None)
    asked.append(schema.AT_OPEN)
    for question in asked:
        plan = [row[3] for row in ledger._reading.execute(f"EXPLAIN QUERY PLAN {question}")]
        scans = [
            step
            for step in plan
            if step.startswith("SCAN") and "INDEX" not in step and "sessions" not in step
        ]
        assert scans in ([], ["SCAN CONSTANT ROW"]), (question, plan)
