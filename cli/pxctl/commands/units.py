"""`pxctl status`, `is-active`, `start`, `stop`, `restart`, `pin`, `unpin`: units of every kind.

Several units in one call: what one of them answers never hides what another answered. The exit code
is that of the first failure in the order in which they were named. Ctrl-C ends the waiting, never
what was asked for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from pxctl import output
from pxctl.app import (
    Invocation,
    declare,
    no_wait_option,
    report,
    root,
    timeout_option,
    tool_names,
    unit_names,
)
from pxctl.client import (
    AWAY,
    SLACK_SECONDS,
    Document,
    Exit,
    Failure,
    of_units,
    problem,
    route,
    units_of,
)
from pxctl.output import Column, ago, duration, state_column

_UP = {"ready", "busy", "unresponsive", "starting", "running", "queued", "idle"}
_GOING = {"start": "starting", "stop": "stopping", "restart": "restarting"}
_LOOK_SECONDS = 2.0


def _reason(unit: Document) -> output.Cell:
    """Return why a unit is as it is, and its style; of a pipe what runs, else how the last one
    ended badly.
    """
    if error := unit.get("config_error"):
        return str(error), "red"
    if unit.get("kind") != "pipe":
        reason = unit.get("preparing") or unit.get("silent") or unit.get("reason")
        if not reason and unit.get("plain_port"):  # `why` tells more
            return "plain port", "yellow"
        return str(reason or ""), "red" if unit.get("state") == "failed" else None
    if unit.get("running") is not None:
        return f"execution {unit['running']}", None
    if unit.get("last_status") not in {"failed", "timed_out"}:
        return "", None
    return f"last run {unit['last_status'].replace('_', ' ')}", "red"


_COLUMNS = [
    Column("UNIT", "unit"),
    state_column(),
    Column("PID", "pid", 6, right=True),
    Column("UPTIME", lambda unit: duration(unit.get("uptime_seconds")), 7, right=True),
    Column("MEMORY", output.memory, 4, right=True),
    Column(
        "CPU",
        lambda unit: f"{unit.get('cpu_percent') or 0:.1f}%" if unit.get("pid") else "",
        8,
        right=True,
    ),
    Column(
        "LAST USED / NEXT RUN", lambda unit: ago(unit.get("next_run") or unit.get("last_used")), 3
    ),
    Column("PIN", lambda unit: "pinned" if unit.get("pinned") else "", 5),
    Column("REASON", _reason, 2, minimum=12),
]


@declare(root, "status", "read the status")
@click.argument("units", nargs=-1, metavar="[UNIT]...", shell_complete=unit_names)
@click.option(
    "--watch",
    is_flag=True,
    help="Show it again and again; with --json one line of NDJSON each time.",
)
def show_status(invocation: Invocation, units: tuple[str, ...], watch: bool) -> int:
    """Show everything that is held: state, pid, memory, last use or next run, reason.

    With UNIT: only those; exits 3 when one of them is not up, 4 when there is none of that name.

    $ pxctl status
    $ pxctl status compound-interest    # exits 3 unless it is up
    """
    target = of_units("/api/status", "unit", units)
    if watch:
        return _watch(invocation, target)
    try:
        found = invocation.client().get(target)
    except Failure as failure:
        for number in [unit for unit in units if unit.isdecimal()][:1]:
            from pxctl.executions import explain_number

            explain_number(invocation.client(), failure, number, "pxctl pipe show")
        raise
    held, none = (
        found.get("units", []),
        "no units yet; add a tool: pxctl tools add example:compound-interest",
    )
    invocation.print_rows(found, output.with_broken(held), "unit", _COLUMNS, none)
    if not invocation.json:
        invocation.print_degraded(found.get("daemon") or {})
    is_up = all(unit.get("state") in _UP for unit in held)
    return Exit.OK if is_up or not units else Exit.INACTIVE


@declare(root, "is-active", "look at {units}")
@click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
def show_whether_active(invocation: Invocation, units: tuple[str, ...]) -> int:
    """Print the state of units, one a line; exits 0 if all are up, else 3.

    Nothing is started. With -q only the names of those that are up are printed.

    $ pxctl is-active compound-interest || pxctl start compound-interest
    """
    target = of_units("/api/status", "unit", units)
    found = invocation.client().get(target).get("units", [])
    rows = [
        {"unit": unit["unit"], "state": unit["state"], "active": unit["state"] in _UP}
        for unit in found
    ]
    active = [row["unit"] for row in rows if row["active"]]
    invocation.show(
        {"schema": "px.active/1", "units": rows}, active, *(row["state"] for row in rows)
    )
    return Exit.OK if len(active) == len(rows) else Exit.INACTIVE


def _watch(invocation: Invocation, target: str) -> int:
    """Look again and again until Ctrl-C, each time over the last one; a daemon that is away is
    no reason to end.
    """
    redraws = invocation.out_is_terminal and invocation.env.get("TERM") != "dumb"
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                found = invocation.client().get(target)
                lines = invocation.table(_COLUMNS, output.with_broken(found["units"]))
                room = output.screen().lines - 2
                if invocation.json:
                    invocation.print(json.dumps(found, ensure_ascii=False))
                elif redraws:
                    more = [f"… {len(lines) - room} more lines"] if len(lines) > room else []
                    output.write("\x1b[H\x1b[2J" + "\n".join([*lines[:room], *more, ""]))
                else:
                    invocation.print(*lines)
            except Failure as failure:
                if failure.kind not in AWAY:
                    raise
                invocation.notice(f"pxd is away: {failure.detail}")
            time.sleep(_LOOK_SECONDS)
    return Exit.OK


def change_each(
    invocation: Invocation,
    verb: str,
    units: Iterable[str],
    change: Callable[[str], Document],
    words: Callable[[str, Document], str],
) -> int:
    """Do something to one unit after the other, print what became of each, return the exit code.

    It is told in `words`, as one document (of a single unit the daemon's own), or as names.
    """
    found: dict[str, Document] = {}
    failures: list[Failure] = []
    for unit in units:
        try:
            with invocation.detaching(f"detached; what was asked of {unit} goes on"):
                found[unit] = change(unit)
        except Failure as failure:
            failure.action, failure.unit = f"{verb} {unit}", unit
            failures.append(failure)
    if len(failures) == 1 and not found:
        raise failures[0]
    results: list[Document] = [
        {"unit": unit, "answer": one, "problem": None} for unit, one in found.items()
    ]
    results += [
        {"unit": each.unit, "answer": None, "problem": each.document()} for each in failures
    ]
    whole = (
        results[0]["answer"]
        if len(results) == 1
        else {"schema": "px.some-units/1", "results": results}
    )
    ids = (unit.partition(":")[2] if invocation.is_of_one_kind else unit for unit in found)
    if not invocation.print_result(whole, ids):
        invocation.print(*(words(unit, one) for unit, one in found.items()))
    for each in [] if invocation.json else failures:
        report(invocation, each)
    return failures[0].exit_code if failures else Exit.OK


def steer(
    invocation: Invocation, verb: str, names: Sequence[str], timeout: float | None, no_wait: bool
) -> int:
    """Start, stop or restart all units that the names mean in one request; print the outcome,
    return the exit code.
    """
    waiting = ("wait", False if no_wait else None)
    target = of_units(f"/api/units/{verb}", "unit", names, ("timeout", timeout), waiting)
    limit, listed = None if timeout is None else 2 * timeout + SLACK_SECONDS, ", ".join(names)
    with (
        invocation.detaching(f"detached; {listed} goes on {_GOING[verb]}"),
        invocation.spinner(listed, f"{_GOING[verb]}…"),
    ):
        answer = invocation.client().ask("POST", target, timeout=limit)
    results = {result["unit"]: result for result in answer["results"]}

    def outcome(unit: str) -> Document:
        if results[unit]["problem"] is not None:
            raise problem(500, results[unit]["problem"])
        found: Document = results[unit]["answer"]
        if verb == "start" and found.get("status") == "failed":  # an execution of a pipe
            from pxctl.executions import failure_of

            raise failure_of(found)
        return found

    def words(unit: str, document: Document) -> str:
        found = document["units"][0] if "units" in document else document
        if no_wait:
            return f"{unit} {_GOING[verb]}"
        if verb == "stop":
            for orphan in document.get("unassigned") or []:
                invocation.notice(
                    f"pid {orphan['pid']} ({orphan['name']}) may be left of {unit}: nothing tells "
                    "what started it,"
                    f" so it was not signalled; to look: ps -fp {orphan['pid']}"
                )
            is_killed = unit in document.get("killed", [])
            return f"{unit} stopped" + (
                ", killed: it did not end within its grace after SIGTERM" if is_killed else ""
            )
        if unit.startswith("pipe:"):
            return f"{unit} {found.get('status')} (execution {found.get('id')})"
        return f"{unit} {found.get('state')}" + (
            f" (pid {found['pid']})" if found.get("pid") else ""
        )

    return change_each(invocation, verb, results, outcome, words)


def steering(metavar: str, complete: Any) -> Callable[[Any], Any]:
    units = click.argument(
        "units", nargs=-1, required=True, metavar=f"{metavar}...", shell_complete=complete
    )
    return lambda function: units(timeout_option()(no_wait_option(function)))


@declare(root, "start", "start {units}")
@steering("UNIT", unit_names)
def start_units(
    invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool
) -> int:
    """Warm up units; returns when they are ready.

    A pipe is run in the background: returns when it is queued. Ctrl-C ends the waiting only: the
    start goes on.

    $ pxctl start 'tool:*' --timeout 60
    """
    return steer(invocation, "start", units, timeout, no_wait)


@declare(root, "stop", "stop {units}")
@steering("UNIT", unit_names)
def stop_units(
    invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool
) -> int:
    """Stop units, and name what survived; returns when nothing of them is left.

    The unit's whole process tree is ended (TERM, its grace, KILL); of a pipe, what runs and waits
    is cancelled. What is left is named, and the exit code is 8. Stopping what does not run is fine.
    Ctrl-C ends the waiting only.

    $ pxctl stop 'tool:*'
    """
    return steer(invocation, "stop", units, timeout, no_wait)


@declare(root, "restart", "restart {units}")
@steering("UNIT", unit_names)
def restart_units(
    invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool
) -> int:
    """Stop units and start them anew; returns when they are ready."""
    return steer(invocation, "restart", units, timeout, no_wait)


_tools = click.argument(
    "tools", nargs=-1, required=True, metavar="TOOL...", shell_complete=tool_names
)


@declare(root, "pin", "pin {tools}")
@_tools
@click.option("--forever", is_flag=True, help="Exempt from its time to live, too.")
def pin_tools(invocation: Invocation, tools: tuple[str, ...], forever: bool) -> int:
    """Exempt tools from eviction for room; their time to live still applies unless --forever.

    A pin lasts until `pxctl unpin`, also over restarts of everything.

    $ pxctl pin --forever compound-interest text-stats
    """
    return _change_pins(invocation, "pin", tools, "PUT", "pin?forever=1" if forever else "pin")


@declare(root, "unpin", "unpin {tools}")
@_tools
def unpin_tools(invocation: Invocation, tools: tuple[str, ...]) -> int:
    """Take pins away; a tool that is not pinned is fine."""
    return _change_pins(invocation, "unpin", tools, "DELETE", "pin")


def _change_pins(
    invocation: Invocation, verb: str, tools: tuple[str, ...], method: str, place: str
) -> int:
    client = invocation.client()

    def words(unit: str, one: Document) -> str:
        if not one.get("pinned"):
            return f"{unit} not pinned"
        return f"{unit} pinned for ever" if one.get("forever") else f"{unit} pinned"

    def change(unit: str) -> Document:
        return client.ask(method, route("tool", unit, place))

    return change_each(invocation, verb, units_of(client, "tool", tools), change, words)
