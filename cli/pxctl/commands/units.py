"""`pxctl status`, `start`, `stop`, `restart`, `pin`, `logs`, `events`, `why`, `wait`: units of every kind.

Several units in one call: what one of them answers never hides what another answered. The exit code is that of the
first failure in the order in which they were named. Ctrl-C ends the waiting, never what was asked for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from pxctl import output
from pxctl.app import Invocation, declare, report, root, timeout_option
from pxctl.client import (
    Answer,
    Client,
    Document,
    Exit,
    Failure,
    Interrupted,
    Problem,
    Unreachable,
    expand,
    query,
    quote,
    route,
    usage,
)
from pxctl.completion import tool_names, unit_names
from pxctl.output import Column, ago, duration, size, state_column

_UP = {"ready", "busy", "starting", "running", "queued", "idle"}
_DOWN = {None, "cold", "stopped", "failed"}
GOING = {"start": "starting", "stop": "stopping", "restart": "restarting"}
_SLACK_SECONDS = 15.0
"""How much longer than its own limit the daemon may take to answer."""

_units = click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
_tools = click.argument("tools", nargs=-1, required=True, metavar="TOOL...", shell_complete=tool_names)
_execution_or_unit = click.argument("unit", metavar="UNIT|EXECUTION", shell_complete=unit_names)


# -- status -----------------------------------------------------------------------------------------------------------


def _reason(unit: Document) -> str:
    """Return why a unit is as it is; of a pipe what runs, else how the last one ended where that was badly."""
    if error := unit.get("config_error"):
        return f"broken: {error.get('detail') if isinstance(error, dict) else error}"
    if unit.get("kind") != "pipe":
        return str(unit.get("reason") or "")
    if unit.get("running") is not None:
        return f"execution {unit['running']}"
    if unit.get("last_status") not in {"failed", "timed_out"}:
        return ""
    failures = unit.get("consecutive_failures") or 0
    often = f", {failures} in a row" if failures > 1 else ""
    return f"last run {str(unit['last_status']).replace('_', ' ')}{often}"


def _is_bad(unit: Document) -> bool:
    is_pipe = unit.get("kind") == "pipe" and unit.get("running") is None
    return bool(unit.get("config_error") or (is_pipe and _reason(unit)) or unit.get("state") == "failed")


_COLUMNS = [
    Column("UNIT", lambda unit: unit.get("unit") or unit.get("name") or "?", minimum=12),
    state_column(),
    Column("PID", lambda unit: unit.get("pid") or "", 6, right=True),
    Column("UPTIME", lambda unit: duration(unit.get("uptime_seconds")), 7, right=True),
    Column("MEMORY", lambda unit: size(unit.get("rss_bytes")), 4, right=True),
    Column("CPU", lambda unit: output.percent(unit.get("cpu_percent")), 8, right=True),
    Column("LAST USED / NEXT RUN", lambda unit: ago(unit.get("next_run") or unit.get("last_used")), 3),
    Column("PIN", lambda unit: "pinned" if unit.get("pinned") else "", 5),
    Column("REASON", _reason, 2, minimum=12, style=lambda unit: "red" if _is_bad(unit) else None),
]


@declare(root, "status", "read the status")
@click.argument("units", nargs=-1, metavar="[UNIT]...", shell_complete=unit_names)
@click.option("--watch", is_flag=True, help="Show it again and again; with --json one line of NDJSON each time.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between looks."
)
def show_status(invocation: Invocation, units: tuple[str, ...], watch: bool, interval: float) -> int:
    """Show everything that is held: state, pid, memory, last use or next run, reason.

    With UNIT: only those; exits 3 when one of them is not up, 4 when there is none of that name.

    $ pxctl status
    $ pxctl status lorenz-ode-solver    # exits 3 unless it is up
    $ pxctl status 'tool:web*' --json
    $ pxctl status --watch --interval 5
    """
    target = query("/api/status", [("unit", unit) for unit in units])
    if watch:
        return _watch(invocation, target, interval)
    answer = invocation.client().get(target)
    _print_status(invocation, answer)
    is_up = all(unit.get("state") in _UP for unit in answer.document.get("units", []))
    return Exit.OK if is_up or not units else Exit.INACTIVE


def _print_status(invocation: Invocation, answer: Answer) -> None:
    units = answer.document.get("units", [])
    if not invocation.print_result(answer, (unit.get("unit") for unit in units)):
        invocation.print(*_status_lines(invocation, answer.document))
        if not units:
            invocation.notice("no units yet; add a tool: pxctl tools add example:compound-interest")


def _status_lines(invocation: Invocation, document: Document) -> list[str]:
    units, daemon = document.get("units", []), document.get("daemon") or {}
    lines = invocation.table(_COLUMNS, units) if units else []
    if invocation.out_is_terminal:
        keeper, control = daemon.get("keeper") or {}, daemon.get("control") or {}
        words = f"pxd {daemon.get('version', '?')}, keeper {keeper.get('pid', '?')}, control {control.get('pid', '?')}"
        words += f", control restarted {control['restarts']}x" if control.get("restarts") else ""
        lines.append(invocation.paint(output.cut(words, invocation.width or len(words)), "dim"))
    return lines


def _watch(invocation: Invocation, target: str, interval: float) -> int:
    """Look again and again until Ctrl-C, each time over the last one; a daemon that is away is no reason to end."""
    drawn, redraws = 0, invocation.can_redraw and not (invocation.json or invocation.quiet)
    try:
        while True:
            try:
                answer = invocation.client().get(target)
            except (Unreachable, Interrupted) as failure:
                lines = [f"pxd is away: {failure.detail}"]
                if not redraws:
                    invocation.notice(*lines)
            else:
                lines = _status_lines(invocation, answer.document) if redraws else []
                if invocation.json:
                    output.write(answer.raw.strip().replace(b"\n", b" ") + b"\n")
                elif not redraws:
                    _print_status(invocation, answer)
            if redraws:
                room = max(1, output.screen(invocation.env)[1] - 1)
                if len(lines) > room:
                    lines = [*lines[: room - 1], f"… {output.counted(len(lines) - room + 1, 'more line')}"]
                up = f"\x1b[{drawn}A" if drawn else ""
                output.write(up + "\r" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
                drawn = len(lines)
            time.sleep(interval)
    except KeyboardInterrupt:
        return Exit.OK


# -- several units at once --------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of one unit: the daemon's document, or a failure."""

    unit: str
    document: Document | None = None
    failure: Failure | None = None


