"""`pxctl why`: the causal chain that led to a unit's state."""

from __future__ import annotations

import click

from pxctl.client import quote
from pxctl.commanding import READS, declare
from pxctl.completing import unit_names
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_KNOWN = {"id", "time", "unit", "event", "reason", "instance", "cause", "schema"}


@declare("why", effect=READS, examples=["pxctl why lorenz-ode-solver", "pxctl why tool:lorenz-ode-solver --json"])
@click.argument("unit", metavar="UNIT", shell_complete=unit_names)
def command(invocation: Invocation, unit: str) -> None:
    """Explain why a unit is as it is: what happened, what caused that, what it last printed, what to do next."""
    invocation.action = f"explain {unit}"
    answer = invocation.client().get(f"/api/units/{quote(unit)}/why")
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    if invocation.quiet:
        invocation.say(str(answer.document.get("unit")))
        return
    for line in _lines(invocation, answer.document):
        invocation.say(line)


def _lines(invocation: Invocation, document: dict[str, Any]) -> list[str]:
    paint = invocation.paint
    reason = f" ({document['reason']})" if document.get("reason") else ""
    lines = [paint(f"{document.get('unit')} is {document.get('state')}{reason}", "bold")]
    if document.get("summary"):
        lines.append(str(document["summary"]))
    if chain := document.get("chain"):
        lines += ["", "What happened, oldest first:"]
        lines += [f"  {event_line(event)}" for event in chain if isinstance(event, dict)]
    if tail := document.get("stderr_tail"):
        lines += ["", "Its last words on stderr:"]
        lines += [f"  {clean(line)}" for line in str(tail).rstrip().splitlines()]
    if document.get("next_step"):
        lines += ["", paint("next:", "bold") + f" {document['next_step']}"]
    return lines


def event_line(event: dict[str, Any]) -> str:
    """Return one event on one line: time, unit, what, why, then its further facts."""
    facts = " ".join(f"{key}={value}" for key, value in event.items() if key not in _KNOWN and value is not None)
    reason = event.get("reason")
    pieces = [event.get("time"), event.get("unit") or "pxd", event.get("event"), reason and f"({reason})", facts]
    return clean("  ".join(str(piece) for piece in pieces if piece))
