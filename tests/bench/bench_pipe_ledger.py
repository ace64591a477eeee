"""A long history: questions of 100,000 executions, against the same question answered without our indexes.

Each row carries some output and a prompt, as real ones do: a list that touched those pages would show it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench_stage import Row, milliseconds, print_table, ratio

from supervisord_py.ledger import pipe_executions, pipe_history, pipe_rows
from supervisord_py.ledger.instants import to_text
from supervisord_py.ledger.pipe_history import Filter
from supervisord_py.ledger.pipe_rows import PipeExecutionRow
from supervisord_py.ledger.store import Ledger

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable

ROWS = 100_000
PIPES = 50
BATCH = 2000
ROUNDS = 15
SECONDS_BETWEEN = 60.0
BEGIN = 1_763_700_000.0
END = BEGIN + ROWS * SECONDS_BETWEEN
STATUSES = ("completed",) * 90 + ("failed",) * 7 + ("timed_out",) * 2 + ("cancelled",)
TEXT = "An answer of an agent, some thousand characters long, as most of them are. " * 14

Ask = "Callable[[Ledger], Awaitable[object]]"
Question = tuple[str, Ask, Ask]


def execution(number: int, chance: random.Random) -> PipeExecutionRow:
    """Return one of the history; the last few are still open."""
    at = BEGIN + number * SECONDS_BETWEEN
    status = chance.choice(STATUSES) if number < ROWS - 10 else "queued"
    return PipeExecutionRow(
        number,
        f"pipe-{chance.randrange(PIPES):02}",
        status,
        "scheduled",
        "scheduled",
        at,
        model="some-model",
        started_at=at + 1,
        finished_at=at + 30,
        duration_ms=29_000,
        total_tokens=1000,
        cost=0.01,
        stdout_bytes=len(TEXT),
        rendered_prompt=TEXT[:500],
        stdout=TEXT,
    )


async def fill(ledger: Ledger) -> None:
    """Write the history."""
    chance = random.Random(100)
    for first in range(1, ROWS + 1, BATCH):
        rows = [execution(number, chance) for number in range(first, first + BATCH)]

        def insert(connection: sqlite3.Connection, rows: list[PipeExecutionRow] = rows) -> None:
            for row in rows:
                pipe_rows.insert(connection, row)

        await ledger.write(insert)


def questions() -> list[Question]:
    """Return what is asked: a name, our way, and the plain SQL of it."""
    deep = ROWS // 2
    today = END - 86_400.0
    some = (today - 50 * 86_400.0, today - 49 * 86_400.0)
    between = f"queued_at >= '{to_text(some[0])}' AND queued_at < '{to_text(some[1])}'"
    paged = [
        ("newest 50 of all", Filter(), "ORDER BY id DESC LIMIT 51"),
        ("page in the middle", Filter(before_id=deep), f"WHERE id < {deep} ORDER BY id DESC LIMIT 51"),
        (
            "page in the middle of one pipe",
            Filter("pipe-07", before_id=deep),
            f"WHERE pipe_name = 'pipe-07' AND id < {deep} ORDER BY id DESC LIMIT 51",
        ),
        (
            "newest failures of one pipe",
            Filter("pipe-07", ("failed", "timed_out")),
            "WHERE pipe_name = 'pipe-07' AND status IN ('failed', 'timed_out') ORDER BY id DESC LIMIT 51",
        ),
        (
            "one day long ago, timed out",
            Filter(statuses=("timed_out",), since=some[0], until=some[1]),
            f"WHERE status = 'timed_out' AND {between} ORDER BY id DESC LIMIT 51",
        ),
        (
            "one day long ago of one pipe",
            Filter("pipe-07", since=some[0], until=some[1]),
            f"WHERE pipe_name = 'pipe-07' AND {between} ORDER BY id DESC LIMIT 51",
        ),
        ("a status that nobody has", Filter(statuses=("none",)), "WHERE status = 'none' ORDER BY id DESC"),
        ("a page of 500", Filter(limit=500), "ORDER BY id DESC LIMIT 501"),
    ]
    last = "WHERE id IN (SELECT max(id) FROM pipe_executions NOT INDEXED GROUP BY pipe_name)"
    used = "SELECT sum(total_tokens), sum(cost) FROM pipe_executions NOT INDEXED WHERE started_at >= ?"
    return [
        *((name, lambda ledger, it=wanted: pipe_history.page(ledger, it), plain(sql)) for name, wanted, sql in paged),
        ("last of each pipe", pipe_history.last_of_each, plain(last)),
        (
            "used today",
            lambda ledger: pipe_history.usage_since(ledger, today),
            lambda ledger: ledger.read(lambda connection: connection.execute(used, (to_text(today),)).fetchall()),
        ),
        ("what waits", pipe_executions.queued_rows, plain("WHERE status = 'queued' ORDER BY queued_at, id")),
        ("one row", lambda ledger: pipe_executions.get(ledger, deep, blobs=False), plain(f"WHERE id + 0 = {deep}")),
    ]


def plain(where: str) -> Callable[[Ledger], Awaitable[object]]:
    """Return the same question, its rows made in the same way, without an index of ours."""
    return lambda ledger: pipe_rows.listed(ledger, f"NOT INDEXED {where}", ())


async def timed(act: Awaitable[object]) -> float:
    """Return the seconds that it took."""
    begin = time.perf_counter()
    await act
    return time.perf_counter() - begin


async def compare(ledger: Ledger, question: Question) -> Row:
    """Ask both ways in turns."""
    name, ask, ask_plainly = question
    ours, others = [], []
    for _ in range(ROUNDS):
        ours.append(await timed(ask(ledger)))
        others.append(await timed(ask_plainly(ledger)))
    return Row(name, milliseconds(ours[1:]), milliseconds(others[1:]), ratio(ours[1:], others[1:]))


async def measure() -> list[Row]:
    """Return a line for each question."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = await Ledger.open(Path(folder) / "pxd.db")
        try:
            await fill(ledger)
            return [await compare(ledger, question) for question in questions()]
        finally:
            await ledger.close()


if __name__ == "__main__":
    print_table(
        f"{ROWS:,} executions of {PIPES} pipes (without our indexes beside it)",
        asyncio.run(measure()),
    )
