"""The store: one writer in order, commits in groups; nobody waits for a full disk; old, newer
and broken files.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisord_py.api.idempotency import CUT_OFF, claim
from supervisord_py.errors import ConfigError
from supervisord_py.ledger import instances, pipes, schema
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import PINS, UNIT_STATES, PinRow
from supervisord_py.ledger.store import (
    Ledger,
    LedgerDegradedError,
    LedgerUnavailableError,
    StoreLimits,
)
from supervisord_py.process.event_words import Journal, journal_of
from supervisord_py.process.events import ALL_EVENTS, JOURNALS, EventStream, chain, last_event
from waiting import eventually

OpenLedger = Callable[..., Awaitable[Ledger]]

BLOB = b"x" * 50_000


def insert(unit: str) -> Callable[[sqlite3.Connection], object]:
    return lambda connection: connection.execute("INSERT INTO pins VALUES (?, 0, 0)", (unit,))


async def units(ledger: Ledger) -> list[str]:
    return [it.unit for it in await PINS.find(ledger, "ORDER BY unit")]


async def hold(ledger: Ledger) -> tuple[threading.Event, asyncio.Future[bool]]:
    """Keep the writer busy: what is queued now goes into its next commit.

    Set the event to let it go on.
    """
    begun, gate = threading.Event(), threading.Event()

    def run(_: sqlite3.Connection) -> None:
        begun.set()
        gate.wait(60)

    holding = asyncio.ensure_future(ledger.write(run))
    assert await asyncio.to_thread(begun.wait, 60)
    return gate, holding


async def test_what_is_queued_together_is_committed_together_in_its_order(ledger: Ledger) -> None:
    seen: list[int] = []
    commits: list[str] = []
    gate, holding = await hold(ledger)
    ledger._writing.set_trace_callback(commits.append)
    tasks = []
    for number in range(60):
        if number % 3 == 0:
            ledger.post(lambda _, number=number: seen.append(number))
        else:
            tasks.append(
                asyncio.ensure_future(ledger.write(lambda _, number=number: seen.append(number)))
            )
            await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(holding, *tasks)
    ledger._writing.set_trace_callback(None)
    assert (seen, commits.count("COMMIT")) == (list(range(60)), 2)


async def test_an_operation_at_fault_fails_alone_and_one_whose_writer_was_cancelled_is_done(
    ledger: Ledger,
) -> None:
    await ledger.write(insert("a"))
    gate, holding = await hold(ledger)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO pins VALUES ('half', 0, 0)")
        raise KeyError("a defect")

    wanted = insert("b"), insert("cancelled"), insert("a"), half, insert("c")
    tasks = [asyncio.ensure_future(ledger.write(it)) for it in wanted]
    await asyncio.sleep(0)
    tasks[1].cancel()
    ledger.post(insert("a"))
    gate.set()
    found = await asyncio.gather(holding, *tasks, return_exceptions=True)
    assert found[1] is found[5] is True
    assert [type(it) for it in found[2:5]] == [
        asyncio.CancelledError,
        sqlite3.IntegrityError,
        KeyError,
    ]
    assert await units(ledger) == ["a", "b", "c", "cancelled"]
    assert ledger.degraded is None


async def test_a_folder_that_is_not_there_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailableError, match=r"cannot open the ledger .*missing"):
        await Ledger.open(tmp_path / "missing" / "pxd.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LedgerUnavailableError):
        await Ledger.open(tmp_path / "folder")


# -- a disk that takes nothing --


def insert_large(key: str) -> Callable[[sqlite3.Connection], object]:
    sql = "INSERT INTO idempotency VALUES (?, 'r', 'd', 200, 't', ?, 0)"
    return lambda connection: connection.execute(sql, (key, BLOB))


async def full(ledger: Ledger) -> None:
    """Let the file grow by no page more: SQLite then says that the disk is full.

    Its lowest limit is what is there.
    """
    await ledger.write(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    assert not await ledger.write(insert_large("filler"))


async def make_room(ledger: Ledger) -> None:
    """Raise the limit from outside the queue, as space on a disk comes back: the writer's
    connection is its own.
    """
    ledger._writing.execute("PRAGMA max_page_count = 1000000")
    await eventually(lambda: ledger.degraded is None)


async def test_a_full_disk_holds_up_nobody_and_loses_nothing(ledger: Ledger) -> None:
    told: list[str | None] = []
    ledger.on_change = told.append
    await full(ledger)
    assert ledger.degraded is not None
    assert "full" in ledger.degraded
    assert not await ledger.write(insert_large("b"))
    ledger.post(insert_large("c"))
    assert not await ledger.flush()
    with pytest.raises(LedgerDegradedError, match="full"):
        await ledger.call(insert("never"))
    assert await units(ledger) == []  # what is there can still be read, what waits is not there yet
    await make_room(ledger)
    assert await ledger.flush()
    keys = await ledger.read(
        lambda it: [row[0] for row in it.execute("SELECT key FROM idempotency ORDER BY rowid")]
    )
    assert keys == ["filler", "b", "c"]
    assert await units(ledger) == []
    assert [bool(why) for why in told] == [True, False]
    assert ledger.lost_writes == 0


async def test_what_is_kept_in_memory_is_bounded_and_the_loss_is_counted(
    open_ledger: OpenLedger,
) -> None:
    ledger = await open_ledger(StoreLimits(pending_max=3, retry_seconds=0.02, close_seconds=30))
    await full(ledger)
    for number in range(9):
        ledger.post(insert(f"{number}"))
    assert ledger.lost_writes == 7
    await make_room(ledger)
    await ledger.flush()
    assert await units(ledger) == ["0", "1"]  # the oldest stay: later ones build on them
    assert ledger.lost_writes == 7


async def test_a_disk_that_stalls_does_not_stall_those_who_write(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger(StoreLimits(stall_seconds=0.05, close_seconds=30))
    gate, _ = await hold(ledger)
    assert not await ledger.write(insert("kept"))
    with pytest.raises(LedgerDegradedError, match="does not answer"):
        await ledger.call(insert("given up"))
    gate.set()
    await eventually(lambda: not ledger._queue)
    assert await units(ledger) == ["kept"]


# -- kill -9 --


WRITER = """
import asyncio, pathlib, sys
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.process.events import Event, written
from supervisord_py.ledger.store import Ledger

