"""Executions of pipes in the ledger: what is written is what is read, one runs at a time, first ends stand."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from supervisord_py.errors import ConflictError
from supervisord_py.ledger import pipe_executions, pipe_history
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.pipe_executions import (
    EXECUTIONS,
    OPEN,
    ErrorType,
    Execution,
    Group,
    Plan,
    Preset,
    Status,
    Trigger,
    finish,
    mark_running,
)
from supervisord_py.ledger.pipe_history import PIPE_STATES, Claim, PipeStateRow, claimed
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import together

OpenLedger = Callable[..., Awaitable[Ledger]]

NOW = 1_763_700_000.125
BLOBS = {"plan", "preset", "rendered_prompt", "progress", "stdout", "stderr"}


def everything(number: int = 1) -> Execution:
    """Return an execution of which every field says something else than its default."""
    by_type = {"int": 7, "float": NOW, "str": "é \ufffd", "bool": True}
    found: dict[str, Any] = {
        "status": Status.QUEUED,
        "trigger": Trigger.EVENT,
        "group": Group.EVENT,
        "error_type": ErrorType.CRASH,
        "plan": Plan("pi", ("a", "b"), 12.5, fallbacks=(Preset("two", model="m2"),), context={"event": "x", "n": [1]}),
        "preset": Preset("one", "openai", "m"),
    }
    for name, kind in Execution.__annotations__.items():
        found.setdefault(name, by_type.get(str(kind).partition(" ")[0]))
    return Execution(**{**found, "id": number, "pipe_name": "report", "position": None})


async def add(ledger: Ledger, pipe: str = "report", **facts: Any) -> int:
    number = ledger.next_number("pipe_executions")
    row = Execution(id=number, pipe_name=pipe, status=Status.QUEUED, queued_at=NOW, **facts)
    await ledger.write(EXECUTIONS.insert(row))
    return number


async def whole(ledger: Ledger, number: int) -> Execution:
    row = await EXECUTIONS.get(ledger, number)
    assert row is not None
    return row


async def test_every_field_is_read_as_it_was_written_and_lists_have_no_large_texts(ledger: Ledger) -> None:
    row = everything()
    assert None not in {getattr(row, name) for name in row.__struct_fields__ if name not in {"position", "plan"}}
    await ledger.write(EXECUTIONS.insert(row))
    assert await whole(ledger, 1) == row
    plain = Execution(id=1, pipe_name="")
    blobs = {name: getattr(plain, name) for name in BLOBS}
    assert await EXECUTIONS.listed(ledger, "WHERE id = 1") == [structs.replace(row, **blobs)]
    assert await EXECUTIONS.get(ledger, 99) is None


async def test_a_row_that_is_damaged_or_newer_is_read_as_far_as_it_goes(ledger: Ledger, path: Path) -> None:
    """Moments stand in the file as UTC texts with milliseconds."""
    await add(ledger, not_before=0.0, plan=Plan(timeout_seconds=3.0))
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT queued_at, not_before, started_at FROM pipe_executions").fetchone()
    assert found == ("2025-11-21T04:40:00.125Z", "1970-01-01T00:00:00.000Z", None)
    connection.execute("""UPDATE pipe_executions SET queued_at = 'yesterday', not_before = '', status = 'odd',
        error_type = 'new', "trigger" = 't', preset_snapshot = '[]', plan = '{"timeout_seconds": 3, "tomorrow": 1}'""")
    connection.commit()
    row = await whole(ledger, 1)
    assert (row.queued_at, row.not_before, row.status, row.error_type) == (0.0, None, Status.FAILED, None)
    assert (row.trigger, row.preset, row.plan) == (Trigger.MANUAL, Preset(), Plan(timeout_seconds=3.0))
    connection.execute("UPDATE pipe_executions SET plan = '{'")
    connection.commit()
    connection.close()
    assert (await whole(ledger, 1)).plan == Plan()


async def test_the_story_of_an_execution(ledger: Ledger) -> None:
    number = await add(ledger)
    assert [it.id for it in await pipe_executions.open_rows(ledger)] == [number]
    change = PIPE_STATES.merge("report", last_run_at=NOW + 1)
    await ledger.write(together(mark_running(number, started_at=NOW + 1, instance="0badc0de.1"), change))
    await ledger.write(EXECUTIONS.update(number, OPEN, pid=41, boot_id="boot", progress="{}"))
    await ledger.write(EXECUTIONS.update(number, OPEN, stdout="hel", stdout_bytes=3, total_tokens=10))
    [row] = await pipe_executions.open_rows(ledger)
    assert (row.status, row.instance, row.pid, row.progress) == (Status.RUNNING, "0badc0de.1", 41, "{}")
    also = PIPE_STATES.merge("report", consecutive_failures=1)
    facts = {"error_type": ErrorType.CRASH, "error_message": "why", "finished_at": NOW + 9, "stderr": "oops"}
    await ledger.write(finish(number, also=also, status=Status.FAILED, **facts))
    row = await whole(ledger, number)
    assert (row.status, row.error_type, row.progress) == (Status.FAILED, ErrorType.CRASH, None)
    assert (row.error_message, row.stdout, row.stderr, row.total_tokens) == ("why", "hel", "oops", 10)
    state = await PIPE_STATES.get(ledger, "report")
    assert state == PipeStateRow("report", last_run_at=NOW + 1, consecutive_failures=1)
    late = PIPE_STATES.merge("report", consecutive_failures=9)
    await ledger.write(finish(number, also=late, status=Status.COMPLETED, finished_at=NOW + 10))
    await ledger.write(EXECUTIONS.update(number, OPEN, stdout="late"))
    assert await whole(ledger, number) == row, "the first end stands, and nothing is added to it"
    assert await PIPE_STATES.get(ledger, "report") == state


async def test_one_execution_of_a_pipe_runs_and_the_holder_is_named(ledger: Ledger) -> None:
    """Who is refused changes nothing: neither the row nor what was to be written with it."""
    first, second, third = [await add(ledger) for _ in range(3)]
    await ledger.write(mark_running(first, started_at=NOW))
    also = together(
        PIPE_STATES.merge("report", last_run_at=9.0), INSTANCES.insert(InstanceRow("key", "pipe:report", NOW))
    )
    with pytest.raises(ConflictError, match="not there yet"):
        await ledger.write(together(mark_running(second, started_at=NOW), also))
    await ledger.write(EXECUTIONS.update(first, OPEN, pid=41))
    with pytest.raises(ConflictError, match=f"execution {first}, pid 41") as held:
        await ledger.write(together(mark_running(second, started_at=NOW), also))
    assert (held.value.extra["execution"], held.value.extra["pid"]) == (first, 41)
    await ledger.write(finish(third, status=Status.CANCELLED, finished_at=NOW))
    with pytest.raises(ConflictError, match="it is cancelled"):
        await ledger.write(mark_running(third, started_at=NOW))
    assert (await whole(ledger, second)).status is Status.QUEUED
    assert (await PIPE_STATES.find(ledger), await INSTANCES.find(ledger)) == ([], [])
    await ledger.write(finish(first, status=Status.COMPLETED, finished_at=NOW))
    await ledger.write(mark_running(second, started_at=NOW))
    await ledger.write(mark_running(await add(ledger, "other"), started_at=NOW))


async def test_numbering_goes_on_after_a_restart(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    for _ in range(3):
        await ledger.write(finish(await add(ledger), status=Status.COMPLETED, finished_at=NOW))
    assert await pipe_history.prune(ledger, before=NOW + 1, rows_of_each=1, bytes_of_all=0) == (1, 2)
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
    running, queued = sorted(await pipe_executions.open_rows(ledger), key=lambda it: it.id)
    assert (running.id, running.pid, running.progress) == (2, 4712, '{"cursor":42}')
    assert (queued.id, queued.retry_of, queued.retry_count) == (3, 1, 1)
    states = {it.pipe_name: it for it in await PIPE_STATES.find(ledger)}
    assert (states["daily-report"].enabled, states["daily-report"].occurrences) == (True, 1)
    assert states["mail"] == PipeStateRow("mail", consecutive_failures=3)
    again = Claim("mail", "pipe_completed", "daily-report:1", NOW)
    assert not await ledger.call(claimed(again, PIPE_STATES.merge("mail"))), "it was taken in the old one"
