"""Bodies of requests: received within a common budget of memory, decompressed, and bounded in what
they hold.

Invariants: all bodies that are held at a moment, read or being read, have at most `limit_bytes`
together. A body that is refused is never buffered. A body is counted until its request is over,
also when the client has gone away.

The event loop must not be held by one request, and a JSON parser holds the interpreter's lock for
as long as it works. So the number of values in a body is bounded before it is parsed
(`check_values`).
"""

from __future__ import annotations

import asyncio
import re
import zlib
from types import TracebackType
from typing import Self

from aiohttp import web

from supervisord_py import errors

BUDGET_BODIES = 8  # so many bodies of the largest size are held at once
BUDGET_BYTES = 64 * 1024 * 1024  # at least this much for all of them
MAX_BODY = "tools.max_body_bytes"
MAX_COST = 1_500_000
"""Cost of the values of one body: about 50 ms of parsing for each million. See `cost_of`."""
MAX_COST_OF_ORDER = 150_000
"""The same for a body that a route reads itself and checks member by member; 10,000 cells are
allowed.
"""
# members; in larger objects each member costs more, because the table of names grows
_WIDE_OBJECT = 64
_THREAD_BYTES = 64 * 1024  # work on more than this is done in a thread
_GZIP = 16 + zlib.MAX_WBITS  # of zlib: only gzip
_ZLIB = zlib.MAX_WBITS
# A JSON string, closed or not. Possessive quantifiers: without them a string that is never closed
# costs the square of its length.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BODY: web.RequestKey[bytes] = web.RequestKey("px.body", bytes)


class BodyBudget:
    """The memory that all bodies share. `max_body_bytes`: the size of the largest one."""

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self.limit_bytes = max(BUDGET_BODIES * max_body_bytes, BUDGET_BYTES)
        self.held_bytes = 0

    def hold(self) -> HeldBody:
        return HeldBody(self)


class HeldBody:
    """The share of one request in the budget; as a context manager it gives the share back."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()

    def grow(self, count: int) -> None:
        """Count more bytes. Raises OverloadedError if they do not fit into the budget."""
        budget = self._budget
        if budget.held_bytes + count > budget.limit_bytes:
            detail = (
                f"The bodies of all requests under way may have {budget.limit_bytes} bytes "
                "together."
            )
            raise errors.OverloadedError(
                detail, hint="ask again later, or send fewer large bodies at once"
            )
        budget.held_bytes += count
        self.held_bytes += count

    def release(self) -> None:
        """Give everything back; more than once does no harm."""
        self._budget.held_bytes -= self.held_bytes
        self.held_bytes = 0


def too_large(limit_bytes: int) -> errors.TooLargeError:
    detail = f"The body is over the limit of {limit_bytes} bytes."
    hint = f"raise the setting {MAX_BODY}, or send less"
    return errors.TooLargeError(detail, hint=hint, limit_bytes=limit_bytes, setting=MAX_BODY)


async def receive(request: web.Request, held: HeldBody, max_body_bytes: int) -> bytes:
    """Read the body of a request, decompressed; a second call returns the same bytes.

    Raises TooLargeError if the body, or what it decompresses to, is over the limit, or has too many
    values; OverloadedError if the budget has no room; BadRequestError if its compression is wrong.
    """
    received: bytes | None = request.get(_BODY)
    if received is not None:
        return received
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
        detail = f"The body has the Content-Encoding {encoding[:80]!r}, which is not read here."
        raise errors.BadRequestError(detail, hint="send it as gzip, deflate, or uncompressed")

    # Take pieces as they come: only what is here counts, not what a header announces.
    buffer = bytearray()
    while piece := await request.content.readany():
        if len(buffer) + len(piece) > max_body_bytes:
            raise too_large(max_body_bytes)
        held.grow(len(piece))
        buffer += piece
    body = bytes(buffer)
    del buffer, piece

    if body and encoding not in {"", "identity"}:
        body = await _decompress(body, encoding, max_body_bytes)
        held.grow(max(0, len(body) - held.held_bytes))
    await check_values(body)
    request[_BODY] = body
    return body


def discard(request: web.Request) -> None:
    """Forget the body of a request that is over, whoever still holds the request."""
    request.pop(_BODY, None)


async def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    try:
        if len(body) > _THREAD_BYTES:
            return await asyncio.to_thread(decompress, body, encoding, limit)
        return decompress(body, encoding, limit)
    except zlib.error as error:
        hint = "send the body as its Content-Encoding says"
        raise errors.BadRequestError(
            f"The body cannot be decompressed: {error}.", hint=hint
        ) from None


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress one whole gzip or deflate stream.

    Raises zlib.error if it is damaged or cut off; TooLargeError.
    """
    # RFC 9110 calls the zlib format "deflate"; some clients send the bare stream, which has another
    # first byte.
    is_bare = encoding == "deflate" and (body[0] & 0x0F) != zlib.DEFLATED
    window = -zlib.MAX_WBITS if is_bare else _ZLIB if encoding == "deflate" else _GZIP
    pieces: list[bytes] = []
    rest = body
    room = limit
    while rest:
        # A gzip body may have several members (RFC 1952, 2.2).
        stream = zlib.decompressobj(window)
        piece = stream.decompress(rest, room + 1)
        room -= len(piece)
        if room < 0:
            raise too_large(limit)
        if not stream.eof:
            raise zlib.error("it ends before its compressed stream does")
        pieces.append(piece)
        rest = stream.unused_data
        if rest and window != _GZIP:
            raise zlib.error("something stands behind its compressed stream")
    return b"".join(pieces)


async def check_values(body: bytes, max_cost: int = MAX_COST) -> None:
    """Raise TooLargeError if a JSON text has more values than may be parsed at once."""
    # No character costs more than ten: most bodies are too short to be looked at.
    if 10 * len(body) <= max_cost or cost_of(body) <= max_cost:
        return
    # Commas and brackets within strings are text (a table as CSV, a notebook): look closer, in a
    # thread.
    if await asyncio.to_thread(cost_without_strings, body, max_cost) > max_cost:
        detail = (
            "The body has too many values to be parsed at once; objects and arrays count four "
            "times."
        )
        hint = (
            f"send at most {max_cost:,} values in one request, or put them into a file and send "
            "its path"
        )
        raise errors.TooLargeError(detail, hint=hint, limit_values=max_cost)


def cost_of(body: bytes, begin: int = 0, end: int | None = None) -> int:
    """Return what it costs to parse a JSON text: at least the number of its values.

    Arrays and objects cost more than numbers and strings. So do the members of very large objects.
    """
    span = (begin, len(body) if end is None else end)
    objects = body.count(b"{", *span)
    members = body.count(b":", *span)
    containers = objects + body.count(b"[", *span)
    return (
        body.count(b",", *span)
        + 4 * containers
        + 2 * members
        + 8 * max(0, members - _WIDE_OBJECT * objects)
    )


def cost_without_strings(body: bytes, max_cost: int = MAX_COST) -> int:
    """Return the same without what stands in strings, or any number over `max_cost`."""
    values = containers = objects = members = 0
    begin = 0

    def total() -> int:
        wide = max(0, members - _WIDE_OBJECT * objects)
        return values + 4 * (containers + objects) + 2 * members + 8 * wide

    def count(end: int) -> None:
        nonlocal values, containers, objects, members
        values += body.count(b",", begin, end)
        containers += body.count(b"[", begin, end)
        objects += body.count(b"{", begin, end)
        members += body.count(b":", begin, end)

    for string in _STRING.finditer(body):
        count(string.start())
        begin = string.end()
        if total() > max_cost:
            return total()
    count(len(body))
    return total()