async def main():
    ledger = await Ledger.open(pathlib.Path(sys.argv[1]))
    for number in range(1, 1_000_000):
        ledger.post(written(Event(number, 0.0, None, "e")))
        await ledger.write(INSTANCES.insert(InstanceRow(f"k{number}", "tool:x", 0.0)))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 7, 120])
async def test_what_was_awaited_survives_a_kill(
    path: Path, open_ledger: OpenLedger, lines: int
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(lines)]
    child.kill()
    told += [int(line) for line in child.stdout.read().split()]
    child.stdout.close()
    child.wait()
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    # Queued before the row that was awaited, so written with it.
    assert await last_event(ledger) >= told[-1]
    rows = await instances.open_rows(ledger)
    assert {f"k{number}" for number in told} <= {row.key for row in rows}
    closed = await instances.close_interrupted(ledger, set(), 5.0)
    assert len(closed) == len(rows)
    assert await instances.open_rows(ledger) == []


# -- the file: old ones load for ever, newer ones are refused, broken ones are set aside -----------


def version_of(frozen: Path) -> int:
    return int(frozen.stem.removeprefix("frozen_v"))


FROZEN = sorted(Path(__file__).parent.glob("frozen_v*.sql"), key=version_of)


def load(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def fill(path: Path, rows: int) -> None:
    connection, _ = schema.open_for_writing(path, 0.0)
    connection.execute("BEGIN")
    for number in range(1, rows + 1):
        values = (number, float(number), "tool:x", "e", "x" * 300)
        connection.execute(
            "INSERT INTO events (id, time, unit, event, facts) VALUES (?, ?, ?, ?, ?)", values
        )
    connection.execute("INSERT INTO pins VALUES ('tool:pinned', 1, 5.0)")
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.parametrize("frozen", FROZEN, ids=[it.stem for it in FROZEN])
async def test_a_ledger_of_every_released_version_loads(
    frozen: Path, path: Path, open_ledger: OpenLedger
) -> None:
    load(path, frozen.read_text(encoding="utf-8"))
    ledger, tool = await open_ledger(), "tool:lorenz-ode-solver"
    assert ledger.recovered_from is None
    ended = await instances.INSTANCES.get(ledger, "0badc0de.1tfajv0000aa")
    assert ended is not None
    assert (ended.unit, ended.reason, ended.signal) == (tool, "memory_limit", 9)
    assert ended.verdict == {"by": "keeper", "reason": "memory_limit", "rss_bytes": 629145600}
    assert [it.key for it in await instances.open_rows(ledger)] == ["0badc0de.1tfajv0000ab"]
    _, stopped = await ALL_EVENTS.find(ledger, "WHERE unit = ? ORDER BY id LIMIT 2", tool)
    assert [it.event for it in await chain(ledger, stopped)] == ["tool_started", "tool_stopped"]
    assert await PINS.find(ledger) == [PinRow(tool, forever=True, pinned_at=1763700000.5)]
    (state,) = await UNIT_STATES.find(ledger)
    assert (state.unit, state.state, state.facts) == (tool, "failed", {"reason": "memory_limit"})
    assert await claim(ledger, "k1", "POST /r", "d") == ("d", 200, "application/json", b"{}")
    assert await claim(ledger, "k2", "POST /r", "d") == ("d", CUT_OFF, None, None)
    if frozen != FROZEN[0]:
        assert len(await kernel_rows.all_sessions(ledger)) == 2
        cells = await kernel_rows.of_session(ledger, "default-3fa9c1")
        assert [it.status for it in cells if it.truncated] == ["timed_out"]
        assert [it.status for it in cells] == ["error", "timed_out", "running"]
        assert cells[0].error == {
            "name": "ZeroDivisionError",
            "value": "division by zero",
            "traceback": [],
        }
    if frozen not in FROZEN[:2]:
        done, running, queued = await pipes.EXECUTIONS.find(ledger, "ORDER BY id")
        assert (done.status, done.trigger, done.duration_ms, done.cost) == (
            "completed",
            "scheduled",
            90250,
            0.0125,
        )
        assert (done.stdout, done.rendered_prompt, done.context_end) == (
            "hello world",
            "Time range: …",
            done.queued_at,
        )
        assert (running.status, running.pid, running.progress) == ("running", 4712, '{"cursor":42}')
        assert (queued.status, queued.retry_of, queued.retry_count) == ("queued", 1, 1)
        report, mail = await pipes.PIPE_STATES.find(ledger, "ORDER BY pipe_name")
        assert (report.enabled, report.occurrences, mail.consecutive_failures) == (True, 1, 3)
        again = pipes.Claim("mail", "pipe_completed", "daily-report:1", 1763700000.0)
        assert not await ledger.call(pipes.claimed(again, pipes.PIPE_STATES.merge("mail"))), (
            "it was taken"
        )


async def test_events_of_an_older_ledger_are_moved_to_their_journals(
    path: Path, open_ledger: OpenLedger
) -> None:
    frozen = next(each for each in FROZEN if version_of(each) == 8)
    load(path, frozen.read_text(encoding="utf-8"))
    ledger = await open_ledger()
    found = {}
    for journal, table in JOURNALS.items():
        found[journal] = [it.id for it in await table.find(ledger, "ORDER BY id")]
    assert found == {
        Journal.RUNS: [3, 6, 8, 12],
        Journal.LIFE: [1, 10],
        Journal.FAILURES: [2, 7, 11],
        Journal.FAILED_RUNS: [4, 5, 9],
    }
    whole = await ALL_EVENTS.find(ledger, "ORDER BY id")
    assert [it.id for it in whole] == list(range(1, 13)), "none is lost, none is there twice"
    # the first two are of the first edition, the facts of the last one are damaged
    for event in whole[2:-1]:
        assert event.id in found[journal_of(event.event, event.reason, event.facts)]
    assert EventStream(ledger, await last_event(ledger)).publish("reloaded") == 13


def test_the_first_steps_were_never_edited(tmp_path: Path) -> None:
    """A frozen file and the migrations up to its version make the same tables."""

    def tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        )
        return [(name, " ".join(sql.split())) for name, sql in rows]

    for number, frozen in ((version_of(each), each) for each in FROZEN):
        load(tmp_path / f"{number}", frozen.read_text(encoding="utf-8"))
        old = sqlite3.connect(tmp_path / f"{number}")
        new = sqlite3.connect(":memory:", isolation_level=None)
        assert schema.migrate(new, upto=number) == number
        assert tables(old) == tables(new)
        old.close()
        new.close()


