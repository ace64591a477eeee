"""`pxctl kernel specs`: the kernelspecs that can be started."""

from __future__ import annotations

from pxctl.commanding import READS, declare
from pxctl.printing import print_table
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_COLUMNS = [
    Column("NAME", minimum=10),
    Column("LANGUAGE", rank=1),
    Column("DISPLAY NAME", rank=2, minimum=12),
    Column("COMMAND", rank=3, minimum=16),
]


@declare("specs", effect=READS, examples=["pxctl kernel specs", "pxctl kernel specs --json"])
def command(invocation: Invocation) -> None:
    """List the kernelspecs that the daemon finds; --json is Jupyter's own document."""
    invocation.action = "list the kernelspecs"
    answer = invocation.client().get("/api/kernelspecs")
    found = answer.document.get("kernelspecs") or {}
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    if invocation.quiet:
        for name in found:
            invocation.say(str(name))
        return
    rows = []
    for name, entry in found.items():
        spec = entry.get("spec") or {}
        is_default = " (default)" if name == answer.document.get("default") else ""
        command_line = " ".join(map(str, spec.get("argv") or []))
        rows.append(
            [
                Cell(f"{name}{is_default}"),
                Cell(str(spec.get("language") or "")),
                Cell(str(spec.get("display_name") or "")),
                Cell(command_line),
            ]
        )
    print_table(invocation, _COLUMNS, rows)
