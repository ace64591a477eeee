"""`pxctl status`, `start`, `stop`, `restart`, `pin`, `unpin`: units of every kind.

Several units in one call: what one of them answers never hides what another answered. The exit code is that of the
first failure in the order in which they were named. Ctrl-C ends the waiting, never what was asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from pxctl import output
from pxctl.app import declare, no_wait_option, report, root, timeout_option
from pxctl.client import SLACK_SECONDS, Client, expand, query, route
from pxctl.completion import tool_names, unit_names
from pxctl.failures import Document, Exit, Failure, Interrupted, Unreachable, problem
from pxctl.invocation import Invocation
from pxctl.output import Column, ago, duration, size, state_column

_UP = {"ready", "busy", "starting", "running", "queued", "idle"}
_GOING = {"start": "starting", "stop": "stopping", "restart": "restarting"}
_LOOK_SECONDS = 2.0

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


_COLUMNS = [
    Column("UNIT", "unit"),
    state_column(),
    Column("PID", "pid", 6, right=True),
    Column("UPTIME", lambda unit: duration(unit.get("uptime_seconds")), 7, right=True),
    Column("MEMORY", lambda unit: size(unit.get("rss_bytes")), 4, right=True),
    Column("CPU", lambda unit: f"{unit.get('cpu_percent') or 0:.1f}%" if unit.get("pid") else "", 8, right=True),
    Column("LAST USED / NEXT RUN", lambda unit: ago(unit.get("next_run") or unit.get("last_used")), 3),
    Column("PIN", lambda unit: "pinned" if unit.get("pinned") else "", 5),
    Column("REASON", lambda unit: _reason(unit)[0], 2, minimum=12, style=lambda unit: _reason(unit)[1]),
]


@declare(root, "status", "read the status")
@click.argument("units", nargs=-1, metavar="[UNIT]...", shell_complete=unit_names)
@click.option("--watch", is_flag=True, help="Show it again and again; with --json one line of NDJSON each time.")
def show_status(invocation: Invocation, units: tuple[str, ...], watch: bool) -> int:
    """Show everything that is held: state, pid, memory, last use or next run, reason.

    With UNIT: only those; exits 3 when one of them is not up, 4 when there is none of that name.

    $ pxctl status
    $ pxctl status lorenz-ode-solver    # exits 3 unless it is up
    """
    target = query("/api/status", [("unit", unit) for unit in units])
    if watch:
        return _watch(invocation, target)
    found = invocation.client().get(target)
    held, none = found.get("units", []), "no units yet; add a tool: pxctl tools add example:compound-interest"
    invocation.print_rows(found, output.with_broken(held), "unit", _COLUMNS, none)
    is_up = all(unit.get("state") in _UP for unit in held)
    return Exit.OK if is_up or not units else Exit.INACTIVE


def _watch(invocation: Invocation, target: str) -> int:
    """Look again and again until Ctrl-C, each time over the last one; a daemon that is away is no reason to end."""
    redraws = invocation.out_is_terminal and invocation.env.get("TERM") != "dumb"
    try:
        while True:
            try:
                found = invocation.client().get(target)
            except (Unreachable, Interrupted) as failure:
                invocation.notice(f"pxd is away: {failure.detail}")
            else:
                lines = invocation.table(_COLUMNS, output.with_broken(found.get("units", [])))
                room = output.screen(invocation.env)[1] - 2
                if invocation.json:
                    invocation.print(json.dumps(found, ensure_ascii=False))
                elif redraws:
                    more = [f"… {len(lines) - room} more lines"] if len(lines) > room else []
                    output.write("\x1b[H\x1b[2J" + "\n".join([*lines[:room], *more, ""]))
                else:
                    invocation.print(*lines)
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return Exit.OK


# -- several units at once --------------------------------------------------------------------------------------------


UnitOutcome = tuple[str, Document | Failure]
"""What became of one unit: the daemon's document, or a failure."""


