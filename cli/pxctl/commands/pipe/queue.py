"""`pxctl pipe queue`: what runs and what waits, by group."""

from __future__ import annotations

from pxctl import wording
from pxctl.commanding import READS, declare
from pxctl.printing import print_table
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.invocation import Invocation

_COLUMNS = [
    Column("ID"),
    Column("PIPE", minimum=10),
    Column("STATUS", rank=1),
    Column("POSITION", rank=2, right=True),
    Column("GROUP", rank=4),
    Column("SLOTS", rank=6, right=True),
    Column("TRIGGER", rank=5),
    Column("SINCE", rank=3),
    Column("NOT BEFORE", rank=7),
]


@declare("queue", effect=READS, examples=["pxctl pipe queue", "pxctl pipe queue --json", "pxctl pipe queue -q"])
def command(invocation: Invocation) -> None:
    """Show what runs and what waits in line, by group: its slots, and each one's position."""
    invocation.action = "read the queue"
    answer = invocation.client().get("/api/pipes/queue")
    listed = list(_executions(answer.document))
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        for _, execution in listed:
            invocation.say(str(execution.get("id")))
    elif listed:
        print_table(invocation, _COLUMNS, [_row(slots, one, invocation.now()) for slots, one in listed])
    else:
        invocation.notice("nothing runs and nothing waits")


def _executions(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the slots of a group in words, and each of its executions."""
    for group in document.get("groups", []):
        running, waiting = group.get("running") or [], group.get("waiting") or []
        slots = f"{len(running)}/{group.get('slots')}"
        for execution in [*running, *waiting]:
            yield slots, execution


def _row(slots: str, execution: dict[str, Any], now: float) -> list[Cell]:
    status = str(execution.get("status"))
    since = execution.get("started_at") or execution.get("queued_at")
    later = wording.epoch(execution.get("not_before"))
    return [
        Cell(str(execution.get("id"))),
        Cell(str(execution.get("pipe_name"))),
        Cell(status, BY_STATE.get(status)),
        Cell(str(execution["position"]) if execution.get("position") else ""),
        Cell(str(execution.get("group") or "")),
        Cell(slots),
        Cell(str(execution.get("trigger") or "")),
        Cell("" if since is None else wording.ago(since, now)),
        Cell(wording.ago(execution["not_before"], now) if later is not None and later > now else ""),
    ]
