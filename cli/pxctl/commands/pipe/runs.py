"""`pxctl pipe runs`: executions, newest first."""

from __future__ import annotations

import click

from pxctl import wording
from pxctl.commanding import READS, declare
from pxctl.completing import pipe_names
from pxctl.execution_pages import Wanted, read_pages
from pxctl.executions import STATUSES, error_word, money, took
from pxctl.pipes import pipe_names as expanded
from pxctl.printing import print_table
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_COLUMNS = [
    Column("ID"),
    Column("PIPE", minimum=10),
    Column("STATUS", rank=1),
    Column("TRIGGER", rank=6),
    Column("QUEUED", rank=2),
    Column("TOOK", rank=4, right=True),
    Column("TOKENS", rank=7, right=True),
    Column("COST", rank=8, right=True),
    Column("AGENT", rank=9, minimum=10),
    Column("RETRY OF", rank=10, right=True),
    Column("ERROR", rank=3, minimum=14),
]
_DEFAULT = 50


@declare(
    "runs",
    effect=READS,
    examples=[
        "pxctl pipe runs",
        "pxctl pipe runs disk-digest --status failed --status timed_out --since 7d",
        "pxctl pipe runs --pipe disk-digest -n 1 -q    # the newest one's id",
        "pxctl pipe runs --all --json > executions.json",
    ],
)
@click.argument("names", nargs=-1, metavar="[PIPE]...", shell_complete=pipe_names)
@click.option(
    "--pipe", "pipes", multiple=True, metavar="P", shell_complete=pipe_names, help="Only of this pipe; again."
)
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; again.")
@click.option("--since", metavar="T", help="Queued at or after a time (RFC 3339) or an age (90s, 10m, 2h, 1d).")
@click.option("--until", metavar="T", help="Queued before it.")
@click.option("-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help=f"The newest N; else {_DEFAULT}.")
@click.option("--cursor", type=click.IntRange(min=0), metavar="C", help="Go on behind a page: its next_cursor.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
def command(
    invocation: Invocation,
    names: tuple[str, ...],
    pipes: tuple[str, ...],
    statuses: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int | None,
    cursor: int | None,
    everything: bool,
) -> None:
    """List executions, newest first, without their output."""
    invocation.action = "list the executions"
    client = invocation.client()
    wanted_pipes = tuple(expanded(client, (*names, *pipes)))
    most = limit if limit is not None else None if everything else _DEFAULT
    wanted = Wanted(wanted_pipes, statuses, since, until)
    executions, next_cursor = read_pages(client, wanted, most, cursor)
    if invocation.json:
        told = {"schema": "px.executions/1", "executions": executions, "next_cursor": next_cursor}
        invocation.document(told)
        return
    if invocation.quiet:
        for execution in executions:
            invocation.say(str(execution.get("id")))
        return
    if executions:
        print_table(invocation, _COLUMNS, [_row(execution, invocation.now()) for execution in executions])
    else:
        invocation.notice("no such executions")
    if next_cursor is not None:
        invocation.notice(f"… more: --cursor {next_cursor}, or --all")


def _row(execution: dict[str, Any], now: float) -> list[Cell]:
    status = str(execution.get("status"))
    tokens, cost = execution.get("tokens"), execution.get("cost")
    error = [error_word(execution), str(execution.get("error_message") or "")]
    return [
        Cell(str(execution.get("id"))),
        Cell(str(execution.get("pipe_name"))),
        Cell(status, BY_STATE.get(status)),
        Cell(str(execution.get("trigger") or "")),
        Cell(wording.ago(execution.get("queued_at"), now)),
        Cell(took(execution)),
        Cell(f"{tokens:,}" if tokens else ""),
        Cell(money(cost) if cost else ""),
        Cell(" ".join(str(execution[key]) for key in ("agent", "model") if execution.get(key))),
        Cell(str(execution.get("retry_of") or "")),
        Cell(": ".join(word for word in error if word), BY_STATE.get(status)),
    ]
