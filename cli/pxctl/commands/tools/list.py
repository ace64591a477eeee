"""`pxctl tools list`: the catalog as a table."""

from __future__ import annotations

from pxctl.commanding import READS, declare
from pxctl.printing import print_table
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_COLUMNS = [
    Column("NAME", minimum=10),
    Column("STATE", rank=1),
    Column("VERSION", rank=4),
    Column("DIALECT", rank=5),
    Column("PIN", rank=3),
    Column("DESCRIPTION", rank=2, minimum=16),
]


@declare("list", effect=READS, examples=["pxctl tools list", "pxctl tools list --json", "pxctl tools list -q"])
def command(invocation: Invocation) -> None:
    """List the tools; a broken tool.json is listed with its error and harms no other."""
    invocation.action = "list the tools"
    answer = invocation.client().get("/api/tools")
    tools = answer.document.get("tools", [])
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        for tool in tools:
            invocation.say(str(tool.get("name")))
    elif tools:
        print_table(invocation, _COLUMNS, [_row(tool) for tool in tools])
        for tool in tools:
            for warning in tool.get("warnings") or []:
                invocation.notice(f"warning: {tool.get('name')}: {warning}")
    else:
        invocation.notice("no tools yet; add one: pxctl tools add example:compound-interest")


def _row(tool: dict[str, Any]) -> list[Cell]:
    error = tool.get("config_error")
    state = "broken" if error else str(tool.get("state") or "?")
    title = tool.get("title") if tool.get("title") != tool.get("name") else None
    words = ": ".join(str(part) for part in (title, tool.get("description")) if part)
    return [
        Cell(str(tool.get("name"))),
        Cell(state, "red" if error else BY_STATE.get(state)),
        Cell(str(tool.get("version") or "")),
        Cell(str(tool.get("dialect") or "")),
        Cell("pinned" if tool.get("pinned") else ""),
        Cell(str(error or words), "red" if error else None),
    ]
