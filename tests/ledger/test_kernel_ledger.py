"""Sessions and cells in the ledger: what is written is what is read, first ends stand, the old goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from supervisord_py.ledger import instances
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.kernels import CELLS, KernelCellRow, KernelSessionRow
from supervisord_py.ledger.schema import TableLimit
from supervisord_py.ledger.store import Ledger

OpenLedger = Callable[..., Awaitable[Ledger]]

SESSION = KernelSessionRow(
    id="default-3fa9c1",
    name="default",
    cwd="/srv/project",
    interpreter="/srv/project/.venv/bin/python",
    backend="direct",
    language="python",
    owner="session",
    created_at=100.0,
    state="idle",
)


def sent(number: int, session: str = "default-3fa9c1", at: float | None = None) -> KernelCellRow:
    began = float(number) if at is None else at
    return KernelCellRow(f"{number:016x}", session, f"c{number}", 0, f"{number}+1", "running", began, began)


async def test_the_last_word_on_a_session_counts_but_not_on_when_it_was_made(ledger: Ledger) -> None:
    last = replace(SESSION, created_at=999.0, state="failed", last_used=150.5, reason="signal", failure={"signal": 11})
    for row in (SESSION, last, SESSION):
        kernel_rows.remember(ledger, row)
        await ledger.flush()
        assert await kernel_rows.SESSIONS.get(ledger, SESSION.id) == replace(row, created_at=100.0)


async def test_cells_that_were_running_when_everything_died_are_found_open(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    for number in (1, 2, 3):
        await ledger.write(CELLS.insert(sent(number)))
    kernel_rows.finish(ledger, sent(1).id, status="ok", ended_at=5.0)
    await ledger.close()
    ledger = await open_ledger()
    assert [it.id for it in await kernel_rows.open_cells(ledger)] == [sent(2).id, sent(3).id]
    await ledger.write(CELLS.insert(replace(sent(2), code="another")))
    kernel_rows.finish(ledger, sent(2).id, status="aborted", ended_at=10.0, variables="lost")
    kernel_rows.finish(ledger, sent(2).id, status="ok", ended_at=11.0)
    await ledger.flush()
    closed = await CELLS.get(ledger, sent(2).id)
    assert closed is not None
    assert (closed.code, closed.status, closed.variables, closed.ended_at) == ("2+1", "aborted", "lost", 10.0)
    assert [it.id for it in await kernel_rows.open_cells(ledger)] == [sent(3).id]
    assert await kernel_rows.open_cells(ledger, "other") == []
    assert [it.id for it in await kernel_rows.open_cells(ledger, SESSION.id)] == [sent(3).id]


async def test_pruning_keeps_the_living_and_the_newest_row_for_its_order(ledger: Ledger) -> None:
    for number in range(1, 7):
        await ledger.write(CELLS.insert(sent(number)))
        if number != 2:
            kernel_rows.finish(ledger, sent(number).id, status="ok", ended_at=float(number))
        state = ("idle", "stopped", "failed")[number % 3]
        kernel_rows.remember(ledger, replace(SESSION, id=f"s{number}", state=state, created_at=float(number)))
    kernel_rows.remember(ledger, replace(SESSION, id="s1", state="stopped", last_used=1e6))
    await ledger.flush()
    old = {"kernel_cells": TableLimit(1000, 10.0), "kernel_sessions": TableLimit(1000, 10.0)}
    assert await ledger.prune(15.0, old, batch=2) == {"kernel_cells": 3, "kernel_sessions": 2}
    assert [it.started_at for it in await kernel_rows.of_session(ledger, SESSION.id)] == [2, 5, 6], "one is open"
    assert {it.id for it in await kernel_rows.all_sessions(ledger)} == {"s1", "s3", "s5", "s6"}, "one was used"
    assert await ledger.prune(1e6, old) == {"kernel_cells": 1, "kernel_sessions": 1}
    await ledger.write(CELLS.insert(sent(7)))
    assert [it.started_at for it in await kernel_rows.of_session(ledger, SESSION.id)] == [2, 6, 7]


async def test_the_newest_cell_of_each_session_tells_how_the_life_that_ran_it_ended(ledger: Ledger) -> None:
    await ledger.write(INSTANCES.insert(InstanceRow(key="k.2", unit="kernel:b", started_at=1.0)))
    await ledger.write(instances.ended("k.2", ended_at=5.0, reason="signal", signal=11))
    for cell in (sent(1), replace(sent(2, "b"), instance="k.2"), sent(3), sent(0)):
        await ledger.write(CELLS.insert(cell))
    await ledger.flush()
    assert await kernel_rows.newest_of_all(ledger) == {"default-3fa9c1": None, "b": "k.2"}
