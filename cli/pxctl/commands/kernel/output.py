"""`pxctl kernel output`: the complete output of a cell."""

from __future__ import annotations

import click

from pxctl.client import quote
from pxctl.commanding import READS, declare
from pxctl.completing import kernel_names
from pxctl.failure import UNKNOWN_UNIT, Failure
from pxctl.kernels import kernel_id
from pxctl.naming import kernel_route
from pxctl.output_pages import pages, show, tell_more, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.client import Client
    from pxctl.invocation import Invocation

_LAST = "last"


@declare(
    "output",
    effect=READS,
    examples=[
        "pxctl kernel output default last",
        "pxctl kernel output default 78482cbaa9dada8c --stream stderr",
        "pxctl kernel output default last --offset 65536 --limit 4096",
    ],
)
@click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
@click.argument("cell", metavar="CELL|last")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only one of the two; else both, as they came.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N bytes; else all there are.")
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
def command(
    invocation: Invocation,
    kernel: str,
    cell: str,
    stream: str | None,
    offset: int,
    limit: int | None,
    cwd: str | None,
) -> None:
    """Print what a cell printed: all of it, also what an answer had cut; byte for byte on a pipe."""
    invocation.action = f"read the output of {kernel}"
    client = invocation.client()
    found = kernel_id(client, kernel, cwd=cwd)
    cell = _last_cell(client, found) if cell == _LAST else cell
    route = kernel_route(found, f"cells/{quote(cell)}/output")
    found_pages = pages(client, route, [("stream", stream)], offset, limit)
    if invocation.json:
        invocation.document({"schema": "px.cell-output/1", "kernel": found, "cell": cell, **whole(found_pages, offset)})
        return
    tell_more(invocation, show(invocation, found_pages))


def _last_cell(client: Client, kernel: str) -> str:
    cells = client.get(kernel_route(kernel, "cells")).document.get("cells", [])
    if not cells:
        raise Failure("it ran nothing yet", kind="unknown_unit", exit_code=UNKNOWN_UNIT, unit=f"kernel:{kernel}")
    return str(cells[-1].get("id"))
