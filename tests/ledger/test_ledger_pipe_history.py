"""Questions about many executions: pages against a model, sums, and what is pruned."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from typing import Any

from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.pipe_executions import EXECUTIONS, Execution, Status
from supervisord_py.ledger.pipe_history import ExecutionFilter
from supervisord_py.ledger.store import Ledger

STATUSES = ("completed", "failed", "timed_out", "cancelled")


def row(number: int, pipe: str = "a", status: str = "completed", **facts: object) -> Execution:
    at = float(number)
    times = {"queued_at": at, "started_at": at, "finished_at": at} | facts
    return Execution(id=number, pipe_name=pipe, status=Status(status), **times)  # type: ignore[arg-type]  # by name


async def put(ledger: Ledger, rows: Iterable[Execution]) -> None:
    def run(connection: sqlite3.Connection) -> None:
        for each in rows:
            EXECUTIONS.insert(each)(connection)

    await ledger.write(run)


async def ids(ledger: Ledger) -> list[int]:
    return [it.id for it in (await pipe_history.page(ledger, ExecutionFilter(limit=500))).executions][::-1]


def fits(each: Execution, wanted: ExecutionFilter) -> bool:
    return (
        wanted.pipe in (None, each.pipe_name)
        and (not wanted.statuses or each.status in wanted.statuses)
        and (wanted.since is None or each.queued_at >= wanted.since)
        and (wanted.until is None or each.queued_at < wanted.until)
        and (wanted.before_id is None or each.id < wanted.before_id)
    )


async def test_pages_follow_each_other_and_hold_what_fits_newest_first(ledger: Ledger) -> None:
    chance = random.Random(4)  # any one will do
    rows = [
        row(number, chance.choice("abc"), chance.choice(STATUSES), queued_at=chance.randrange(100))
        for number in range(1, 201)
    ]
    await put(ledger, rows)
    for _ in range(60):
        wanted = ExecutionFilter(
            chance.choice((None, "a", "b", "nobody")),
            tuple(map(Status, chance.sample(STATUSES, chance.randrange(4)))),
            chance.choice((None, 20.0, 50.0)),
            chance.choice((None, 30.0, 90.0)),
            chance.choice((None, 150)),
            chance.choice((1, 7, 50, 500)),
        )
        expected = [it.id for it in reversed(rows) if fits(it, wanted)]
        got = await pipe_history.page(ledger, wanted)
        assert [it.id for it in got.executions] == expected[: wanted.limit], wanted
        assert got.next_cursor == (expected[wanted.limit - 1] if len(expected) > wanted.limit else None)


async def test_the_last_of_each_pipe(ledger: Ledger) -> None:
    assert await pipe_history.last_of_each(ledger) == {}
    told = (("a", "completed"), ("b", "failed"), ("a", "failed"), ("c", "queued"), ("a", "cancelled"))
    await put(ledger, [row(it, pipe, status) for it, (pipe, status) in enumerate(told, 1)])
    last = await pipe_history.last_of_each(ledger)
    assert {pipe: it.id for pipe, it in last.items()} == {"a": 5, "b": 2, "c": 4}


async def test_what_was_used_since_a_moment(ledger: Ledger) -> None:
    used: dict[str, Any] = {"total_tokens": 100, "cost": 0.5}
    await put(ledger, [row(number, "ab"[number % 2], **used) for number in range(1, 11)])
    await put(
        ledger, [row(11, "b", "running", finished_at=None, **used), row(12, "b", "queued", started_at=None, **used)]
    )
    assert await pipe_history.usage_since(ledger, 6.0, "a") == (300, 1.5)
    assert await pipe_history.usage_since(ledger, 99.0, "a") == (0, 0.0)


async def prune_all(ledger: Ledger, before: float = -1.0, rows: int = 1000, size: int = 10**12) -> list[int]:
    gone: list[int] = []
    while found := await pipe_history.prune(ledger, before=before, rows_of_each=rows, bytes_of_all=size, batch=3):
        assert len(found) <= 3
        gone += found
    return gone


async def test_the_old_go_but_never_the_open_nor_the_newest(ledger: Ledger) -> None:
    await put(ledger, [row(number) for number in range(1, 9)])
    await put(ledger, [row(9, "b", "running", finished_at=None), row(10, "c", "queued", finished_at=None), row(11)])
    assert await prune_all(ledger, before=5.0) == [1, 2, 3, 4]
    assert await prune_all(ledger, before=1e9) == [5, 6, 7, 8]
    assert await ids(ledger) == [9, 10, 11]
    assert await pipe_history.existing(ledger, (1, 9, 11, 12)) == {9, 11}


async def test_when_all_together_are_too_large_the_oldest_go(ledger: Ledger) -> None:
    await put(ledger, [row(number, "abc"[number % 3], stdout_bytes=60, stderr_bytes=40) for number in range(1, 11)])
    await put(ledger, [row(11, "d", "running", stdout_bytes=150)])
    assert await prune_all(ledger, size=500) == [1, 2, 3, 4, 5, 6, 7]
    assert await prune_all(ledger, rows=1, size=0) == [8, 9, 10]
    assert await ids(ledger) == [11], "what runs stays, however large"
