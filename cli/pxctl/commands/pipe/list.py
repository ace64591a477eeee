"""`pxctl pipe list`: the pipes as a table."""

from __future__ import annotations

from pxctl import wording
from pxctl.commanding import READS, declare
from pxctl.pipes import state_of
from pxctl.printing import print_table
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_COLUMNS = [
    Column("PIPE", minimum=12),
    Column("STATE", rank=1),
    Column("SCHEDULE", rank=4, minimum=10),
    Column("NEXT RUN", rank=2),
    Column("LAST RUN", rank=5),
    Column("LAST STATUS", rank=3),
    Column("QUEUED", rank=8, right=True),
    Column("FAILURES", rank=7, right=True),
    Column("REMARK", rank=6, minimum=12),
]


@declare("list", effect=READS, examples=["pxctl pipe list", "pxctl pipe list --json", "pxctl pipe list -q"])
def command(invocation: Invocation) -> None:
    """List the pipes with schedule, next and last run; one that cannot run with its error."""
    invocation.action = "list the pipes"
    answer = invocation.client().get("/api/pipes")
    pipes = answer.document.get("pipes", [])
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        for pipe in pipes:
            invocation.say(str(pipe.get("name")))
    elif pipes:
        print_table(invocation, _COLUMNS, [_row(pipe, invocation.now()) for pipe in pipes])
    else:
        invocation.notice("no pipes yet; add one: pxctl pipe add example:disk-digest")


def _row(pipe: dict[str, Any], now: float) -> list[Cell]:
    state, last = state_of(pipe), str(pipe.get("last_status") or "")
    failures = pipe.get("consecutive_failures")
    return [
        Cell(str(pipe.get("name"))),
        Cell(state, BY_STATE.get(state)),
        Cell(str(pipe.get("schedule") or "")),
        Cell("" if pipe.get("next_run") is None else wording.ago(pipe["next_run"], now)),
        Cell("" if pipe.get("last_run") is None else wording.ago(pipe["last_run"], now)),
        Cell(last, BY_STATE.get(last)),
        Cell(str(pipe["queued"]) if pipe.get("queued") else ""),
        Cell(str(failures) if failures else "", "red"),
        Cell(*_remark(pipe)),
    ]


def _remark(pipe: dict[str, Any]) -> tuple[str, str | None]:
    if pipe.get("config_error"):
        folder = (
            f"{pipe.get('folder')}/"  # the row says which pipe it is; a narrow terminal has no room to say it again
        )
        return f"broken: {str(pipe['config_error']).removeprefix(folder)}", "red"
    if pipe.get("running") is not None:
        return f"execution {pipe['running']}", None
    if pipe.get("slower_than_schedule"):
        return "takes longer than the time between two runs", "yellow"
    if pipe.get("warnings"):
        return str(pipe["warnings"][0]), "yellow"
    return ("muted", "dim") if pipe.get("muted") else ("", None)
