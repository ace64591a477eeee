"""Executions of pipes in the ledger: what is written is what is read, one runs at a time, first ends stand."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.errors import ConflictError
from supervisord_py.ledger import instances, pipe_claims, pipe_executions, pipe_history, pipe_state
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.pipe_claims import Claim
from supervisord_py.ledger.pipe_executions import Finish, Output, PipeExecutionRow, Running, Spawned, UsageRow
from supervisord_py.ledger.pipe_state import PipeStateRow, StateChange
from supervisord_py.ledger.store import Durability, Ledger, LedgerDegradedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    OpenLedger = Callable[..., Awaitable[Ledger]]
    Build = Callable[[int], PipeExecutionRow]

NOW = 1_763_700_000.125
EVERYTHING: dict[str, Any] = {
    "agent": "claude",
    "model": "m",
    "provider": "p",
    "preset_id": "fast",
    "not_before": NOW + 1,
    "started_at": NOW + 2,
    "finished_at": NOW + 3,
    "queue_wait_ms": 4,
    "duration_ms": 5,
    "timeout_seconds": 6.5,
    "pid": 7,
    "start_time": 8,
    "boot_id": "b",
    "instance": "0badc0de.1",
    "trigger_event": "pipe_completed",
    "trigger_key": "x:9",
    "api_port": 7860,
    "context_start": NOW - 60,
    "context_end": NOW,
    "exit_code": 1,
    "signal": 9,
    "error_type": "crash",
    "error_message": "it crashed",
    "retry_of": 3,
    "retry_count": 2,
    "input_tokens": 10,
    "output_tokens": 11,
    "cache_read_tokens": 12,
    "cache_write_tokens": 13,
    "total_tokens": 46,
    "cost": 0.25,
    "turns": 4,
    "output_dir": "./output/1/",
    "session_path": "/s",
    "agent_version": "2.1",
    "incomplete": True,
    "stdout_bytes": 14,
    "stderr_bytes": 15,
    "lost_bytes": 16,
    "invalid_utf8": True,
    "plan": "{}",
    "preset_snapshot": '{"id":"fast"}',
    "rendered_prompt": "Time range: …",
    "progress": '{"cursor":1}',
    "stdout": "out \ufffd",
    "stderr": "err",
}


def of(pipe: str = "report", **facts: Any) -> Build:
    """Return what makes the row of a queued execution."""
    base: dict[str, Any] = {"status": "queued", "trigger": "manual", "queue_group": "manual", "queued_at": NOW}
    return lambda number: PipeExecutionRow(id=number, pipe_name=pipe, **{**base, **facts})


async def add(ledger: Ledger, pipe: str = "report", **facts: Any) -> int:
    return (await pipe_executions.add(ledger, of(pipe, **facts))).row.id


async def run(ledger: Ledger, number: int) -> None:
    assert await pipe_executions.mark_running(ledger, number, Running(NOW + 1)) is Durability.COMMITTED


async def whole(ledger: Ledger, number: int) -> PipeExecutionRow:
    row = await pipe_executions.get(ledger, number, blobs=True)
    assert row is not None
    return row


async def test_every_field_is_read_as_it_was_written_and_lists_have_no_large_texts(ledger: Ledger) -> None:
    assert set(EVERYTHING) | {"id", "pipe_name", "status", "trigger", "queue_group", "queued_at"} == {
        it.name for it in fields(PipeExecutionRow)
    }
    added = await pipe_executions.add(ledger, of(**EVERYTHING))
    assert added.durability is Durability.COMMITTED
    assert await whole(ledger, added.row.id) == added.row
    texts: dict[str, Any] = dict.fromkeys(
        ("plan", "preset_snapshot", "rendered_prompt", "progress", "stdout", "stderr")
    )
    assert await pipe_executions.get(ledger, added.row.id, blobs=False) == replace(added.row, **texts)
    assert await pipe_executions.get(ledger, 99, blobs=True) is None


async def test_moments_stand_in_the_file_as_utc_texts_with_milliseconds(ledger: Ledger, path: Path) -> None:
    await add(ledger, queued_at=1_763_700_000.1239, not_before=0.0)
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT queued_at, not_before, started_at FROM pipe_executions").fetchone()
    assert found == ("2025-11-21T04:40:00.124Z", "1970-01-01T00:00:00.000Z", None)
    connection.execute("UPDATE pipe_executions SET queued_at = 'yesterday', not_before = ''")
    connection.commit()
    connection.close()
    row = await whole(ledger, 1)
    assert (row.queued_at, row.not_before) == (0.0, None), "a damaged moment hides no row"


async def test_the_story_of_an_execution(ledger: Ledger) -> None:
    number = await add(ledger, timeout_seconds=300.0, plan="{}")
    assert [it.id for it in await pipe_executions.queued_rows(ledger)] == [number]
    change = StateChange(pipe_name="report", last_run_at=NOW + 1)
    await pipe_executions.mark_running(ledger, number, Running(NOW + 1, 1000, "0badc0de.1"), change=change)
    [row] = await pipe_executions.open_rows(ledger)
    assert (row.status, row.queue_wait_ms, row.instance, row.pid, row.plan) == (
        "running",
        1000,
        "0badc0de.1",
        None,
        "{}",
    )
    await pipe_executions.spawned(ledger, number, Spawned(41, 7, "boot", NOW + 2, agent_version="1.0"))
    half = Output("hel", "", 3, progress="{}", usage=UsageRow(total_tokens=10, cost=0.5))
    assert await pipe_executions.set_output(ledger, number, half) is Durability.COMMITTED
    row = await whole(ledger, number)
    assert (row.pid, row.start_time, row.boot_id, row.started_at, row.timeout_seconds) == (
        41,
        7,
        "boot",
        NOW + 2,
        300.0,
    )
    assert (row.stdout, row.stdout_bytes, row.total_tokens, row.cost, row.progress) == ("hel", 3, 10, 0.5, "{}")
    end = Finish("failed", NOW + 9, 7000, 1, error_type="crash", error_message="x" * 5000, incomplete=True)
    end = replace(end, output=Output(None, "oops", 5, 4, invalid_utf8=True), session_path="/s")
    counted = StateChange(pipe_name="report", consecutive_failures=1)
    ended = await pipe_executions.finish(ledger, number, end, change=counted)
    assert (ended.durability, ended.first) == (Durability.COMMITTED, True)
    row = await whole(ledger, number)
    assert (row.status, row.finished_at, row.duration_ms, row.exit_code) == ("failed", NOW + 9, 7000, 1)
    assert (row.stdout, row.stderr, row.invalid_utf8, row.incomplete) == ("hel", "oops", True, True)
    assert (row.error_type, len(row.error_message or ""), row.agent_version) == ("crash", 4000, "1.0")
    assert (await pipe_state.everything(ledger)).get("report") == PipeStateRow(
        "report", last_run_at=NOW + 1, consecutive_failures=1
    )
    assert await pipe_executions.queued_rows(ledger) == await pipe_executions.open_rows(ledger) == []


async def test_the_first_end_stands_and_nothing_is_added_to_it(ledger: Ledger) -> None:
    number = await add(ledger)
    assert (await pipe_executions.finish(ledger, number, Finish("cancelled", NOW + 1))).first
    late = Finish("completed", NOW + 2, output=Output("late"))
    change = StateChange(pipe_name="report", last_success_at=NOW + 2)
    assert not (await pipe_executions.finish(ledger, number, late, change=change)).first
    await pipe_executions.set_output(ledger, number, Output("late"))
    await pipe_executions.spawned(ledger, number, Spawned(1, 2, "b", NOW))
    row = await whole(ledger, number)
    assert (row.status, row.finished_at, row.stdout, row.pid) == ("cancelled", NOW + 1, None, None)
    assert await pipe_state.everything(ledger) == {}
    with pytest.raises(ConflictError, match="it is cancelled") as caught:
        await pipe_executions.mark_running(ledger, number, Running(NOW))
    assert caught.value.extra == {"execution": number, "state": "cancelled"}
    with pytest.raises(ConflictError, match="not in the ledger"):
        await pipe_executions.mark_running(ledger, 99, Running(NOW))


async def test_one_execution_of_a_pipe_runs_and_the_holder_is_named(ledger: Ledger) -> None:
    first, second, other = await add(ledger), await add(ledger), await add(ledger, "mail")
    await run(ledger, first)
    await run(ledger, other)
    change = StateChange(pipe_name="report", last_run_at=NOW + 50)
    with pytest.raises(ConflictError, match="execution 1, its process is not there yet"):
        await pipe_executions.mark_running(ledger, second, Running(NOW), change=change)
    await pipe_executions.spawned(ledger, first, Spawned(4711, 7, "b", NOW))
    with pytest.raises(ConflictError, match="execution 1, pid 4711") as caught:
        await pipe_executions.mark_running(ledger, second, Running(NOW), change=change)
    assert (caught.value.status, caught.value.unit) == (409, "pipe:report")
    assert caught.value.extra == {"execution": first, "pid": 4711}
    assert await pipe_state.everything(ledger) == {}, "it did not run, so it did not run last either"
    await pipe_executions.finish(ledger, first, Finish("completed", NOW))
    await run(ledger, second)


async def test_what_the_state_becomes_comes_with_the_row_or_not_at_all(
    open_ledger: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: "it was triggered" and "this due time is dealt with" are one fact."""
    ledger = await open_ledger()
    await pipe_executions.add(ledger, of(), change=StateChange(pipe_name="report", last_due=NOW))
    state = (await pipe_state.everything(ledger)).get("report")
    assert state is not None
    assert state.last_due == NOW

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("defect")

    monkeypatch.setattr(pipe_executions, "write_change", broken)
    later = StateChange(pipe_name="report", last_due=NOW + 60)
    with pytest.raises(sqlite3.OperationalError, match="defect"):
        await pipe_executions.add(ledger, of(), change=later)
    with pytest.raises(sqlite3.OperationalError, match="defect"):
        await pipe_executions.mark_running(ledger, 1, Running(NOW), change=later)
    assert [it.id for it in await pipe_executions.queued_rows(ledger)] == [1]
    assert await pipe_executions.open_rows(ledger) == []