def one_by_one(
    invocation: Invocation, verb: str, units: Sequence[str], step: Callable[[str], Document]
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


def full_id(unit: str, _: Document) -> list[object]:
    return [unit]


def bare_id(unit: str, _: Document) -> list[object]:
    """Return what commands of one noun call a unit under `-q`."""
    return [unit.partition(":")[2]]


def print_outcomes(
    invocation: Invocation,
    outcomes: Sequence[UnitOutcome],
    words: Callable[[str, Document], str],
    ids: Callable[[str, Document], list[object]] = full_id,
) -> int:
    """Print what became of each in words, as one document, or as ids; raise the failure of a single one.

    The document of a single unit is the daemon's own.
    """
    failures = [one for _, one in outcomes if isinstance(one, Failure)]
    found = [(unit, one) for unit, one in outcomes if not isinstance(one, Failure)]
    if failures and len(outcomes) == 1:
        raise failures[0]
    results = [{"unit": unit, "answer": one, "problem": None} for unit, one in found]
    results += [{"unit": one.unit, "answer": None, "problem": one.document()} for one in failures]
    whole = found[0][1] if len(outcomes) == 1 else {"schema": "px.some-units/1", "results": results}
    if not invocation.print_result(whole, [each for unit, one in found for each in ids(unit, one)]):
        invocation.print(*(words(unit, document) for unit, document in found))
    for failure in [] if invocation.json else failures:
        report(invocation, failure)
    return failures[0].exit_code if failures else Exit.OK


def steer(
    invocation: Invocation,
    client: Client,
    verb: str,
    names: Sequence[str],
    timeout: float | None,
    no_wait: bool,
    ids: Callable[[str, Document], list[object]] = full_id,
) -> int:
    """Start, stop or restart all units that the names mean in one request; print the outcome, return the exit code."""

    def words(unit: str, document: Document) -> str:
        found = document["units"][0] if "units" in document else document
        state, pid = found.get("state"), f" (pid {found['pid']})" if found.get("pid") else ""
        if no_wait:
            return f"{unit} {_GOING[verb]}"
        if verb == "stop":
            is_killed = unit in document.get("killed", [])
            return f"{unit} stopped" + (", killed: it did not end within its grace after SIGTERM" if is_killed else "")
        if unit.startswith("pipe:"):
            return f"{unit} {found.get('status')} (execution {found.get('id')})"
        return f"{unit} {state}{pid}"

    return print_outcomes(invocation, request(invocation, client, verb, names, timeout, no_wait), words, ids)


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
    limit, listed = None if timeout is None else 2 * timeout + SLACK_SECONDS, ", ".join(names)
    with (
        invocation.detaching(f"detached; {listed} goes on {_GOING[verb]}"),
        invocation.spinner(listed, f"{_GOING[verb]}…"),
    ):
        results = client.ask("POST", target, timeout=limit).get("results", [])
    return [_outcome(verb, result, timeout) for result in results]


def _outcome(verb: str, result: Document, timeout: float | None) -> UnitOutcome:
    unit, answer, refusal = str(result.get("unit")), result.get("answer") or {}, result.get("problem")
    failure = None if refusal is None else problem(500, refusal)
    if verb == "start" and answer.get("status") == "failed":  # an execution of a pipe
        from pxctl.executions import failure_of

        failure = failure_of(answer)
    if failure is None:
        return unit, answer
    if failure.kind == "timed_out" and timeout is not None and verb != "start":
        what, goal = ("something of it is left", " --for stopped") if verb == "stop" else ("it is not ready", "")
        failure.detail, failure.hint = f"{what} after {timeout:g} s; the {verb} goes on", f"pxctl wait {unit}{goal}"
    failure.action, failure.unit = f"{verb} {unit}", unit
    return unit, failure


def declare_steering(
    group: click.Group,
    verb: str,
    about: str,
    *named: Callable[[Any], Any],
    find: Callable[..., Sequence[str]] = lambda _, units: units,
    ids: Callable[[str, Document], list[object]] = full_id,
) -> None:
    """Declare a command that steers units; `find` gets the client and the arguments that `named` declares."""

    def steer_units(invocation: Invocation, timeout: float | None, no_wait: bool, **given: Any) -> int:
        client = invocation.client()
        return steer(invocation, client, verb, find(client, **given), timeout, no_wait, ids)

    steer_units.__doc__, function = about, steer_units
    for option in (no_wait_option, timeout_option(), *reversed(named)):
        function = option(function)
    declare(group, verb, f"{verb} {{units}}")(function)


declare_steering(
    root,
    "start",
    """Warm up units; returns when they are ready.

    A pipe is run in the background: returns when it is queued. Ctrl-C ends the waiting only: the start goes on.

    $ pxctl start lorenz-ode-solver
    $ pxctl start 'tool:*' --timeout 60
    """,
    _units,
)
declare_steering(
    root,
    "stop",
    """Stop units, and name what survived; returns when nothing of them is left.

    The unit's whole process tree is ended (TERM, its grace, KILL); of a pipe, what runs and waits is cancelled. What is
    left in spite of that is named, and the exit code is 8. Stopping what does not run is fine. Ctrl-C ends the waiting
    only: the stop goes on.

    $ pxctl stop lorenz-ode-solver
    $ pxctl stop 'tool:*'
    """,
    _units,
)
declare_steering(
    root,
    "restart",
    """Stop units and start them anew; returns when they are ready.

    $ pxctl restart lorenz-ode-solver
    """,
    _units,
)


@declare(root, "pin", "pin {tools}")
@_tools
@click.option("--forever", is_flag=True, help="Exempt from its time to live, too.")
def pin_tools(invocation: Invocation, tools: tuple[str, ...], forever: bool) -> int:
    """Exempt tools from eviction for room; their time to live still applies unless --forever.

    A pin lasts until `pxctl unpin`, also over restarts of everything.

    $ pxctl pin lorenz-ode-solver
    $ pxctl pin --forever lorenz-ode-solver text-stats
    """
    return _change_pins(invocation, "pin", tools, "PUT", [("forever", forever)])


@declare(root, "unpin", "unpin {tools}")
@_tools
def unpin_tools(invocation: Invocation, tools: tuple[str, ...]) -> int:
    """Take pins away; a tool that is not pinned is fine.

    $ pxctl unpin lorenz-ode-solver
    """
    return _change_pins(invocation, "unpin", tools, "DELETE", [])


def _change_pins(
    invocation: Invocation, verb: str, tools: tuple[str, ...], method: str, parameters: list[tuple[str, Any]]
) -> int:
    client = invocation.client()

    def change(unit: str) -> Document:
        return client.ask(method, query(route("tool", unit, "pin"), parameters))

    def words(unit: str, one: Document) -> str:
        return f"{unit} {'' if one.get('pinned') else 'not '}pinned{' for ever' if one.get('forever') else ''}"

    units = expand(client, [tool if ":" in tool else f"tool:{tool}" for tool in tools])
    return print_outcomes(invocation, one_by_one(invocation, verb, units, change), words)
