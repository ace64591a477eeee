"""`pxctl status`, `start`, `stop`, `restart`, `pin`, `unpin`, `wait`: units of every kind."""

from __future__ import annotations

import time

import click

from pxctl import output, terminal
from pxctl.app import READS, SECONDS, declare
from pxctl.batch import steer
from pxctl.client import expand, query, route
from pxctl.completion import tool_names, unit_names
from pxctl.failure import INACTIVE, OK, Interrupted, Unreachable
from pxctl.output import BY_STATE, Cell, Column, cut, table_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.client import Answer, Client

_UP = {"ready", "busy", "starting", "running", "queued", "idle"}

_COLUMNS = [
    Column("UNIT", minimum=12),
    Column("STATE", rank=1),
    Column("PID", rank=4, right=True),
    Column("UPTIME", rank=6, right=True),
    Column("MEMORY", rank=3, right=True),
    Column("CPU", rank=7, right=True),
    Column("LAST USED / NEXT RUN", rank=8),
    Column("PIN", rank=5),
    Column("REASON", rank=2, minimum=12),
]


@declare(
    "status",
    effect=READS,
    examples=[
        "pxctl status",
        "pxctl status lorenz-ode-solver    # exits 3 unless it is up",
        "pxctl status 'tool:web*' --json",
        "pxctl status --watch --interval 5",
    ],
)
@click.argument("units", nargs=-1, metavar="[UNIT]...", shell_complete=unit_names)
@click.option("--watch", is_flag=True, help="Show it again and again; with --json one line of NDJSON each time.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between looks."
)
def show_status(invocation: Invocation, units: tuple[str, ...], watch: bool, interval: float) -> int:
    """Show units with state, pid, uptime, memory, CPU, last use or next run, and reason.

    With UNIT: only those; exits 3 when one of them is not up, 4 when there is none of that name.
    """
    invocation.action = "read the status"
    target = query("/api/status", [("unit", unit) for unit in units])
    if watch:
        return _watch(invocation, target, interval)
    answer = invocation.client().get(target)
    _show(invocation, answer)
    if units and any(unit.get("state") not in _UP for unit in answer.document.get("units", [])):
        return INACTIVE
    return OK


def _show(invocation: Invocation, answer: Answer) -> None:
    units = answer.document.get("units", [])
    if invocation.told(answer, (unit.get("unit") for unit in units)):
        return
    invocation.say_all(_lines(invocation, answer.document))
    if not units:
        invocation.notice("no units yet; add a tool: pxctl tools add example:compound-interest")


def _lines(invocation: Invocation, document: dict[str, Any]) -> list[str]:
    paint = invocation.paint
    rows = [_row(unit, invocation.now()) for unit in document.get("units", [])]
    lines = table_lines(invocation, _COLUMNS, rows) if rows else []
    if invocation.out_is_terminal:
        summary = _daemon_line(document.get("daemon") or {})
        lines.append(paint(cut(summary, invocation.width or len(summary)), "dim"))
    return lines


def _daemon_line(daemon: dict[str, Any]) -> str:
    keeper, control = daemon.get("keeper") or {}, daemon.get("control") or {}
    restarts = control.get("restarts")
    pieces = [
        f"pxd {daemon.get('version', '?')}",
        f"keeper {keeper.get('pid', '?')}",
        f"control {control.get('pid', '?')}",
    ]
    if restarts:
        pieces.append(f"control restarted {restarts}x")
    return ", ".join(pieces)


def _row(unit: dict[str, Any], now: float) -> list[Cell]:
    state = str(unit.get("state") or "?")
    return [
        Cell(str(unit.get("unit") or unit.get("name") or "?")),
        Cell(state, BY_STATE.get(state)),
        Cell(str(unit["pid"]) if unit.get("pid") else ""),
        Cell(_or_blank(output.duration(unit.get("uptime_seconds")))),
        Cell(_or_blank(output.size(unit.get("rss_bytes")))),
        Cell(_or_blank(output.percent(unit.get("cpu_percent")))),
        Cell(_or_blank(output.ago(unit.get("next_run") or unit.get("last_used"), now))),
        Cell("pinned" if unit.get("pinned") else ""),
        Cell(*_reason(unit)),
    ]


def _or_blank(text: str) -> str:
    return "" if text == output.ABSENT else text


def _reason(unit: dict[str, Any]) -> tuple[str, str | None]:
    if error := unit.get("config_error"):
        detail = error.get("detail") if isinstance(error, dict) else error
        return f"broken: {detail}", "red"
    if unit.get("kind") == "pipe":
        return _last_of(unit)
    reason = str(unit.get("reason") or "")
    return reason, "red" if unit.get("state") == "failed" else None


def _last_of(pipe: dict[str, Any]) -> tuple[str, str | None]:
    """Return what is to be known of a pipe: what runs, else how the last one ended where that was badly."""
    if pipe.get("running") is not None:
        return f"execution {pipe['running']}", None
    if pipe.get("last_status") not in {"failed", "timed_out"}:
        return "", None
    failures = pipe.get("consecutive_failures") or 0
    often = f", {failures} in a row" if failures > 1 else ""
    return f"last run {str(pipe['last_status']).replace('_', ' ')}{often}", "red"