async def test_what_is_written_with_a_row_is_there_with_it_or_not_at_all(ledger: Ledger) -> None:
    """The life of a process begins, has its pid and ends in the transactions of its execution's row."""
    number, other = await add(ledger), await add(ledger)
    begins, too_late = (INSTANCES.insert(InstanceRow(key, "pipe:report", NOW)) for key in ("k1", "k2"))
    await pipe_executions.mark_running(ledger, number, Running(NOW, progress="{}"), also=begins)
    with pytest.raises(ConflictError):
        await pipe_executions.mark_running(ledger, other, Running(NOW), also=too_late)
    assert (await whole(ledger, number)).progress == "{}"
    became = INSTANCES.update("k1", pid=7, start_time=8, boot_id="b", started_at=NOW, log_position=9)
    await pipe_executions.spawned(ledger, number, Spawned(7, 8, "b", NOW), also=became)
    end = instances.ended("k1", NOW + 1, "exit", code=0)
    assert (await pipe_executions.finish(ledger, number, Finish("completed", NOW + 1), also=end)).first
    assert [(it.key, it.pid, it.reason) for it in await instances.latest(ledger, "pipe:report", 9)] == [
        ("k1", 7, "exit")
    ]
    assert (await whole(ledger, number)).progress is None, "nobody takes over what is over"


