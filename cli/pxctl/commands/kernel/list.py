"""`pxctl kernel list`: the sessions as a table."""

from __future__ import annotations

import click

from pxctl import wording
from pxctl.commanding import READS, declare
from pxctl.kernels import failure_of
from pxctl.printing import print_table
from pxctl.style import BY_STATE
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_STOPPED_SHOWN = 5
_COLUMNS = [
    Column("ID", minimum=12),
    Column("STATE", rank=1),
    Column("PID", rank=5, right=True),
    Column("QUEUED", rank=4, right=True),
    Column("MEMORY", rank=3, right=True),
    Column("LAST USED", rank=2),
    Column("CWD", rank=6, minimum=12),
    Column("INTERPRETER", rank=7, minimum=16),
    Column("BACKEND", rank=9),
    Column("REASON", rank=8, minimum=10),
]


@declare(
    "list",
    effect=READS,
    examples=["pxctl kernel list", "pxctl kernel list --all", "pxctl kernel list --json", "pxctl kernel list -q"],
)
@click.option("--all", "everything", is_flag=True, help="All stopped sessions, too, not only the latest ones.")
def command(invocation: Invocation, everything: bool) -> None:
    """List the sessions: those with a kernel first, then those that are remembered."""
    invocation.action = "list the kernels"
    answer = invocation.client().get("/api/kernels")
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    kernels = _in_order(answer.document.get("kernels", []))
    if invocation.quiet:
        for kernel in kernels:
            invocation.say(str(kernel.get("id")))
        return
    shown = kernels if everything else _latest(kernels)
    if shown:
        print_table(invocation, _COLUMNS, [_row(kernel, invocation.now()) for kernel in shown])
    else:
        invocation.notice("no sessions yet; make one: pxctl exec 'x = 1'")
    if left_out := len(kernels) - len(shown):
        invocation.notice(f"… {wording.counted(left_out, 'stopped session')} more: pxctl kernel list --all")


def _in_order(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    latest_first = sorted(kernels, key=lambda kernel: str(kernel.get("last_used") or ""), reverse=True)
    return sorted(latest_first, key=_is_off)


def _is_off(kernel: dict[str, Any]) -> bool:
    return kernel.get("state") == "stopped"


def _latest(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    on = [kernel for kernel in kernels if not _is_off(kernel)]
    return on + [kernel for kernel in kernels if _is_off(kernel)][:_STOPPED_SHOWN]


def _row(kernel: dict[str, Any], now: float) -> list[Cell]:
    state = str(kernel.get("state") or "?")
    failed = state == "failed"
    return [
        Cell(str(kernel.get("id"))),
        Cell(state, BY_STATE.get(state)),
        Cell(_text(kernel.get("pid"))),
        Cell(_text(kernel.get("queued"))),
        Cell("" if kernel.get("rss_bytes") is None else wording.size(kernel["rss_bytes"])),
        Cell("" if kernel.get("last_used") is None else wording.ago(kernel["last_used"], now)),
        Cell(_text(kernel.get("cwd"))),
        Cell(_text(kernel.get("interpreter"))),
        Cell(_text(kernel.get("backend"))),
        Cell(failure_of(kernel) if failed else _text(kernel.get("reason")), "red" if failed else None),
    ]


def _text(value: object) -> str:
    return str(value) if value else ""
