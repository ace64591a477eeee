"""`pxctl status`, `start`, `stop`, `restart`, `pin`, `unpin`: units of every kind.

Several units in one call: what one of them answers never hides what another answered. The exit code is that of the
first failure in the order in which they were named. Ctrl-C ends the waiting, never what was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from pxctl import output
from pxctl.app import declare, no_wait_option, report, root, timeout_option
from pxctl.client import Client, expand, query, route
from pxctl.completion import tool_names, unit_names
from pxctl.failures import DaemonProblem, Document, Exit, Failure, Interrupted, Unreachable
from pxctl.invocation import Invocation
from pxctl.output import Column, ago, duration, size, state_column

_UP = {"ready", "busy", "starting", "running", "queued", "idle"}
_DOWN = {None, "cold", "stopped", "failed"}
_GOING = {"start": "starting", "stop": "stopping", "restart": "restarting"}
_LITTLE_PERCENT = 10
_SLACK_SECONDS = 15.0  # how much longer than its own limit the daemon may take to answer

_units = click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
_tools = click.argument("tools", nargs=-1, required=True, metavar="TOOL...", shell_complete=tool_names)


# -- status -----------------------------------------------------------------------------------------------------------


def _reason(unit: Document) -> tuple[str, str | None]:
    """Return why a unit is as it is, and its style; of a pipe what runs, else how the last one ended badly."""
    if error := unit.get("config_error"):
        return str(error), "red"
    if unit.get("kind") != "pipe":
        return str(unit.get("reason") or ""), "red" if unit.get("state") == "failed" else None
    if unit.get("running") is not None:
        return f"execution {unit['running']}", None
    if unit.get("last_status") not in {"failed", "timed_out"}:
        return "", None
    failures = unit.get("consecutive_failures") or 0
    often = f", {failures} in a row" if failures > 1 else ""
    return f"last run {str(unit['last_status']).replace('_', ' ')}{often}", "red"


def _cpu(unit: Document) -> str:
    return f"{unit['cpu_percent']:.1f}%" if unit.get("cpu_percent") is not None else ""


def _waits(unit: Document) -> str:
    """Return for what it waits most, where that is more than a tenth of the time."""
    share, name = max(((share or 0.0, name) for name, share in (unit.get("pressure") or {}).items()), default=(0.0, ""))
    return f"{name} {share:.0f}%" if share > _LITTLE_PERCENT else ""


_COLUMNS = [
    Column("UNIT", "unit"),
    state_column(),
    Column("PID", "pid", 6, right=True),
    Column("UPTIME", lambda unit: duration(unit.get("uptime_seconds")), 7, right=True),
    Column("MEMORY", lambda unit: size(unit.get("rss_bytes")), 4, right=True),
    Column("CPU", _cpu, 8, right=True),
    Column("WAITS FOR", _waits, 9),
    Column("LAST USED / NEXT RUN", lambda unit: ago(unit.get("next_run") or unit.get("last_used")), 3),
    Column("PIN", lambda unit: "pinned" if unit.get("pinned") else "", 5),
    Column("REASON", lambda unit: _reason(unit)[0], 2, minimum=12, style=lambda unit: _reason(unit)[1]),
]


@declare(root, "status", "read the status")
@click.argument("units", nargs=-1, metavar="[UNIT]...", shell_complete=unit_names)
@click.option("--watch", is_flag=True, help="Show it again and again; with --json one line of NDJSON each time.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, metavar="S", help="Seconds between looks; 2.")
def show_status(invocation: Invocation, units: tuple[str, ...], watch: bool, interval: float) -> int:
    """Show everything that is held: state, pid, memory, last use or next run, reason.

    With UNIT: only those; exits 3 when one of them is not up, 4 when there is none of that name.

    $ pxctl status
    $ pxctl status lorenz-ode-solver    # exits 3 unless it is up
    $ pxctl status 'tool:web*' --json
    $ pxctl status --watch
    """
    target = query("/api/status", [("unit", unit) for unit in units])
    if watch:
        return _watch(invocation, target, interval)
    answer = invocation.client().get(target)
    held = answer.document.get("units", [])
    if not invocation.print_result(answer, (unit.get("unit") for unit in held)):
        invocation.print(*_status_lines(invocation, answer.document))
        if not held:
            invocation.notice("no units yet; add a tool: pxctl tools add example:compound-interest")
    is_up = all(unit.get("state") in _UP for unit in held)
    return Exit.OK if is_up or not units else Exit.INACTIVE


def _status_lines(invocation: Invocation, document: Document) -> list[str]:
    daemon = document.get("daemon") or {}
    units = output.with_broken(document.get("units", []))
    lines = invocation.table(_COLUMNS, units) if units else []
    if invocation.out_is_terminal:
        keeper, control = daemon.get("keeper") or {}, daemon.get("control") or {}
        words = f"pxd {daemon.get('version', '?')}, keeper {keeper.get('pid', '?')}, control {control.get('pid', '?')}"
        words += f", control restarted {control['restarts']}x" if control.get("restarts") else ""
        lines.append(invocation.paint(output.cut(words, invocation.width or len(words)), "dim"))
    return lines


def _watch(invocation: Invocation, target: str, interval: float) -> int:
    """Look again and again until Ctrl-C, each time over the last one; a daemon that is away is no reason to end."""
    drawn, redraws = 0, invocation.out_is_terminal and invocation.env.get("TERM") != "dumb"
    try:
        while True:
            try:
                answer = invocation.client().get(target)
            except (Unreachable, Interrupted) as failure:
                invocation.notice(f"pxd is away: {failure.detail}")
                drawn = 0
            else:
                if invocation.json:
                    output.write(answer.raw.strip().replace(b"\n", b" ") + b"\n")
                elif redraws:
                    drawn = _redraw(invocation, _status_lines(invocation, answer.document), drawn)
                else:
                    invocation.print(*_status_lines(invocation, answer.document))
            time.sleep(interval)
    except KeyboardInterrupt:
        return Exit.OK


def _redraw(invocation: Invocation, lines: list[str], drawn: int) -> int:
    """Write lines over the last `drawn` ones, as many as the terminal has room for; return how many it were."""
    room = max(1, output.screen(invocation.env)[1] - 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {output.counted(len(lines) - room + 1, 'more line')}"]
    up = f"\x1b[{drawn}A" if drawn else ""
    output.write(up + "\r" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    return len(lines)


# -- several units at once --------------------------------------------------------------------------------------------


UnitOutcome = tuple[str, Document | Failure]
"""What became of one unit: the daemon's document, or a failure."""