async def test_an_event_starts_a_pipe_once_however_often_it_is_told(ledger: Ledger) -> None:
    claim = Claim("report", "pipe_completed", "mail:7", NOW)
    told = [pipe_executions.add_claimed(ledger, of(), claim) for _ in range(4)]
    added = [it for it in await asyncio.gather(*told) if it is not None]
    assert len(added) == 1
    assert [it.id for it in await pipe_executions.queued_rows(ledger)] == [added[0].row.id]
    await pipe_claims.release(ledger, "report", "pipe_completed", "mail:7")
    again = await pipe_executions.add_claimed(
        ledger, of(), claim, change=StateChange(pipe_name="report", occurrences=1)
    )
    assert again is not None
    assert await pipe_executions.add_claimed(ledger, of("mail"), replace(claim, pipe_name="mail")) is not None
    assert (await pipe_state.everything(ledger))["report"].occurrences == 1


async def test_an_event_that_is_refused_leaves_no_hole_in_the_ids(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    claim = Claim("report", "pipe_completed", "mail:7", NOW)
    told = await asyncio.gather(*(pipe_executions.add_claimed(ledger, of(), claim) for _ in range(3)))
    assert [it is None for it in told] == [False, True, True]
    assert await add(ledger, "mail") == 2


async def fill_the_disk(ledger: Ledger) -> None:
    def limit(connection: sqlite3.Connection) -> None:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {count}")

    await ledger.write(limit)
    filler = "INSERT INTO idempotency VALUES ('filler', 'r', 'd', 200, 't', zeroblob(50000), 0)"
    assert await ledger.write(lambda connection: connection.execute(filler)) is Durability.DEFERRED


async def make_room(ledger: Ledger) -> None:
    back = asyncio.Event()
    ledger.on_recovered(lambda _: back.set())
    ledger._writer._connection.execute("PRAGMA max_page_count = 1000000")
    async with asyncio.timeout(60):
        await back.wait()
        while await ledger.flush() is not Durability.COMMITTED:
            await asyncio.sleep(0.005)


async def test_a_full_disk_stops_no_execution_and_forgets_none(open_ledger: OpenLedger) -> None:
    """C2: an execution is queued, run and ended while the disk takes nothing; all of it is there afterwards."""
    ledger = await open_ledger()
    before = await add(ledger, "mail")
    await run(ledger, before)
    await fill_the_disk(ledger)
    added = await pipe_executions.add(ledger, of(), change=StateChange(pipe_name="report", last_due=NOW))
    assert added.durability is Durability.DEFERRED
    number = added.row.id
    assert await pipe_executions.mark_running(ledger, number, Running(NOW)) is Durability.DEFERRED
    assert await pipe_executions.set_output(ledger, number, Output("x" * 1000)) is Durability.DEFERRED
    ended = await pipe_executions.finish(ledger, number, Finish("completed", NOW + 5, output=Output("all", "", 3)))
    assert (ended.durability, ended.first) == (Durability.DEFERRED, True)
    await pipe_executions.finish(ledger, before, Finish("failed", NOW + 6))
    with pytest.raises(LedgerDegradedError):
        await pipe_executions.add_claimed(ledger, of(), Claim("report", "e", "k", NOW))
    assert await pipe_executions.get(ledger, number, blobs=False) is None, "it is in memory only"
    await make_room(ledger)
    row = await whole(ledger, number)
    assert (row.status, row.stdout, row.started_at) == ("completed", "all", NOW)
    assert (await whole(ledger, before)).status == "failed"
    assert (await pipe_state.everything(ledger))["report"].last_due == NOW
    assert ledger.lost_writes == 0


async def test_numbering_goes_on_after_a_restart(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    for _ in range(3):
        await pipe_executions.finish(ledger, await add(ledger), Finish("completed", NOW))
    limits = pipe_history.KeepLimits(age_seconds=0.0, rows_of_each=1, bytes_of_all=0)
    assert await pipe_history.prune(ledger, limits, NOW + 1e6) == (1, 2)
    await ledger.close()
    assert await add(await open_ledger()) == 4


async def test_a_ledger_of_the_third_version_loads_with_its_pipes(path: Path, open_ledger: OpenLedger) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(Path(__file__).with_name("frozen_v3.sql").read_text(encoding="utf-8"))
    connection.close()
    ledger = await open_ledger()
    done = await whole(ledger, 1)
    assert (done.status, done.trigger, done.duration_ms, done.total_tokens, done.cost) == (
        "completed", "scheduled", 90250, 1000, 0.0125,
    )  # fmt: skip
    assert (done.stdout, done.rendered_prompt, done.context_end) == ("hello world", "Time range: …", done.queued_at)
    [running] = await pipe_executions.open_rows(ledger)
    assert (running.id, running.pid, running.progress) == (2, 4712, '{"cursor":42}')
    [queued] = await pipe_executions.queued_rows(ledger)
    assert (queued.id, queued.retry_of, queued.retry_count) == (3, 1, 1)
    states = await pipe_state.everything(ledger)
    assert (states["daily-report"].enabled, states["daily-report"].occurrences) == (True, 1)
    assert states["mail"] == PipeStateRow("mail", consecutive_failures=3)
    again = Claim("mail", "pipe_completed", "daily-report:1", NOW)
    assert await pipe_executions.add_claimed(ledger, of("mail"), again) is None, "it was taken in the old one"
