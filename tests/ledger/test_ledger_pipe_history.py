"""Questions about many executions, what is remembered of pipes, which events they have taken, and what is pruned."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from supervisord_py.ledger import pipe_history, table
from supervisord_py.ledger.pipe_executions import EXECUTIONS, Execution, Status
from supervisord_py.ledger.pipe_history import (
    PIPE_STATES,
    Claim,
    ExecutionFilter,
    PipeStateRow,
    claimed,
    forget,
    release_claim,
)
from supervisord_py.ledger.schema import TableLimit
from supervisord_py.ledger.store import Ledger

NOW = 1_763_700_000.5
STATUSES = ("completed", "failed", "timed_out", "cancelled")


def row(number: int, pipe: str = "a", status: str = "completed", **facts: object) -> Execution:
    at = float(number)
    times = {"queued_at": at, "started_at": at, "finished_at": at} | facts
    return Execution(id=number, pipe_name=pipe, status=Status(status), **times)  # type: ignore[arg-type]  # by name


async def put(ledger: Ledger, *rows: Execution) -> None:
    await ledger.write(table.together(*map(EXECUTIONS.insert, rows)))


def fits(each: Execution, wanted: ExecutionFilter) -> bool:
    return (
        wanted.pipe in (None, each.pipe_name)
        and (not wanted.statuses or each.status in wanted.statuses)
        and (wanted.since is None or each.queued_at >= wanted.since)
        and (wanted.until is None or each.queued_at < wanted.until)
        and (wanted.before_id is None or each.id < wanted.before_id)
    )


async def test_pages_follow_each_other_and_hold_what_fits_newest_first(ledger: Ledger) -> None:
    pick = random.Random(4).choice  # any one will do
    rows = [row(number, pick("abc"), pick(STATUSES), queued_at=pick(range(100))) for number in range(1, 201)]
    await put(ledger, *rows)
    for _ in range(60):
        statuses = tuple(Status(each) for each in STATUSES if pick((True, False)))
        times = pick((None, 20.0, 50.0)), pick((None, 30.0, 90.0))
        wanted = ExecutionFilter(pick((None, "a", "nobody")), statuses, *times, pick((None, 150)), pick((1, 7, 500)))
        expected = [it.id for it in reversed(rows) if fits(it, wanted)]
        got = await pipe_history.page(ledger, wanted)
        assert [it.id for it in got.executions] == expected[: wanted.limit], wanted
        assert got.next_cursor == (expected[wanted.limit - 1] if len(expected) > wanted.limit else None)


async def test_the_last_of_each_pipe_and_what_was_used_since_a_moment(ledger: Ledger) -> None:
    assert await pipe_history.last_of_each(ledger) == {}
    used: dict[str, Any] = {"total_tokens": 100, "cost": 0.5}
    await put(ledger, *(row(number, "ab"[number % 2], "failed", **used) for number in range(1, 11)))
    await put(ledger, row(11, "b", "running", finished_at=None, **used), row(12, "c", "queued", started_at=None))
    last = await pipe_history.last_of_each(ledger)
    assert {pipe: it.id for pipe, it in last.items()} == {"a": 10, "b": 11, "c": 12}
    assert await pipe_history.usage_since(ledger, 6.0, "a") == (300, 1.5)
    assert await pipe_history.usage_since(ledger, 99.0, "a") == (0, 0.0)


async def prune_all(ledger: Ledger, before: float = -1.0, rows: int = 1000, size: int = 10**12) -> list[int]:
    gone: list[int] = []
    while found := await pipe_history.prune(ledger, before=before, rows_of_each=rows, bytes_of_all=size, batch=3):
        assert len(found) <= 3
        gone += found
    return gone


async def test_the_old_go_but_never_the_open_nor_the_newest(ledger: Ledger) -> None:
    await put(ledger, *map(row, range(1, 9)))
    await put(ledger, row(9, "b", "running", finished_at=None), row(10, "c", "queued", finished_at=None), row(11))
    assert await prune_all(ledger, before=5.0) == [1, 2, 3, 4]
    assert await prune_all(ledger, before=1e9) == [5, 6, 7, 8]
    assert await pipe_history.existing(ledger, (1, 8, 9, 10, 11, 12)) == {9, 10, 11}


async def test_when_all_together_are_too_large_the_oldest_go(ledger: Ledger) -> None:
    await put(ledger, *(row(number, "abc"[number % 3], stdout_bytes=60, stderr_bytes=40) for number in range(1, 11)))
    await put(ledger, row(11, "d", "running", stdout_bytes=150))
    assert await prune_all(ledger, size=500) == [1, 2, 3, 4, 5, 6, 7]
    assert await prune_all(ledger, rows=1, size=0) == [8, 9, 10], "what runs stays, however large"


# -- what is remembered ------------------------------------------------------------------------------------------------


async def take(ledger: Ledger, claim: Claim) -> bool:
    """Claim, and count in the same transaction; say whether it was free."""
    count = "UPDATE pipe_scheduler_state SET occurrences = occurrences + 1 WHERE pipe_name = ?"
    return bool(await ledger.call(claimed(claim, lambda connection: connection.execute(count, (claim.pipe_name,)))))


async def cells(ledger: Ledger, column: str) -> list[object]:
    return await ledger.read(lambda it: [cell for (cell,) in it.execute(f"SELECT {column} FROM pipe_claims")])  # noqa: S608


async def test_a_change_says_only_what_changes_and_does_to_the_file_what_it_does_in_memory(ledger: Ledger) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"anchor_at": NOW, "schedule": "every 1h"},
        {"enabled": True, "enabled_file": False},
        {"last_run_at": NOW + 1, "last_due": NOW, "occurrences": 3, "consecutive_failures": 2},
        {"enabled": None, "anchor_at": None},
        {},
    )
    state = PipeStateRow("a")
    for change in changes:
        state = structs.replace(state, **change)
        await ledger.write(PIPE_STATES.merge("a", **change))
        assert await PIPE_STATES.get(ledger, "a") == state
    assert (state.enabled, state.enabled_file, state.occurrences, state.last_run_at) == (None, False, 3, NOW + 1)


async def test_a_pipe_that_is_removed_is_forgotten_with_its_claims(ledger: Ledger) -> None:
    for pipe in ("a", "b"):
        await ledger.write(PIPE_STATES.merge(pipe))
        assert await take(ledger, Claim(pipe, "e", "k", NOW))
    await ledger.write(forget("a"))
    assert await PIPE_STATES.find(ledger) == [PipeStateRow("b", occurrences=1)]
    assert await cells(ledger, "pipe_name") == ["b"]


async def test_a_claim_is_somebodys_until_it_is_given_back_or_old(ledger: Ledger) -> None:
    await ledger.write(PIPE_STATES.merge("a"))
    asked = await asyncio.gather(*(take(ledger, Claim("a", "e", "k", NOW + later)) for later in (0, 9, 3)))
    assert (asked, [it.occurrences for it in await PIPE_STATES.find(ledger)]) == ([True, False, False], [1])
    await ledger.write(release_claim("a", "e", "k"))
    assert await take(ledger, Claim("a", "e", "k", NOW))
    for number in range(25):
        assert await take(ledger, Claim("a", "e", f"k{number}", NOW + number))
    limits = {"pipe_claims": TableLimit(age_seconds=10.0)}
    assert await ledger.prune(NOW + 30, limits, batch=4) == {"pipe_claims": 21}
    assert await take(ledger, Claim("a", "e", "k", NOW + 30))
    assert table.to_text(NOW + 30) in await cells(ledger, "claimed_at")


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_texts_sort_as_the_moments_do_and_are_read_to_the_millisecond(one: float, two: float) -> None:
    assert (table.to_text(one) < table.to_text(two)) is (round(one * 1000) < round(two * 1000))
    read = table.to_seconds(table.to_text(one))
    assert read is not None
    assert abs(read - one) <= 0.000_51
    assert table.to_text(read) == table.to_text(one), "what is read and written again is the same"
