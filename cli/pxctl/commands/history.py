"""`pxctl logs`, `events`, `why`, `wait`: what a unit printed, what happened, what led to it, and waiting for it."""

from __future__ import annotations

import json
import re
import time

import click

from pxctl.app import READS, SECONDS, declare
from pxctl.client import query, quote
from pxctl.completion import unit_names
from pxctl.executions import (
    FINAL,
    PREFIX,
    await_execution,
    exit_code_of,
    find_execution,
    hint_for,
    is_execution_id,
    newest_of,
    sentence,
)
from pxctl.failure import FAILED, OK, TIMED_OUT, Failure, Interrupted, Problem, Silent, Unreachable, usage
from pxctl.follow import Patience, bytes_of, ndjson_lines, parsed_event
from pxctl.output import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.app import Invocation


@declare(
    "logs",
    effect=READS,
    examples=[
        "pxctl logs lorenz-ode-solver",
        "pxctl logs lorenz-ode-solver -f -n 20 --timestamps",
        "pxctl logs lorenz-ode-solver --stderr --since 10m",
        "pxctl logs lorenz-ode-solver --since 2026-01-31T12:00:00Z --json",
    ],
)
@click.argument("unit", metavar="UNIT", shell_complete=unit_names)
@click.option("-f", "--follow", is_flag=True, help="Go on as output comes; survives a restart of the control plane.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="The last N lines only.")
@click.option("--since", metavar="T", help="From a time (RFC 3339) or an age (90s, 10m, 2h, 1d) on.")
@click.option("--stdout", is_flag=True, help="Only what came on stdout.")
@click.option("--stderr", is_flag=True, help="Only what came on stderr.")
@click.option("--timestamps", is_flag=True, help="Begin each line with the time of its output.")
def show_logs(
    invocation: Invocation,
    unit: str,
    follow: bool,
    lines: int | None,
    since: str | None,
    stdout: bool,
    stderr: bool,
    timestamps: bool,
) -> int:
    """Show the output of a unit as it came; with --json a line of NDJSON for each piece.

    Where output was lost, a note on stderr says how much.
    """
    invocation.action = f"read the logs of {unit}"
    if stdout and stderr:
        raise usage("--stdout and --stderr exclude each other; without both, both are shown", f"pxctl logs {unit}")
    stream = "stdout" if stdout else "stderr" if stderr else None
    cursor: int | None = None
    begins_line = True

    def target() -> str:
        """Return the request; after a loss it begins where the last piece ended."""
        place: list[tuple[str, object]] = (
            [("since", since), ("lines", lines)] if cursor is None else [("cursor", cursor)]
        )
        form = [("stream", stream), ("encoding", None if invocation.json else "base64")]
        return query(f"/api/units/{quote(unit)}/logs", [("follow", follow or None), *place, *form])

    try:
        for line in ndjson_lines(invocation, target, follow=follow):
            piece = parsed_event(line)
            if invocation.json:
                invocation.write(line + b"\n")
            elif "gap_bytes" in piece:
                invocation.warn(f"pxctl: {piece['gap_bytes']} bytes of output were lost here")
            elif not timestamps:
                invocation.write(bytes_of(piece))
            else:
                # Only a newline ends a line, so that a progress bar stays in its own.
                for part in re.findall(rb"[^\n]*\n|[^\n]+", bytes_of(piece)):
                    invocation.write(f"{piece.get('time') or ''} ".encode() + part if begins_line else part)
                    begins_line = part.endswith(b"\n")
            following = piece.get("next_position")
            cursor = following if isinstance(following, int) else cursor
    except KeyboardInterrupt:
        return OK
    return OK


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
def show_events(invocation: Invocation, follow: bool, unit: str | None, limit: int | None, after: int | None) -> int:
    """Show what happened: one line an event, with --json one NDJSON document an event."""
    invocation.action = "read the events"
    last = after

    def target() -> str:
        count = limit if last == after else None
        return query("/api/events", [("follow", follow), ("unit", unit), ("after", last), ("limit", count)])

    try:
        for line in ndjson_lines(invocation, target, follow=follow):
            event = parsed_event(line)
            _events_show(invocation, line, event)
            number = event.get("id")
            last = number if isinstance(number, int) else last
    except KeyboardInterrupt:
        return OK
    return OK


def _events_show(invocation: Invocation, line: bytes, event: dict[str, Any]) -> None:
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
def explain(invocation: Invocation, unit: str) -> None:
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
    if not invocation.told(document if number else answer, [document.get("unit")]):
        invocation.say_all(_lines(invocation, document))


def _chain(invocation: Invocation, execution: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the newest event of an execution and what led to it, cause before effect; [] when they are long gone."""
    unit = f"{PREFIX}{execution.get('pipe_name')}"
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
        "unit": f"{PREFIX}{execution.get('pipe_name')}",
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


_SLACK_SECONDS = 15.0
_SLICE_SECONDS = 300.0
_AWAY_SECONDS = 30.0
_GATEWAY_TIMEOUT = 504


@declare(
    "wait",
    effect=READS,
    examples=[
        "pxctl wait lorenz-ode-solver",
        "pxctl wait lorenz-ode-solver --for stopped --timeout 30",
        "pxctl wait pipe:disk-digest       # until nothing of it runs or waits",
        "pxctl wait 12                     # an execution",
    ],
)
@click.argument("unit", metavar="UNIT|EXECUTION", shell_complete=unit_names)
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "stopped", "done"]),
    help="What to wait for; else ready, of a pipe done.",
)
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up after S seconds (exit 7).")
def wait_for(invocation: Invocation, unit: str, wanted: str | None, timeout: float | None) -> int:
    """Block until a unit is ready, stopped or done; exits with the outcome: 0 as wanted, 1 not, 7 timed out.

    An execution, and what runs and waits of a pipe, is waited for until it is over; exits 0 completed, 1 failed or
    cancelled, 7 timed out. A restart of the daemon's control plane meanwhile does not end the waiting.
    """
    number = is_execution_id(unit)
    invocation.action = f"wait for {'execution ' if number else ''}{unit}"
    try:
        return _one(invocation, unit, timeout) if number else _unit(invocation, unit, wanted, timeout)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: no longer waiting; {unit} goes on as it is")
        raise Silent(FAILED) from None


def _one(invocation: Invocation, number: str, timeout: float | None) -> int:
    """Wait for an execution."""
    client = invocation.client()
    execution = await_execution(client, find_execution(client, number), timeout)
    if not invocation.told(execution, [execution.get("id")]):
        invocation.say(f"{PREFIX}{execution.get('pipe_name')} {sentence(execution)}")
    return exit_code_of(execution)


def _unit(invocation: Invocation, unit: str, wanted: str | None, timeout: float | None) -> int:
    """Wait for a unit; of a pipe the outcome is that of its newest execution."""
    goal = wanted or ("done" if unit.startswith(PREFIX) else "ready")
    document = _await(invocation, unit, goal, timeout)
    is_pipe = str(document.get("unit")).startswith(PREFIX)
    if is_pipe and wanted is None and goal != "done":
        goal = "done"
        document = _await(invocation, str(document.get("unit")), goal, timeout)
    newest = newest_of(invocation.client(), str(document["unit"]).removeprefix(PREFIX)) if is_pipe else None
    told = document if newest is None else {**document, "execution": newest}
    if not invocation.told(told, [document.get("unit")]):
        reason = f" ({document['reason']})" if document.get("reason") else ""
        last = f"; {sentence(newest)}" if newest is not None else ""
        invocation.say(f"{document.get('unit')} {document.get('state')}{reason}{last}")
    if goal == "done" and newest is not None:
        return exit_code_of(newest)
    return OK if document.get("ok") else FAILED


def _await(invocation: Invocation, unit: str, wanted: str, timeout: float | None) -> dict[str, Any]:
    """Ask in slices, so that neither a long wait nor a restart of the control plane needs a connection that lasts."""
    client, patience = invocation.client(), Patience(_AWAY_SECONDS)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        part = min(left, _SLICE_SECONDS)
        target = query(f"/api/units/{quote(unit)}/wait", [("for", wanted), ("timeout", round(part, 3))])
        try:
            document: dict[str, Any] = client.get(target, timeout=part + _SLACK_SECONDS).document
            return document
        except Problem as problem:
            if problem.status != _GATEWAY_TIMEOUT:
                patience.bear(problem)
            patience.met()
            if deadline is not None and time.monotonic() >= deadline:
                raise _too_late(problem.unit or (unit if ":" in unit else f"tool:{unit}"), wanted, timeout) from problem
        except (Interrupted, Unreachable) as failure:
            patience.bear(failure)
            if deadline is not None and time.monotonic() >= deadline:
                raise _too_late((unit if ":" in unit else f"tool:{unit}"), wanted, timeout) from failure


def _too_late(unit: str, wanted: str, timeout: float | None) -> Failure:
    return Failure(
        f"it is not {wanted} after {timeout:g} s",
        kind="timed_out",
        hint=f"pxctl why {unit}",
        exit_code=TIMED_OUT,
        unit=unit,
        status=_GATEWAY_TIMEOUT,
    )
