"""`pxctl events`: what happened, and what happens."""

from __future__ import annotations

import json

import click

from pxctl.client import query
from pxctl.commanding import READS, declare
from pxctl.commands.why import event_line
from pxctl.completing import unit_names
from pxctl.failure import OK
from pxctl.following import ndjson_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation


@declare(
    "events",
    effect=READS,
    examples=[
        "pxctl events -n 20",
        "pxctl events -f --unit lorenz-ode-solver",
        "pxctl events --json | jq 'select(.reason == \"memory_limit\")'",
    ],
)
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen; survives a restart of the control plane.")
@click.option("--unit", metavar="U", shell_complete=unit_names, help="Only what concerns this unit.")
@click.option(
    "-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help="The latest N, or the first after ID."
)
@click.option("--after", type=click.IntRange(min=0), metavar="ID", help="Only events after this id.")
def command(invocation: Invocation, follow: bool, unit: str | None, limit: int | None, after: int | None) -> int:
    """Show what happened: one line an event, with --json one NDJSON document an event."""
    invocation.action = "read the events"
    last = after

    def target() -> str:
        count = limit if last == after else None
        return query("/api/events", [("follow", follow), ("unit", unit), ("after", last), ("limit", count)])

    try:
        for line in ndjson_lines(invocation, target, follow=follow):
            event = _parsed(line)
            _show(invocation, line, event)
            number = event.get("id")
            last = number if isinstance(number, int) else last
    except KeyboardInterrupt:
        return OK
    return OK


def _show(invocation: Invocation, line: bytes, event: dict[str, Any]) -> None:
    if invocation.json:
        invocation.write(line + b"\n")
        return
    if invocation.quiet:
        if event.get("id") is not None:
            invocation.say(str(event["id"]))
    elif event.get("event") == "gap":
        invocation.warn(f"pxctl: {event.get('missed')} events were missed here")
    else:
        invocation.say(event_line(event))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"event": line.decode("utf-8", "replace")}
