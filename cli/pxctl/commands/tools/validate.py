"""`pxctl tools validate`: the twelve checks."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import tool_names
from pxctl.failure import FAILED, OK
from pxctl.naming import tool_route, unit_of
from pxctl.printing import print_table
from pxctl.spinner import Spinner
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_COLUMNS = [Column("CHECK", minimum=10), Column("RESULT"), Column("MESSAGE", rank=1, minimum=20)]


@declare(
    "validate",
    effect="modifying: starts an instance of the tool for the checks and stops it again",
    examples=["pxctl tools validate lorenz-ode-solver", "pxctl tools validate lorenz-ode-solver --summary"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.option("--summary", is_flag=True, help="Only what did not pass.")
def command(invocation: Invocation, tool: str, summary: bool) -> int:
    """Run the twelve checks on a tool; exits 0 on pass and warn, 1 on fail."""
    invocation.action = f"validate {unit_of(tool)}"
    with Spinner(unit_of(tool), lambda: "checking…", on=invocation.err_is_terminal and not invocation.quiet):
        answer = invocation.client().ask("POST", tool_route(tool, "validate"), timeout=None)
    document = answer.document
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str(document.get("overall")))
    else:
        _tell(invocation, document, summary=summary)
    return FAILED if document.get("overall") == "fail" else OK


def _tell(invocation: Invocation, document: dict[str, Any], *, summary: bool) -> None:
    checks = [
        check for check in document.get("checks") or [] if not summary or check.get("status") not in {"pass", "skip"}
    ]
    if checks:
        print_table(invocation, _COLUMNS, [_row(check) for check in checks])
    for check in checks:
        for detail in _details(check):
            invocation.say(f"  {check.get('name')}: {detail}")
    overall = str(document.get("overall"))
    invocation.say(f"{document.get('tool_id')}: " + invocation.paint(overall, BY_STATE.get(overall)))


def _row(check: dict[str, Any]) -> list[Cell]:
    status = str(check.get("status"))
    return [Cell(str(check.get("name"))), Cell(status, BY_STATE.get(status)), Cell(str(check.get("message") or ""))]


def _details(check: dict[str, Any]) -> list[str]:
    """Return the lines that explain what did not pass; what passed needs no explanation."""
    if check.get("status") in {"pass", "skip"}:
        return []
    details = check.get("details")
    if isinstance(details, dict):
        return [f"{key}: {value}" for key, value in details.items()]
    if isinstance(details, list):
        return [str(one) for one in details]
    return str(details).splitlines() if details else []
