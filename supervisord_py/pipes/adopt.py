"""Taking over what an earlier control plane left: agents that still run, rows that nobody finished, the line.

Law: an agent that the keeper holds goes on, with its timeout from where it was counted; its output is read again from
byte 0. A row that says `running` and whose process nobody holds was cut off: failed, `interrupted`, its output folder
is marked, never deleted; one that was never spawned waits in line again. What waited waits on. Processes that outlived
their keeper are the keeper's: it sweeps them before this begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from msgspec import structs

from supervisord_py.errors import PxError
from supervisord_py.ledger.instances import ended
from supervisord_py.ledger.pipe_executions import EXECUTIONS, Status, change_open, open_rows
from supervisord_py.ledger.table import together
from supervisord_py.pipes.outcome import Cause
from supervisord_py.process.instance import read_note
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.pipes.room import Pipes
    from supervisord_py.pipes.run import Run

INTERRUPTED = "interrupted by system restart"
_log = structlog.get_logger(__name__)


async def adopt_all(room: Pipes) -> None:
    """Go through everything that is held and everything that is open; returns when all is decided."""
    rows = {row.id: row for row in await open_rows(room.ledger)}
    held = {number for child in await room.placement.list("pipe:") if (number := _execution_of(child.tag))}
    known = room.driver.known = {number: row for number, row in rows.items() if number in held}
    for number in held - set(known):  # its end was recorded, and the control plane came no further
        found = await EXECUTIONS.find(room.ledger, "WHERE id = ?", number)
        known |= {row.id: row for row in found}
    for run in await room.supervisor.adopt(room.driver):
        await _keep_pid(room, run)
        room.task(run.see_through())
    room.driver.known = {}
    for row in rows.values():
        if row.status is Status.RUNNING and row.id not in held:
            if row.pid is not None:
                await _interrupted(room, row)
                continue
            again = {"status": Status.QUEUED, "started_at": None, "queue_wait_ms": None, "instance": None}
            await room.ledger.write(change_open(row.id, **again, progress=None))
            row = structs.replace(row, **again, progress=None)  # noqa: PLW2901 - as it is from here on
        if row.status is Status.QUEUED and row.id not in held:
            room.push(room.run_of(row))


def _execution_of(tag: str) -> int | None:
    note = read_note(tag)
    return None if note is None else note.own.get("execution")


async def _keep_pid(room: Pipes, run: Run) -> None:
    """Write down who it is, where the control plane before us ended between the spawn and this."""
    if run.execution.pid is None and run.child is not None:
        deadline = run.deadline
        await room.ledger.write(run.spawned(run.child))
        run.deadline = deadline


async def _interrupted(room: Pipes, row: Execution) -> None:
    """Close a row whose process nobody holds any more."""
    run = room.run_of(row)
    run.want_end(Cause.INTERRUPTED, INTERRUPTED)
    run.wanted = Reason.INTERRUPTED
    room.add(run)
    try:
        final = await run.final_row()
        life = ended(row.instance or "", room.clocks.wall(), Reason.INTERRUPTED.value)
        await room.ledger.write(together(final, life))
        await room.driver.tidy(run)
        await room.after(run)
    except PxError as error:
        _log.error("pipe_interruption_not_recorded", execution=row.id, detail=error.detail)