def one_by_one(invocation: Invocation, verb: str, units: Sequence[str], step: Callable[[str], Any]) -> list[Outcome]:
    """Do to each unit what is over at once; failures are kept, not raised."""
    outcomes = []
    for unit in units:
        try:
            with invocation.detaching(f"detached; what was asked of {unit} goes on"):
                outcomes.append(Outcome(unit, step(unit)))
        except Failure as failure:
            failure.action = f"{verb} {unit}"
            outcomes.append(Outcome(unit, failure=failure))
    return outcomes


def listed(schema: str, member: str, outcomes: Sequence[Outcome]) -> Callable[[list[Document]], Document]:
    """Return what makes one JSON document of several; that of a single unit stays as it is."""
    return lambda found: found[0] if len(outcomes) == 1 else {"schema": schema, member: found}


def print_outcomes(
    invocation: Invocation,
    outcomes: Sequence[Outcome],
    show: Callable[[str, Document], None],
    merged: Callable[[list[Document]], Document],
) -> int:
    """Print what became of each, under `--json` in one document; raise the failure of a single one."""
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    found = [(outcome.unit, outcome.document) for outcome in outcomes if outcome.document is not None]
    if failures and len(outcomes) == 1:
        raise failures[0]
    if invocation.json:
        more = {"failures": [failure.document() for failure in failures]} if failures else {}
        invocation.print_json({**merged([document for _, document in found]), **more})
    else:
        for unit, document in found:
            show(unit, document)
        for failure in failures:
            report(invocation, failure)
    return failures[0].exit_code if failures else Exit.OK


