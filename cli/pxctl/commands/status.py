"""`pxctl status`: everything that is held, as a table that fits the terminal."""

from __future__ import annotations

import click

from pxctl import interrupts, terminal, wording
from pxctl.client import query
from pxctl.commanding import READS, declare
from pxctl.completing import unit_names
from pxctl.failure import INACTIVE, OK, Interrupted, Unreachable
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column, cut, lay_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Answer
    from pxctl.invocation import Invocation

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
def command(invocation: Invocation, units: tuple[str, ...], watch: bool, interval: float) -> int:
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
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        for unit in units:
            invocation.say(str(unit.get("unit")))
    else:
        for line in _lines(invocation, answer.document):
            invocation.say(line)
        if not units:
            invocation.notice("no units yet; add a tool: pxctl tools add example:compound-interest")


def _lines(invocation: Invocation, document: dict[str, Any]) -> list[str]:
    paint = invocation.paint
    rows = [_row(unit, invocation.now()) for unit in document.get("units", [])]
    lines = []
    if rows:
        table = lay_out(_COLUMNS, rows, invocation.width)
        lines = ["".join(paint(part.text, part.style) for part in line).rstrip() for line in table]
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
        Cell(_or_blank(wording.duration(unit.get("uptime_seconds")))),
        Cell(_or_blank(wording.size(unit.get("rss_bytes")))),
        Cell(_or_blank(wording.percent(unit.get("cpu_percent")))),
        Cell(_or_blank(wording.ago(unit.get("next_run") or unit.get("last_used"), now))),
        Cell("pinned" if unit.get("pinned") else ""),
        Cell(*_reason(unit)),
    ]


def _or_blank(text: str) -> str:
    return "" if text == wording.ABSENT else text


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
            interrupts.pause(interval)
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