async def test_a_ledger_of_a_newer_version_is_refused_and_untouched(
    path: Path, open_ledger: OpenLedger
) -> None:
    load(path, f"CREATE TABLE t (x); PRAGMA user_version = {schema.VERSION + 1};")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"schema version {schema.VERSION + 1}") as caught:
        await open_ledger()
    assert caught.value.hint is not None
    assert caught.value.extra["file"] == str(path)
    assert path.read_bytes()[100:] == before[100:]  # the header says WAL now, nothing else
    assert list(path.parent.glob("*corrupt*")) == []


async def test_a_ledger_damaged_inside_is_set_aside(path: Path, open_ledger: OpenLedger) -> None:
    fill(path, 2000)
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    content = whole[:middle] + b"\xa5" * 8192 + whole[middle + 8192 :]
    path.write_bytes(content)
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    assert Path(ledger.recovered_from["moved_to"]).read_bytes() == content
    assert await last_event(ledger) == 0
    await ledger.close()
    assert (await open_ledger()).recovered_from is None


async def test_a_file_that_is_locked_stays_where_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_BUSY_MILLISECONDS", 50)
    fill(path, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailableError, match="locked"):
        await Ledger.open(path)
    other.close()
    assert list(path.parent.glob("*corrupt*")) == []


async def test_a_broken_write_ahead_log_loses_only_its_own_end(
    path: Path, open_ledger: OpenLedger
) -> None:
    """S9: after a power cut the last frames of the log are rubbish; what was committed before is
    there.
    """
    writing, _ = schema.open_for_writing(path, 0.0)
    writing.execute("INSERT INTO pins VALUES ('tool:a', 0, 1.0)")
    wal = path.with_name("pxd.db-wal")
    whole = wal.stat().st_size
    writing.execute("INSERT INTO pins VALUES ('tool:b', 0, 1.0)")
    content, log = path.read_bytes(), wal.read_bytes()
    writing.close()
    path.write_bytes(content)
    wal.write_bytes(log[: whole + 100] + b"\x5a" * (len(log) - whole - 100))
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    assert [it.unit for it in await PINS.find(ledger, "ORDER BY unit")] == ["tool:a"]