def _watch(invocation: Invocation, target: str, interval: float) -> int:
    """Look again and again until Ctrl-C; a daemon that is away for a while is no reason to end."""
    drawn = 0
    try:
        while True:
            drawn = _look(invocation, target, drawn)
            time.sleep(interval)
    except KeyboardInterrupt:
        return OK


def _look(invocation: Invocation, target: str, drawn: int) -> int:
    """Draw once over the `drawn` lines of the last time; return how many lines it took."""
    try:
        answer = invocation.client().get(target)
    except (Unreachable, Interrupted) as failure:
        return _redraw(invocation, [f"pxd is away: {failure.detail}"], drawn)
    if invocation.json:
        invocation.write(answer.raw.strip().replace(b"\n", b" ") + b"\n")
        return 0
    if invocation.quiet or not invocation.out_is_terminal:
        _show(invocation, answer)
        return 0
    return _redraw(invocation, _lines(invocation, answer.document), drawn)


def _redraw(invocation: Invocation, lines: list[str], drawn: int) -> int:
    if not invocation.out_is_terminal or invocation.json:
        for line in lines:
            invocation.notice(line)
        return 0
    lines = lines[: max(1, terminal.height() - 1)]
    up = f"\x1b[{drawn}A" if drawn else ""
    invocation.write(up + "\r" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    return len(lines)


def _timeout(help_text: str) -> Callable[[Any], Any]:
    return click.option("--timeout", type=SECONDS, metavar="S", help=help_text)


_units = click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
_tools = click.argument("tools", nargs=-1, required=True, metavar="TOOL...", shell_complete=tool_names)


@declare(
    "start",
    effect="modifying: starts the unit's process and keeps it warm",
    examples=[
        "pxctl start lorenz-ode-solver",
        "pxctl start 'tool:*' --timeout 60",
        "pxctl start lorenz-ode-solver --no-wait",
        "pxctl start pipe:disk-digest",
    ],
)
@_units
@_timeout("Give up waiting after S seconds (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the start is under way.")
def start_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Warm up units; returns when they are ready. A pipe is run in the background: returns when it is queued.

    Ctrl-C ends the waiting only: the start goes on.
    """
    return _steer(invocation, "start", units, timeout, no_wait=no_wait)


@declare(
    "stop",
    effect="modifying: ends the unit's whole process tree (TERM, its grace, KILL)",
    examples=["pxctl stop lorenz-ode-solver", "pxctl stop 'tool:*'", "pxctl stop lorenz-ode-solver --no-wait"],
)
@_units
@_timeout("Give up waiting after S seconds (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the stop is under way.")
def stop_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units; returns when nothing of them is left.

    Of a pipe, what runs and waits is cancelled, and always waited for.
    What is left in spite of that is named, and the exit code is 8. Stopping what does not run is fine.
    Ctrl-C ends the waiting only: the stop goes on.
    """
    return _steer(invocation, "stop", units, timeout, no_wait=no_wait)


@declare(
    "restart",
    effect="modifying: replaces the unit's instance by a new one",
    examples=["pxctl restart lorenz-ode-solver", "pxctl restart 'tool:web*' --timeout 60"],
)
@_units
@_timeout("Limit of the stop, and of the start (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the new start is under way.")
def restart_units(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units and start them anew; returns when they are ready."""
    return _steer(invocation, "restart", units, timeout, no_wait=no_wait)


def _steer(invocation: Invocation, verb: str, units: tuple[str, ...], timeout: float | None, *, no_wait: bool) -> int:
    invocation.action = f"{verb} {', '.join(units)}"
    return steer(invocation, invocation.client(), verb, units, timeout, wait=not no_wait)


@declare(
    "pin",
    effect="modifying: a pin lasts until `pxctl unpin`, also over restarts of everything",
    examples=["pxctl pin lorenz-ode-solver", "pxctl pin --forever lorenz-ode-solver text-stats"],
)
@_tools
@click.option("--forever", is_flag=True, help="Exempt from its time to live, too.")
def pin_tools(invocation: Invocation, tools: tuple[str, ...], forever: bool) -> None:
    """Exempt tools from being evicted for room; their time to live still applies unless --forever."""
    _pins(invocation, "pin", tools, lambda client, name: client.ask("PUT", query(name, [("forever", forever)])))


@declare(
    "unpin",
    effect="modifying: the tool may be evicted again",
    examples=["pxctl unpin lorenz-ode-solver", "pxctl unpin 'web*'"],
)
@_tools
def unpin_tools(invocation: Invocation, tools: tuple[str, ...]) -> None:
    """Take pins away; a tool that is not pinned is fine."""
    _pins(invocation, "unpin", tools, lambda client, name: client.ask("DELETE", name))


def _pins(invocation: Invocation, verb: str, tools: tuple[str, ...], change: Callable[[Client, str], Answer]) -> None:
    names = [tool if ":" in tool else f"tool:{tool}" for tool in tools]
    invocation.action = f"{verb} {', '.join(names)}"
    client = invocation.client()
    documents = []
    for unit in expand(client, names):
        invocation.action = f"{verb} {unit}"
        documents.append(change(client, route("tool", unit, "pin")).document)
    told = documents[0] if len(documents) == 1 else {"schema": "px.pins/1", "pins": documents}
    if not invocation.told(told, (document.get("unit") for document in documents)):
        for document in documents:
            words = "pinned" + (" for ever" if document.get("forever") else "")
            invocation.say(f"{document.get('unit')} {words if document.get('pinned') else 'not pinned'}")
