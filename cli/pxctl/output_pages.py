"""Kept output, page after page: raw bytes with their place, of cells and of executions."""

from __future__ import annotations

import binascii
import codecs
import os

from pxctl.client import query
from pxctl.shown_text import Shaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

_PAGE_BYTES = 1024 * 1024


class Page:
    """A piece of output.

    Attributes:
        content: The bytes.
        offset: Of the first of them.
        total: Bytes of the whole output so far.
        complete: They reach the end, and no more will come.
        in_line: After this page the output stands within a line.
        truncated: Not all of it was kept (pipes.output_file_bytes); an empty page is the end then.
    """

    __slots__ = ("complete", "content", "in_line", "offset", "total", "truncated")

    def __init__(self, content: bytes, offset: int, total: int, *, complete: bool) -> None:
        self.content = content
        self.offset = offset
        self.total = total
        self.complete = complete
        self.in_line = not content.endswith(b"\n")
        self.truncated = False

    @property
    def end(self) -> int:
        """Where the next page begins."""
        return self.offset + len(self.content)


def pages(
    client: Client, route: str, parameters: Sequence[tuple[str, object]], offset: int, limit: int | None
) -> Iterator[Page]:
    """Yield page after page up to the end for now, or up to the limit; at least one."""
    left = limit
    while left is None or left > 0:
        size = _PAGE_BYTES if left is None else min(left, _PAGE_BYTES)
        with client.open("GET", query(route, [("offset", offset), ("limit", size), *parameters])) as exchange:
            fields = exchange.head.fields
            content = exchange.read()
        complete = fields.get("x-complete") == "true"
        page = Page(content, offset, int(fields.get("x-total-bytes") or 0), complete=complete)
        page.truncated = fields.get("x-truncated") == "true"
        yield page
        if not content or complete:
            return
        offset += len(content)
        left = None if left is None else left - len(content)


def show(invocation: Invocation, found: Iterable[Page]) -> Page | None:
    """Write pages to stdout, byte for byte on a pipe and harmless on a terminal; return the last one."""
    shaper = Shaper(colour=invocation.paint.on, full=True) if invocation.out_is_terminal else None
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    last, in_line = None, False
    for last in found:
        in_line = last.in_line = last.in_line if last.content else in_line
        invocation.write(last.content if shaper is None else shaper.feed(decode(last.content)))
    if shaper is not None:
        invocation.write(shaper.feed(decode(b"", final=True)) + shaper.fresh())
        if last is not None:
            last.in_line = False
    return last


def tell_more(invocation: Invocation, last: Page | None) -> None:
    """Say on stderr how to go on where there is, or will be, more than was shown, and what was not kept."""
    if last is None or last.complete:
        return
    own_line = "\n" if last.in_line and _is_one_place() else ""
    if last.truncated and not last.content:
        invocation.warn(f"{own_line}pxctl: {last.end} of {last.total} bytes were kept (pipes.output_file_bytes)")
    else:
        invocation.notice(f"{own_line}pxctl: {last.end} of {last.total} bytes so far; go on with --offset {last.end}")


def _is_one_place() -> bool:
    """Say whether stdout and stderr end in the same file, pipe or terminal: a notice then follows the output."""
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False


def whole(found: Iterable[Page], offset: int) -> dict[str, Any]:
    """Return all pages as the members of a document: place, and the text, or base64 of what is none."""
    listed = list(found)
    content = b"".join(page.content for page in listed)
    last = listed[-1]
    facts: dict[str, Any] = {
        "offset": offset,
        "total_bytes": last.total,
        "complete": last.complete,
        "truncated": last.truncated,
    }
    try:
        return {**facts, "text": content.decode()}
    except UnicodeDecodeError:
        return {**facts, "base64": binascii.b2a_base64(content, newline=False).decode()}
