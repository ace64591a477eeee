"""`pxctl kernel cells`: what a session ran."""

from __future__ import annotations

import json

import click

from pxctl import wording
from pxctl.cell_view import STYLES
from pxctl.commanding import READS, declare
from pxctl.completing import kernel_names
from pxctl.kernels import kernel_id
from pxctl.naming import kernel_route
from pxctl.printing import print_table
from pxctl.table import Cell, Column, cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_CODE_CELLS = 200
"""What is shown of a cell's code at most; the notebook of the session has all of it."""
_COLUMNS = [
    Column("CELL"),
    Column("N", rank=5, right=True),
    Column("STATUS", rank=1),
    Column("TOOK", rank=4, right=True),
    Column("OUTPUT", rank=3, right=True),
    Column("WHEN", rank=6),
    Column("CODE", rank=2, minimum=16),
]


@declare("cells", effect=READS, examples=["pxctl kernel cells default", "pxctl kernel cells default -n 5 --json"])
@click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
@click.option("-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help="The latest N only.")
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
def command(invocation: Invocation, kernel: str, limit: int | None, cwd: str | None) -> None:
    """List what a session ran, oldest first: status, duration, bytes printed, code."""
    invocation.action = f"list the cells of {kernel}"
    client = invocation.client()
    answer = client.get(kernel_route(kernel_id(client, kernel, cwd=cwd), "cells"))
    cells = answer.document.get("cells", [])
    shown = cells if limit is None else cells[-limit:]
    if invocation.json:
        invocation.write(json.dumps({**answer.document, "cells": shown}, ensure_ascii=False) + "\n")
    elif invocation.quiet:
        for cell in shown:
            invocation.say(str(cell.get("id")))
    elif shown:
        print_table(invocation, _COLUMNS, [_row(cell, invocation.now()) for cell in shown])
    else:
        invocation.notice("it ran nothing yet")


def _row(cell: dict[str, Any], now: float) -> list[Cell]:
    status = str(cell.get("status"))
    code = cut(" ".join(str(cell.get("code") or "").split()), _CODE_CELLS)
    title = f"{cell['title']}: " if cell.get("title") else ""
    count = cell.get("execution_count")
    return [
        Cell(str(cell.get("id"))),
        Cell("" if count is None else str(count)),
        Cell(status, STYLES.get(status)),
        Cell("" if cell.get("duration_seconds") is None else wording.duration(cell["duration_seconds"])),
        Cell(wording.size(cell.get("total_bytes"))),
        Cell(wording.ago(cell.get("started_at"), now)),
        Cell(title + code),
    ]
