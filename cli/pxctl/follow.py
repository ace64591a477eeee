"""Endless answers of the daemon, followed over a restart of its control plane; and kept output, page after page.

What was seen is not shown twice and what was not seen is not left out: after each loss the stream is taken up again at
the place that the caller remembers.
"""

from __future__ import annotations

import binascii
import codecs
import json
import os
import time

from pxctl.client import query, split_lines
from pxctl.failure import Failure, Interrupted, Problem, Unreachable, raise_problem
from pxctl.shown_text import Shaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.client import Client

    Event = dict[str, Any]

NDJSON = "application/x-ndjson"
STREAMS = ("stdout", "stderr")
CUT_OFF = frozenset({"shutdown", "interrupted"})
"""What the daemon answers while its control plane goes: another one follows."""
AWAY_SECONDS = 60.0
"""How long a daemon may be away before following ends with an error."""
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 60.0
_PAGE_BYTES = 1024 * 1024


class Patience:
    """Bears the absence of a daemon that was there before, for a while."""

    def __init__(self, seconds: float = AWAY_SECONDS, *, met: bool = False) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._met = met

    def met(self) -> None:
        """Note that the daemon answered."""
        self._met = True
        self._since = None

    def bear(self, failure: Failure) -> None:
        """Pause; raise `failure` where it is of another kind, or the daemon was never there, or is away too long."""
        away = isinstance(failure, Unreachable | Interrupted) or (
            isinstance(failure, Problem) and failure.kind in CUT_OFF
        )
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not away or not self._met or now - self._since > self._seconds:
            raise failure
        time.sleep(_PAUSE_SECONDS)


def ndjson_lines(invocation: Invocation, target: Callable[[], str], *, follow: bool) -> Iterator[bytes]:
    """Yield the lines of an NDJSON answer. `target` is asked anew at each connection: it names the place."""
    patience = Patience()
    while True:
        try:
            timeout = None if follow else _READ_SECONDS
            with invocation.client().open("GET", target(), fields={"Accept": NDJSON}, timeout=timeout) as exchange:
                patience.met()
                yield from filter(bytes.strip, split_lines(exchange.chunks()))
        except (Unreachable, Interrupted, Problem) as failure:
            if not follow:
                raise
            patience.bear(failure)
            continue
        if not follow:
            return
        # An orderly end of an endless answer: the control plane is being replaced.
        time.sleep(_PAUSE_SECONDS)


def parsed_event(line: bytes) -> Event:
    """Return the event of a line of NDJSON.

    Raises:
        Problem: It is the problem that the stream ended with.
        Failure: It is no event.
    """
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
    if not isinstance(event, dict):
        raise Failure("the daemon sent a line that is no event", kind="bad_answer")
    raise_problem(event)
    return event


def bytes_of(event: Event) -> bytes:
    """Return the bytes of an output event, exactly."""
    if isinstance(content := event.get("bytes"), bytes):
        return content
    if isinstance(encoded := event.get("base64"), str):
        return binascii.a2b_base64(encoded)
    return str(event.get("text", "")).encode("utf-8", "surrogatepass")


def print_event(invocation: Invocation, event: Event) -> None:
    """Write an event as a line of NDJSON; what was read from a file after a loss is text, too."""
    if isinstance(content := event.pop("bytes", None), bytes):
        event["text"] = content.decode("utf-8", "replace")
    invocation.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")


# -- kept output ------------------------------------------------------------------------------------------------------


class Page:
    """A piece of output.

    Attributes:
        content: The bytes.
        end: Where the next page begins.
        total: Bytes of the whole output so far.
        complete: They reach the end, and no more will come.
        in_line: After this page the output stands within a line.
        truncated: Not all of it was kept (pipes.output_file_bytes); an empty page is the end then.
    """

    __slots__ = ("complete", "content", "end", "in_line", "total", "truncated")

    def __init__(self, content: bytes, offset: int, total: int, *, complete: bool, truncated: bool) -> None:
        self.content = content
        self.end = offset + len(content)
        self.total = total
        self.complete = complete
        self.truncated = truncated
        self.in_line = not content.endswith(b"\n")


def pages(
    client: Client, route: str, parameters: Sequence[tuple[str, object]], offset: int, limit: int | None
) -> Iterator[Page]:
    """Yield page after page up to the end for now, or up to the limit; at least one."""
    left = limit
    while left is None or left > 0:
        size = _PAGE_BYTES if left is None else min(left, _PAGE_BYTES)
        with client.open("GET", query(route, [("offset", offset), ("limit", size), *parameters])) as exchange:
            fields, content = exchange.head.fields, exchange.read()
        complete, truncated = fields.get("x-complete") == "true", fields.get("x-truncated") == "true"
        total = int(fields.get("x-total-bytes") or 0)
        yield Page(content, offset, total, complete=complete, truncated=truncated)
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


def print_pages(invocation: Invocation, found: Iterable[Page], offset: int, place: dict[str, Any]) -> None:
    """Print kept output, under `--json` as one document with its place; say how to go on where there is more."""
    if invocation.json:
        listed = list(found)
        content, last = b"".join(page.content for page in listed), listed[-1]
        known = {"total_bytes": last.total, "complete": last.complete, "truncated": last.truncated}
        facts = {**place, "offset": offset, **known}
        try:
            invocation.document({**facts, "text": content.decode()})
        except UnicodeDecodeError:
            invocation.document({**facts, "base64": binascii.b2a_base64(content, newline=False).decode()})
        return
    shown = show(invocation, found)
    if shown is not None and not shown.complete:
        own_line = "\n" if shown.in_line and _is_one_place() else ""
        if shown.truncated and not shown.content:
            kept = f"{shown.end} of {shown.total} bytes were kept (pipes.output_file_bytes)"
            invocation.warn(f"{own_line}pxctl: {kept}")
        else:
            more = f"{shown.end} of {shown.total} bytes so far; go on with --offset {shown.end}"
            invocation.notice(f"{own_line}pxctl: {more}")


def _is_one_place() -> bool:
    """Say whether stdout and stderr end in the same file, pipe or terminal: a notice then follows the output."""
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False