def steer(
    invocation: Invocation, client: Client, verb: str, names: Sequence[str], timeout: float | None, no_wait: bool
) -> int:
    """Start, stop or restart all units that the names mean in one request; print the outcome, return the exit code."""

    def merged(documents: list[Document]) -> Document:
        members = ("units", "survivors") if verb == "stop" else ("units",)
        lists = {member: [one for document in documents for one in document.get(member, [])] for member in members}
        return {"schema": f"px.{verb}/1", **lists}

    def show(unit: str, document: Document) -> None:
        found = next((one for one in document["units"] if one.get("unit") == unit), (document["units"] or [{}])[0])
        words = str(found.get("state") or GOING[verb]) + (f" (pid {found['pid']})" if found.get("pid") else "")
        if no_wait:
            words = GOING[verb]
        elif verb == "stop" and found.get("state") in _DOWN:
            words = "stopped"
        elif found.get("execution") is not None:
            words = f"{found.get('state')} (execution {found['execution']})"
        invocation.print(unit if invocation.quiet else f"{unit} {words}")

    return print_outcomes(invocation, request(invocation, client, verb, names, timeout, no_wait), show, merged)


def request(
    invocation: Invocation,
    client: Client,
    verb: str,
    names: Sequence[str],
    timeout: float | None = None,
    no_wait: bool = False,
) -> list[Outcome]:
    """Ask the daemon for it; return what became of each unit, in its order. Ctrl-C says what goes on."""
    parameters: list[tuple[str, object]] = [("unit", name) for name in names]
    target = query(f"/api/units/{verb}", [*parameters, ("timeout", timeout), ("wait", False if no_wait else None)])
    limit, listed = None if timeout is None else 2 * timeout + _SLACK_SECONDS, ", ".join(names)
    with (
        invocation.detaching(f"detached; {listed} goes on {GOING[verb]}"),
        invocation.spinner(listed, f"{GOING[verb]}…"),
    ):
        results = client.ask("POST", target, timeout=limit).document.get("results", [])
    return [_outcome(verb, result, timeout) for result in results]


def _outcome(verb: str, result: Document, timeout: float | None) -> Outcome:
    """Return what became of a unit, with `units` in its document, whatever its kind answers."""
    unit, answer, problem = str(result.get("unit")), result.get("answer") or {}, result.get("problem")
    failure: Failure | None = None if problem is None else Problem(int(problem.get("status") or 500), problem)
    is_pipe = unit.startswith("pipe:")
    if is_pipe and verb == "start" and answer.get("status") == "failed":
        from pxctl.executions import failure_of

        failure = failure_of(answer)
    if failure is not None:
        if failure.kind == "timed_out" and timeout is not None and verb != "start":
            what, goal = ("something of it is left", " --for stopped") if verb == "stop" else ("it is not ready", "")
            failure.detail, failure.hint = f"{what} after {timeout:g} s; the {verb} goes on", f"pxctl wait {unit}{goal}"
        failure.action = f"{verb} {unit}"
        return Outcome(unit, failure=failure)
    if is_pipe and verb == "start":
        found = {"unit": unit, "state": answer.get("status"), "pid": answer.get("pid"), "execution": answer.get("id")}
        return Outcome(unit, {"units": [found]})
    if is_pipe:
        executions = answer.get("executions", [])
        found = {"unit": unit, "state": "stopped", "pid": None, "cancelled": [one.get("id") for one in executions]}
        return Outcome(unit, {"units": [found], "survivors": [], "executions": executions})
    return Outcome(unit, answer if "units" in answer else {"units": [{**answer, "unit": unit}]})


_no_wait = click.option("--no-wait", is_flag=True, help="Return once it is under way.")


@declare(root, "start", "start {units}")
@_units
@timeout_option()
@_no_wait
def start_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Warm up units; returns when they are ready.

    A pipe is run in the background: returns when it is queued. Ctrl-C ends the waiting only: the start goes on.

    Effect: modifying: starts the unit's process and keeps it warm
    $ pxctl start lorenz-ode-solver
    $ pxctl start 'tool:*' --timeout 60
    $ pxctl start lorenz-ode-solver --no-wait
    $ pxctl start pipe:disk-digest
    """
    return steer(invocation, invocation.client(), "start", units, timeout, no_wait)


@declare(root, "stop", "stop {units}")
@_units
@timeout_option()
@_no_wait
def stop_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units, and name what survived; returns when nothing of them is left.

    Of a pipe, what runs and waits is cancelled, and always waited for. What is left in spite of that is named, and the
    exit code is 8. Stopping what does not run is fine. Ctrl-C ends the waiting only: the stop goes on.

    Effect: modifying: ends the unit's whole process tree (TERM, its grace, KILL)
    $ pxctl stop lorenz-ode-solver
    $ pxctl stop 'tool:*'
    $ pxctl stop lorenz-ode-solver --no-wait
    """
    return steer(invocation, invocation.client(), "stop", units, timeout, no_wait)