def one_by_one(
    invocation: Invocation, verb: str, units: Sequence[str], step: Callable[[str], Any]
) -> list[UnitOutcome]:
    """Do to each unit what is over at once; failures are kept, not raised."""
    outcomes: list[UnitOutcome] = []
    for unit in units:
        try:
            with invocation.detaching(f"detached; what was asked of {unit} goes on"):
                outcomes.append((unit, step(unit)))
        except Failure as failure:
            failure.action = f"{verb} {unit}"
            outcomes.append((unit, failure))
    return outcomes


def print_outcomes(
    invocation: Invocation,
    outcomes: Sequence[UnitOutcome],
    show: Callable[[str, Document], None],
    merged: str | Callable[[list[Document]], Document],
) -> int:
    """Print what became of each, under `--json` in one document; raise the failure of a single one.

    `merged` makes that document; or it names its list (px.pins/1: `pins`), and that of a single unit stays as it is.
    """
    failures = [one for _, one in outcomes if isinstance(one, Failure)]
    found = [(unit, one) for unit, one in outcomes if not isinstance(one, Failure)]
    if failures and len(outcomes) == 1:
        raise failures[0]
    if invocation.json:
        documents = [document for _, document in found]
        if not isinstance(merged, str):
            whole = merged(documents)
        else:
            whole = documents[0] if len(outcomes) == 1 else {"schema": f"px.{merged}/1", merged: documents}
        told = {"failures": [failure.document() for failure in failures]} if failures else {}
        invocation.print_json(whole | told)
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
        members = ("units", "survivors", "killed") if verb == "stop" else ("units",)
        lists = {member: [one for document in documents for one in document.get(member, [])] for member in members}
        return {"schema": f"px.{verb}/1", **lists}

    def show(unit: str, document: Document) -> None:
        found = document["units"][0]
        words = str(found.get("state") or _GOING[verb]) + (f" (pid {found['pid']})" if found.get("pid") else "")
        if no_wait:
            words = _GOING[verb]
        elif verb == "stop" and found.get("state") in _DOWN:
            is_killed = unit in document.get("killed", [])
            words = "stopped" + (", killed: it did not end within its grace after SIGTERM" if is_killed else "")
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
) -> list[UnitOutcome]:
    """Ask the daemon for it; return what became of each unit, in its order. Ctrl-C says what goes on."""
    parameters: list[tuple[str, object]] = [("unit", name) for name in names]
    target = query(f"/api/units/{verb}", [*parameters, ("timeout", timeout), ("wait", False if no_wait else None)])
    limit, listed = None if timeout is None else 2 * timeout + _SLACK_SECONDS, ", ".join(names)
    with (
        invocation.detaching(f"detached; {listed} goes on {_GOING[verb]}"),
        invocation.spinner(listed, f"{_GOING[verb]}…"),
    ):
        results = client.ask("POST", target, timeout=limit).document.get("results", [])
    return [_outcome(verb, result, timeout) for result in results]


