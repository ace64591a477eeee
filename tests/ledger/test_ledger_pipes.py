"""Pipes in the ledger: one runs at a time, first ends stand; pages, claims, what is remembered
and what is pruned.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from supervisord_py.errors import ConflictError
from supervisord_py.ledger import pipes, table
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.pipes import (
    EXECUTIONS,
    PIPE_STATES,
    Claim,
    ErrorType,
    Execution,
    Plan,
    Status,
)
from supervisord_py.ledger.schema import LIMITS
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import together

OpenLedger = Callable[..., Awaitable[Ledger]]

NOW = 1_763_700_000.125
STATUSES = ("completed", "failed", "timed_out", "cancelled")


async def add(ledger: Ledger, pipe: str = "report", **facts: Any) -> int:
    number = ledger.next_number()
    row = Execution(id=number, pipe_name=pipe, status=Status.QUEUED, queued_at=NOW, **facts)
    await ledger.write(EXECUTIONS.insert(row))
    return number


async def whole(ledger: Ledger, number: int) -> Execution:
    row = await EXECUTIONS.get(ledger, number)
    assert row is not None
    return row


async def test_a_row_that_is_damaged_or_newer_is_read_as_far_as_it_goes(
    ledger: Ledger, path: Path
) -> None:
    """Moments stand in the file as UTC texts with milliseconds."""
    await add(ledger, not_before=0.0, plan=Plan(timeout_seconds=3.0))
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT queued_at, not_before, started_at FROM pipe_executions"
    ).fetchone()
    assert found == ("2025-11-21T04:40:00.125Z", "1970-01-01T00:00:00.000Z", None)
    connection.execute("""UPDATE pipe_executions SET queued_at = 'yesterday', not_before = '', status = 'odd',
        error_type = 'new', "trigger" = 't', preset_snapshot = '[]', plan = '{"timeout_seconds": 3, "tomorrow": 1}'""")
    connection.commit()
    row = await whole(ledger, 1)
    assert (row.queued_at, row.not_before, row.status, row.error_type) == (
        0.0,
        None,
        Status.FAILED,
        None,
    )
    assert (row.trigger, row.preset, row.plan) == (
        pipes.Trigger.MANUAL,
        pipes.Preset(),
        Plan(timeout_seconds=3.0),
    )
    connection.execute("UPDATE pipe_executions SET plan = '{'")
    connection.commit()
    connection.close()
    assert (await whole(ledger, 1)).plan == Plan()


async def test_the_story_of_an_execution(ledger: Ledger) -> None:
    number = await add(ledger)
    assert [it.id for it in await pipes.open_rows(ledger)] == [number]
    change = PIPE_STATES.merge("report", last_run_at=NOW + 1)
    await ledger.write(
        together(pipes.mark_running(number, started_at=NOW + 1, instance="0badc0de.1"), change)
    )
    await ledger.write(EXECUTIONS.update(number, pipes.OPEN, pid=41, boot_id="boot", progress="{}"))
    await ledger.write(
        EXECUTIONS.update(number, pipes.OPEN, stdout="hel", stdout_bytes=3, total_tokens=10)
    )
    [row] = await pipes.open_rows(ledger)
    assert (row.status, row.instance, row.pid, row.progress) == (
        Status.RUNNING,
        "0badc0de.1",
        41,
        "{}",
    )
    also = PIPE_STATES.merge("report", consecutive_failures=1)
    facts = {
        "error_type": ErrorType.CRASH,
        "error_message": "why",
        "finished_at": NOW + 9,
        "stderr": "oops",
    }
    await ledger.write(pipes.finish(number, also=also, status=Status.FAILED, **facts))
    row = await whole(ledger, number)
    assert (row.status, row.error_type, row.progress) == (Status.FAILED, ErrorType.CRASH, None)
    assert (row.error_message, row.stdout, row.stderr, row.total_tokens) == (
        "why",
        "hel",
        "oops",
        10,
    )
    state = await PIPE_STATES.get(ledger, "report")
    assert state == pipes.PipeStateRow("report", last_run_at=NOW + 1, consecutive_failures=1)
    late = PIPE_STATES.merge("report", consecutive_failures=9)
    await ledger.write(
        pipes.finish(number, also=late, status=Status.COMPLETED, finished_at=NOW + 10)
    )
    await ledger.write(EXECUTIONS.update(number, pipes.OPEN, stdout="late"))
    assert await whole(ledger, number) == row, "the first end stands, and nothing is added to it"
    assert await PIPE_STATES.get(ledger, "report") == state


async def test_one_execution_of_a_pipe_runs_and_the_holder_is_named(ledger: Ledger) -> None:
    """Who is refused changes nothing: neither the row nor what was to be written with it."""
    first, second, third = [await add(ledger) for _ in range(3)]
    await ledger.write(pipes.mark_running(first, started_at=NOW))
    also = together(
        PIPE_STATES.merge("report", last_run_at=9.0),
        INSTANCES.insert(InstanceRow("key", "pipe:report", NOW)),
    )
    with pytest.raises(ConflictError, match="not known yet"):
        await ledger.write(together(pipes.mark_running(second, started_at=NOW), also))
    await ledger.write(EXECUTIONS.update(first, pipes.OPEN, pid=41))
    with pytest.raises(ConflictError, match=f"execution {first}, pid 41") as held:
        await ledger.write(together(pipes.mark_running(second, started_at=NOW), also))
    assert (held.value.extra["execution"], held.value.extra["pid"]) == (first, 41)
    await ledger.write(pipes.finish(third, status=Status.CANCELLED, finished_at=NOW))
    with pytest.raises(ConflictError, match="not queued any more"):
        await ledger.write(pipes.mark_running(third, started_at=NOW))
    assert (await whole(ledger, second)).status is Status.QUEUED
    assert (await PIPE_STATES.find(ledger), await INSTANCES.find(ledger)) == ([], [])
    await ledger.write(pipes.finish(first, status=Status.COMPLETED, finished_at=NOW))
    await ledger.write(pipes.mark_running(second, started_at=NOW))
    await ledger.write(pipes.mark_running(await add(ledger, "other"), started_at=NOW))


# -- many of them ----------------------------------------------------------------------------------


def row(number: int, pipe: str = "a", status: str = "completed", **facts: object) -> Execution:
    at = float(number)
    times = {"queued_at": at, "started_at": at, "finished_at": at} | facts
    return Execution(id=number, pipe_name=pipe, status=Status(status), **times)  # type: ignore[arg-type]  # by name


async def put(ledger: Ledger, *rows: Execution) -> None:
    await ledger.write(table.together(*map(EXECUTIONS.insert, rows)))


def fits(each: Execution, wanted: pipes.ExecutionFilter) -> bool:
    return (
        wanted.pipe in (None, each.pipe_name)
        and (not wanted.statuses or each.status in wanted.statuses)
        and (wanted.since is None or each.queued_at >= wanted.since)
        and (wanted.until is None or each.queued_at < wanted.until)
        and (wanted.before_id is None or each.id < wanted.before_id)
    )


async def test_pages_follow_each_other_and_hold_what_fits_newest_first(ledger: Ledger) -> None:
    pick = random.Random(4).choice  # any one will do
    rows = [
        row(number, pick("abc"), pick(STATUSES), queued_at=pick(range(100)))
        for number in range(1, 201)
    ]
    await put(ledger, *rows)
    for _ in range(60):
        statuses = tuple(Status(each) for each in STATUSES if pick((True, False)))
        times = pick((None, 20.0, 50.0)), pick((None, 30.0, 90.0))
        wanted = pipes.ExecutionFilter(
            pick((None, "a", "nobody")), statuses, *times, pick((None, 150)), pick((1, 7, 500))
        )
        expected = [it.id for it in reversed(rows) if fits(it, wanted)]
        got, next_cursor = await pipes.page(ledger, wanted)
        assert [it.id for it in got] == expected[: wanted.limit], wanted
        assert next_cursor == (expected[wanted.limit - 1] if len(expected) > wanted.limit else None)


async def test_the_last_of_each_pipe_and_what_was_used_since_a_moment(ledger: Ledger) -> None:
    assert await pipes.last_of_each(ledger) == {}
    used: dict[str, Any] = {"total_tokens": 100, "cost": 0.5}
    await put(ledger, *(row(number, "ab"[number % 2], "failed", **used) for number in range(1, 11)))
    await put(
        ledger,
        row(11, "b", "running", finished_at=None, **used),
        row(12, "c", "queued", started_at=None),
    )
    last = await pipes.last_of_each(ledger)
    assert {pipe: it.id for pipe, it in last.items()} == {"a": 10, "b": 11, "c": 12}
    assert await pipes.usage_since(ledger, 6.0, "a") == (300, 1.5)
    assert await pipes.usage_since(ledger, 99.0, "a") == (0, 0.0)


async def prune_all(
    ledger: Ledger, before: float = -1.0, rows: int = 1000, size: int = 10**12
) -> list[int]:
    gone: list[int] = []
    while found := await pipes.prune(
        ledger, before=before, rows_of_each=rows, bytes_of_all=size, batch=3
    ):
        assert len(found) <= 3
        gone += found
    return gone


async def test_the_old_go_but_never_the_open_nor_the_newest(ledger: Ledger) -> None:
    await put(ledger, *map(row, range(1, 9)))
    await put(
        ledger,
        row(9, "b", "running", finished_at=None),
        row(10, "c", "queued", finished_at=None),
        row(11),
    )
    assert await prune_all(ledger, before=5.0) == [1, 2, 3, 4]
    assert await prune_all(ledger, before=1e9) == [5, 6, 7, 8]
    assert [it.id for it in await EXECUTIONS.listed(ledger)] == [9, 10, 11]


async def test_when_all_together_are_too_large_the_oldest_go(ledger: Ledger) -> None:
    await put(
        ledger,
        *(
            row(number, "abc"[number % 3], stdout_bytes=60, stderr_bytes=40)
            for number in range(1, 11)
        ),
    )
    await put(ledger, row(11, "d", "running", stdout_bytes=150))
    assert await prune_all(ledger, size=500) == [1, 2, 3, 4, 5, 6, 7]
    assert await prune_all(ledger, rows=1, size=0) == [8, 9, 10], "what runs stays, however large"


# -- what is remembered ----------------------------------------------------------------------------


async def take(ledger: Ledger, claim: Claim) -> bool:
    """Claim, and count in the same transaction; say whether it was free."""
    count = "UPDATE pipe_scheduler_state SET occurrences = occurrences + 1 WHERE pipe_name = ?"
    return bool(
        await ledger.call(
            pipes.claimed(claim, lambda connection: connection.execute(count, (claim.pipe_name,)))
        )
    )


async def test_a_claim_is_somebodys_until_it_is_given_back_or_old_or_its_pipe_forgotten(
    ledger: Ledger,
) -> None:
    await ledger.write(PIPE_STATES.merge("a"))
    asked = await asyncio.gather(
        *(take(ledger, Claim("a", "e", "k", NOW + later)) for later in (0, 9, 3))
    )
    assert (asked, [it.occurrences for it in await PIPE_STATES.find(ledger)]) == (
        [True, False, False],
        [1],
    )
    await ledger.write(pipes.release_claim("a", "e", "k"))
    assert await take(ledger, Claim("a", "e", "k", NOW))
    for number in range(25):
        assert await take(ledger, Claim("a", "e", f"k{number}", NOW + number))
    limits = {"pipe_claims": structs.replace(LIMITS["pipe_claims"], age_seconds=10.0)}
    assert await ledger.prune(NOW + 30, limits, batch=4) == {"pipe_claims": 21}
    await ledger.write(PIPE_STATES.merge("b"))
    for pipe in ("a", "b"):
        assert await take(ledger, Claim(pipe, "e", "k", NOW + 30))
    await ledger.write(pipes.forget("a"))
    assert await PIPE_STATES.find(ledger) == [pipes.PipeStateRow("b", occurrences=1)]
    left = await ledger.read(
        lambda it: it.execute("SELECT pipe_name, claimed_at FROM pipe_claims").fetchall()
    )
    assert [tuple(claim) for claim in left] == [("b", table.to_text(NOW + 30))]


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_texts_sort_as_the_moments_do_and_are_read_to_the_millisecond(
    one: float, two: float
) -> None:
    assert (table.to_text(one) < table.to_text(two)) is (round(one * 1000) < round(two * 1000))
    read = table.to_seconds(table.to_text(one))
    assert read is not None
    assert abs(read - one) <= 0.000_51
    assert table.to_text(read) == table.to_text(one), "what is read and written again is the same"