@declare(root, "restart", "restart {units}")
@_units
@timeout_option("Limit of the stop, and of the start (exit 7).")
@_no_wait
def restart_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units and start them anew; returns when they are ready.

    Effect: modifying: replaces the unit's instance by a new one
    $ pxctl restart lorenz-ode-solver
    $ pxctl restart 'tool:web*' --timeout 60
    """
    return steer(invocation, invocation.client(), "restart", units, timeout, no_wait)


@declare(root, "pin")
@_tools
@click.option("--forever", is_flag=True, help="Exempt from its time to live, too.")
def pin_tools(invocation: Invocation, tools: tuple[str, ...], forever: bool) -> int:
    """Exempt tools from eviction for room; their time to live still applies unless --forever.

    Effect: modifying: a pin lasts until `pxctl unpin`, also over restarts of everything
    $ pxctl pin lorenz-ode-solver
    $ pxctl pin --forever lorenz-ode-solver text-stats
    """
    return _change_pins(invocation, "pin", tools, "PUT", [("forever", forever)])


@declare(root, "unpin")
@_tools
def unpin_tools(invocation: Invocation, tools: tuple[str, ...]) -> int:
    """Take pins away; a tool that is not pinned is fine.

    Effect: modifying: the tool may be evicted again
    $ pxctl unpin lorenz-ode-solver
    $ pxctl unpin 'web*'
    """
    return _change_pins(invocation, "unpin", tools, "DELETE", [])


def _change_pins(
    invocation: Invocation, verb: str, tools: tuple[str, ...], method: str, parameters: list[tuple[str, object]]
) -> int:
    names = [tool if ":" in tool else f"tool:{tool}" for tool in tools]
    invocation.action = f"{verb} {', '.join(names)}"
    client = invocation.client()

    def change(unit: str) -> Document:
        pinned: Document = client.ask(method, query(route("tool", unit, "pin"), parameters)).document
        return pinned

    def show(unit: str, one: Document) -> None:
        words = ("pinned for ever" if one.get("forever") else "pinned") if one.get("pinned") else "not pinned"
        invocation.print(one.get("unit") if invocation.quiet else f"{one.get('unit')} {words}")

    outcomes = one_by_one(invocation, verb, expand(client, names), change)
    return print_outcomes(invocation, outcomes, show, listed("px.pins/1", "pins", outcomes))


# -- logs, events, why ------------------------------------------------------------------------------------------------


@declare(root, "logs", "read the logs of {unit}")
@click.argument("unit", metavar="UNIT", shell_complete=unit_names)
@click.option("-f", "--follow", is_flag=True, help="Go on as output comes; survives a restart of the control plane.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="The last N lines only.")
@click.option("--since", metavar="T", help="From a time (RFC 3339, 16:00, today) or an age (90s, 10m, 2h, 1d) on.")
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
) -> None:
    """Show a unit's output as it came; with --json a line of NDJSON for each piece.

    Where output was lost, a note on stderr says how much.

    $ pxctl logs lorenz-ode-solver
    $ pxctl logs lorenz-ode-solver -f -n 20 --timestamps
    $ pxctl logs lorenz-ode-solver --stderr --since '2 hours ago'
    $ pxctl logs lorenz-ode-solver --since 2026-01-31T12:00:00Z --json
    """
    from pxctl.follow import bytes_of, events_of, since_when

    if stdout and stderr:
        raise usage("--stdout and --stderr exclude each other; without both, both are shown", f"pxctl logs {unit}")
    stream, first = "stdout" if stdout else "stderr" if stderr else None, since_when(since)
    cursor: int | None = None
    begins_line = True

    def target() -> str:
        """Return the request; after a loss it begins where the last piece ended."""
        place: list[tuple[str, object]] = [("since", first), ("lines", lines)]
        place = place if cursor is None else [("cursor", cursor)]
        form = [("stream", stream), ("encoding", None if invocation.json else "base64")]
        return query(f"/api/units/{quote(unit)}/logs", [("follow", follow or None), *place, *form])

    with contextlib.suppress(KeyboardInterrupt):
        for line, piece in events_of(invocation.client(), target, follow=follow):
            if invocation.json:
                output.write(line + b"\n")
            elif "gap_bytes" in piece:
                invocation.warn(f"pxctl: {piece['gap_bytes']} bytes of output were lost here")
            elif not timestamps:
                output.write(bytes_of(piece))
            else:
                begins_line = _write_stamped(piece, bytes_of(piece), begins_line)
            following = piece.get("next_position")
            cursor = following if isinstance(following, int) else cursor


def _write_stamped(piece: Document, content: bytes, begins_line: bool) -> bool:
    """Write output with the time before each line; return whether the next piece begins one."""
    stamp = f"{piece.get('time') or ''} ".encode()
    *whole, rest = content.split(b"\n")  # only a newline ends a line, so that a progress bar stays in its own
    for part in [*(line + b"\n" for line in whole), *([rest] if rest else [])]:
        output.write(stamp + part if begins_line else part)
        begins_line = part.endswith(b"\n")
    return begins_line


@declare(root, "events", "read the events")
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen; survives a restart of the control plane.")
@click.option("--unit", metavar="U", shell_complete=unit_names, help="Only what concerns this unit.")
@click.option(
    "-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help="The latest N, or the first after ID."
)
@click.option("--after", type=click.IntRange(min=0), metavar="ID", help="Only events after this id.")
def show_events(invocation: Invocation, follow: bool, unit: str | None, limit: int | None, after: int | None) -> None:
    """Show what happened: one line an event, with --json one NDJSON document an event.

    $ pxctl events -n 20
    $ pxctl events -f --unit lorenz-ode-solver
    $ pxctl events --json | jq 'select(.reason == "memory_limit")'
    """
    from pxctl.follow import events_of

    last = after

    def target() -> str:
        count = limit if last == after else None
        return query("/api/events", [("follow", follow), ("unit", unit), ("after", last), ("limit", count)])

    with contextlib.suppress(KeyboardInterrupt):
        for line, event in events_of(invocation.client(), target, follow=follow):
            number = event.get("id")
            if invocation.json:
                output.write(line + b"\n")
            elif invocation.quiet:
                invocation.print(*([] if number is None else [number]))
            elif event.get("event") == "gap":
                invocation.warn(f"pxctl: {event.get('missed')} events were missed here")
            else:
                invocation.print(event_line(invocation, event))
            last = number if isinstance(number, int) else last


def event_line(invocation: Invocation, event: Document) -> str:
    """Return one event on one line: time, unit, what, why, then its further facts."""
    known = {"id", "time", "unit", "event", "reason", "instance", "cause", "schema", "digest"}
    facts = [f"{key}={value}" for key, value in event.items() if key not in known and value not in (None, [], {}, "")]
    reason = event.get("reason")
    time_ = invocation.moment(event.get("time")) if event.get("time") else None
    pieces = [time_, event.get("unit") or "pxd", event.get("event"), reason and f"({reason})", " ".join(facts)]
    return output.clean("  ".join(str(piece) for piece in pieces if piece))


@declare(root, "why")
@_execution_or_unit
def explain(invocation: Invocation, unit: str) -> None:
    """Explain a unit's or an execution's state: what led to it, its last words, what to do.

    $ pxctl why lorenz-ode-solver
    $ pxctl why tool:lorenz-ode-solver --json
    $ pxctl why 12
    """
    client = invocation.client()
    invocation.action = f"explain {'execution ' if unit.isdecimal() else ''}{unit}"
    answer: Answer | Document
    if unit.isdecimal():
        from pxctl.executions import explain_execution

        answer = document = explain_execution(client, unit)
    else:
        answer = client.get(f"/api/units/{quote(unit)}/why")
        document = answer.document
    if invocation.print_result(answer, [document.get("unit")]):
        return
    reason = f" ({document['reason']})" if document.get("reason") else ""
    number = f" execution {document['execution']}" if document.get("execution") is not None else ""
    invocation.print(invocation.paint(f"{document.get('unit')}{number} is {document.get('state')}{reason}", "bold"))
    if document.get("summary"):
        invocation.print(document["summary"])
    if chain := [event for event in document.get("chain") or [] if isinstance(event, dict)]:
        invocation.print("", "What happened, oldest first:")
        invocation.print(*(f"  {event_line(invocation, event)}" for event in chain))
    if tail := str(document.get("stderr_tail") or "").rstrip():
        invocation.print("", "Its last words on stderr:", *(f"  {output.clean(line)}" for line in tail.splitlines()))
    if document.get("next_step"):
        invocation.print("", invocation.paint("next:", "bold") + f" {document['next_step']}")


# -- wait -------------------------------------------------------------------------------------------------------------


@declare(root, "wait")
@_execution_or_unit
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "stopped", "done"]),
    help="What to wait for; else ready, of a pipe done.",
)
@timeout_option("Give up after S seconds (exit 7).")
def wait_for(invocation: Invocation, unit: str, wanted: str | None, timeout: float | None) -> int:
    """Block until a unit is ready, stopped or done; exits with the outcome: 0 as wanted, 1 not, 7 timed out.

    An execution, and what runs and waits of a pipe, is waited for until it is over; exits 0 completed, 1 failed or
    cancelled, 7 timed out. A restart of the daemon's control plane meanwhile does not end the waiting.

    $ pxctl wait lorenz-ode-solver
    $ pxctl wait lorenz-ode-solver --for stopped --timeout 30
    $ pxctl wait pipe:disk-digest       # until nothing of it runs or waits
    $ pxctl wait 12                     # an execution
    """
    from pxctl import executions

    is_execution = unit.isdecimal()
    invocation.action = f"wait for {'execution ' if is_execution else ''}{unit}"
    client, newest, is_done = invocation.client(), None, wanted == "done"
    if wanted in {None, "ready"} and not is_execution:
        with contextlib.suppress(Failure):  # what is wrong with the name is said by the wait itself
            units = client.get(query("/api/status", [("unit", unit)])).document.get("units", [])
            cold = next((one.get("unit") for one in units if one.get("state") in {"cold", "stopped"}), None)
            if cold:
                invocation.notice(f"pxctl: {cold} is not up, and waiting does not start it: pxctl start {cold}")
    with (
        invocation.detaching(f"no longer waiting; {unit} goes on as it is"),
        invocation.spinner(unit, f"waiting until it is {wanted or 'ready'}…"),
    ):
        if is_execution:
            document = executions.await_execution(client, executions.find_execution(client, unit), timeout)
        else:
            is_done = is_done or (wanted is None and unit.startswith("pipe:"))
            document = _await_unit(client, unit, wanted or ("done" if is_done else "ready"), timeout)
            name = str(document.get("unit"))
            if name.startswith("pipe:"):
                if wanted is None and not is_done:  # a bare name that means a pipe
                    document, is_done = _await_unit(client, name, "done", timeout), True
                newest = executions.newest_of(client, name.removeprefix("pipe:"))
    if is_execution:
        if not invocation.print_result(document, [document.get("id")]):
            invocation.print(f"pipe:{document.get('pipe_name')} {executions.sentence(document)}")
        return executions.exit_code_of(document)
    result = document if newest is None else {**document, "execution": newest}
    if not invocation.print_result(result, [document.get("unit")]):
        reason = f" ({document['reason']})" if document.get("reason") else ""
        last = f"; {executions.sentence(newest)}" if newest is not None else ""
        invocation.print(f"{document.get('unit')} {document.get('state')}{reason}{last}")
    if is_done and newest is not None:
        return executions.exit_code_of(newest)
    return Exit.OK if document.get("ok") else Exit.FAILED


def _await_unit(client: Client, unit: str, goal: str, timeout: float | None) -> Document:
    from pxctl.follow import ask_until

    def target(seconds: float) -> str:
        return query(f"/api/units/{quote(unit)}/wait", [("for", goal), ("timeout", round(seconds, 3))])

    name = unit if ":" in unit else f"tool:{unit}"
    detail, hint = f"it is not {goal} after {timeout or 0:g} s", f"pxctl why {unit}"
    too_late = Failure(detail, kind="timed_out", hint=hint, exit_code=Exit.TIMED_OUT, unit=name, status=504)
    return ask_until(client, target, timeout, too_late, slack=_SLACK_SECONDS)
