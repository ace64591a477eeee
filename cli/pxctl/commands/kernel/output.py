"""`pxctl kernel output`: the complete output of a cell."""

from __future__ import annotations

import binascii

import click

from pxctl.client import query, quote
from pxctl.commanding import READS, declare
from pxctl.completing import kernel_names
from pxctl.failure import UNKNOWN_UNIT, Failure
from pxctl.kernels import kernel_id
from pxctl.naming import kernel_route
from pxctl.shown_text import Shaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

_PAGE_BYTES = 1024 * 1024
_LAST = "last"


class _Page:
    __slots__ = ("complete", "content", "offset", "total")

    def __init__(self, content: bytes, offset: int, total: int, *, complete: bool) -> None:
        self.content = content
        self.offset = offset
        self.total = total
        self.complete = complete


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
def command(  # noqa: PLR0917 - click gives every option its own parameter
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
    pages = _pages(client, route, stream, offset, limit)
    if invocation.json:
        invocation.document({"schema": "px.cell-output/1", "kernel": found, "cell": cell, **_whole(pages, offset)})
        return
    shaper = Shaper(colour=invocation.paint.on, full=True) if invocation.out_is_terminal else None
    last = None
    for last in pages:
        content = last.content
        invocation.write(content if shaper is None else shaper.feed(content.decode("utf-8", "replace")))
    if shaper is not None:
        invocation.write(shaper.fresh())
    if last is not None and not last.complete:
        end = last.offset + len(last.content)
        invocation.notice(f"pxctl: {end} of {last.total} bytes so far; go on with --offset {end}")


def _last_cell(client: Client, kernel: str) -> str:
    cells = client.get(kernel_route(kernel, "cells")).document.get("cells", [])
    if not cells:
        raise Failure("it ran nothing yet", kind="unknown_unit", exit_code=UNKNOWN_UNIT, unit=f"kernel:{kernel}")
    return str(cells[-1].get("id"))


def _pages(client: Client, route: str, stream: str | None, offset: int, limit: int | None) -> Iterator[_Page]:
    """Yield page after page up to the end for now, or up to the limit."""
    left = limit
    while left is None or left > 0:
        size = _PAGE_BYTES if left is None else min(left, _PAGE_BYTES)
        target = query(route, [("offset", offset), ("limit", size), ("stream", stream)])
        with client.open("GET", target) as exchange:
            fields = exchange.head.fields
            content = exchange.read()
        complete = fields.get("x-complete") == "true"
        yield _Page(content, offset, int(fields.get("x-total-bytes") or 0), complete=complete)
        if not content or complete:
            return
        offset += len(content)
        left = None if left is None else left - len(content)


def _whole(pages: Iterator[_Page], offset: int) -> dict[str, Any]:
    found = list(pages)
    content = b"".join(page.content for page in found)
    facts = {"offset": offset, "total_bytes": found[-1].total, "complete": found[-1].complete}
    try:
        return {**facts, "text": content.decode()}
    except UnicodeDecodeError:
        return {**facts, "base64": binascii.b2a_base64(content, newline=False).decode()}
