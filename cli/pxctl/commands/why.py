"""`pxctl why`: the causal chain that led to a unit's state."""

from __future__ import annotations

import json

import click

from pxctl.client import query, quote
from pxctl.commanding import READS, declare
from pxctl.completing import unit_names
from pxctl.executions import FINAL, find_execution, hint_for, is_execution_id, sentence
from pxctl.following import ndjson_lines
from pxctl.pipes import PREFIX as PIPE
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_TAIL_LINES = 15
_LOOK_BACK = 1000
"""Events of a pipe among which those of one execution are looked for."""
_KNOWN = {"id", "time", "unit", "event", "reason", "instance", "cause", "schema"}


@declare(
    "why",
    effect=READS,
    examples=["pxctl why lorenz-ode-solver", "pxctl why tool:lorenz-ode-solver --json", "pxctl why 12"],
)
@click.argument("unit", metavar="UNIT|EXECUTION", shell_complete=unit_names)
def command(invocation: Invocation, unit: str) -> None:
    """Explain why a unit, or an execution, is as it is: what happened, what caused that, its last words, what to do."""
    number = is_execution_id(unit)
    invocation.action = f"explain {'execution ' if number else ''}{unit}"
    client = invocation.client()
    if number:
        execution = find_execution(client, unit)
        document = _of_execution(execution, _chain(invocation, execution))
    else:
        answer = client.get(f"/api/units/{quote(unit)}/why")
        document = answer.document
    if invocation.json and number:
        invocation.document(document)
    elif invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str(document.get("unit")))
    else:
        for line in _lines(invocation, document):
            invocation.say(line)


def _chain(invocation: Invocation, execution: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the newest event of an execution and what led to it, cause before effect; [] when they are long gone."""
    unit = f"{PIPE}{execution.get('pipe_name')}"
    target = query("/api/events", [("unit", unit), ("limit", _LOOK_BACK)])
    events = [json.loads(line) for line in ndjson_lines(invocation, lambda: target, follow=False)]
    known = {event["id"]: event for event in events if "id" in event}
    own = [event for event in events if event.get("execution") == execution.get("id")]
    found, wanted = [], own[-1]["id"] if own else None
    while wanted in known:
        found.append(known.pop(wanted))
        wanted = found[-1].get("cause")
    return found[::-1]


def _of_execution(execution: dict[str, Any], chain: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is known of an execution in the form of a px.why/1 document."""
    status, number = str(execution.get("status")), execution.get("id")
    words = [f"{sentence(execution)}."]
    if execution.get("trigger_event"):
        words.append(f"It was started by the event {execution['trigger_event']}.")
    if execution.get("retry_of"):
        words.append(
            f"It is try {int(execution.get('retry_count') or 0) + 1}, after execution {execution['retry_of']}."
        )
    bad = status in FINAL and status != "completed"
    going = "pxctl pipe tail -f {}" if status not in FINAL else "pxctl pipe output {}"
    return {
        "schema": "px.why/1",
        "unit": f"{PIPE}{execution.get('pipe_name')}",
        "execution": number,
        "state": status,
        "reason": execution.get("error_type"),
        "summary": " ".join(words),
        "chain": chain,
        "stderr_tail": "\n".join(str(execution.get("stderr") or "").splitlines()[-_TAIL_LINES:]) if bad else "",
        "next_step": hint_for(execution) if bad else going.format(number),
    }


def _lines(invocation: Invocation, document: dict[str, Any]) -> list[str]:
    paint = invocation.paint
    reason = f" ({document['reason']})" if document.get("reason") else ""
    number = f" execution {document['execution']}" if document.get("execution") is not None else ""
    lines = [paint(f"{document.get('unit')}{number} is {document.get('state')}{reason}", "bold")]
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