def _outcome(verb: str, result: Document, timeout: float | None) -> UnitOutcome:
    """Return what became of a unit, with `units` in its document, whatever its kind answers."""
    unit, answer, problem = str(result.get("unit")), result.get("answer") or {}, result.get("problem")
    failure: Failure | None = None if problem is None else DaemonProblem(int(problem.get("status") or 500), problem)
    if unit.startswith("pipe:") and verb == "start" and answer.get("status") == "failed":
        from pxctl.executions import failure_of

        failure = failure_of(answer)
    if failure is not None:
        if failure.kind == "timed_out" and timeout is not None and verb != "start":
            what, goal = ("something of it is left", " --for stopped") if verb == "stop" else ("it is not ready", "")
            failure.detail, failure.hint = f"{what} after {timeout:g} s; the {verb} goes on", f"pxctl wait {unit}{goal}"
        failure.action = f"{verb} {unit}"
        return unit, failure
    if "units" in answer:
        return unit, answer
    if not unit.startswith("pipe:"):
        return unit, {"units": [{**answer, "unit": unit}]}
    if verb == "start":
        found = {"unit": unit, "state": answer.get("status"), "pid": answer.get("pid"), "execution": answer.get("id")}
        return unit, {"units": [found]}
    executions = answer.get("executions", [])
    stopped = {"unit": unit, "state": "stopped", "pid": None, "cancelled": [one.get("id") for one in executions]}
    return unit, {"units": [stopped], "executions": executions}


@declare(root, "start", "start {units}")
@_units
@timeout_option()
@no_wait_option
def start_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Warm up units; returns when they are ready.

    A pipe is run in the background: returns when it is queued. Ctrl-C ends the waiting only: the start goes on.

    Effect: modifying: starts the unit's process and keeps it warm
    $ pxctl start lorenz-ode-solver
    $ pxctl start 'tool:*' --timeout 60
    $ pxctl start pipe:disk-digest
    """
    return steer(invocation, invocation.client(), "start", units, timeout, no_wait)


@declare(root, "stop", "stop {units}")
@_units
@timeout_option()
@no_wait_option
def stop_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units, and name what survived; returns when nothing of them is left.

    Of a pipe, what runs and waits is cancelled, and always waited for. What is left in spite of that is named, and the
    exit code is 8. Stopping what does not run is fine. Ctrl-C ends the waiting only: the stop goes on.

    Effect: modifying: ends the unit's whole process tree (TERM, its grace, KILL)
    $ pxctl stop lorenz-ode-solver
    $ pxctl stop 'tool:*'
    """
    return steer(invocation, invocation.client(), "stop", units, timeout, no_wait)


@declare(root, "restart", "restart {units}")
@_units
@timeout_option("Limit of the stop, and of the start (exit 7).")
@no_wait_option
def restart_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units and start them anew; returns when they are ready.

    Effect: modifying: replaces the unit's instance by a new one
    $ pxctl restart lorenz-ode-solver
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
    """
    return _change_pins(invocation, "unpin", tools, "DELETE", [])


def _change_pins(
    invocation: Invocation, verb: str, tools: tuple[str, ...], method: str, parameters: list[tuple[str, object]]
) -> int:
    names = [tool if ":" in tool else f"tool:{tool}" for tool in tools]
    invocation.action = f"{verb} {', '.join(names)}"
    client = invocation.client()

    def change(unit: str) -> Document:
        return client.ask(method, query(route("tool", unit, "pin"), parameters)).document

    def show(unit: str, one: Document) -> None:
        words = ("pinned for ever" if one.get("forever") else "pinned") if one.get("pinned") else "not pinned"
        invocation.print(unit if invocation.quiet else f"{unit} {words}")

    outcomes = one_by_one(invocation, verb, expand(client, names), change)
    return print_outcomes(invocation, outcomes, show, "pins")
