"""What a tool answered: small answers are held until they are known to be sound, large and streamed ones pass through.

Law: nothing that broke off is ever ended cleanly. As long as nothing has gone to the client, a broken answer becomes
an error document; afterwards the error is raised out of `chunks`, and whoever relays must abort its own connection.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import EXIT_USAGE, ToolFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import aiohttp

    from supervisord_py.tools.manifest import ToolSpec

TOOL_BODY_BYTES = 64 * 1024
_STREAMED = ("text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl")
_OWN_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "date",
        "server",
    }
)
"""What belongs to one connection, or is said by the server that says it."""
_FAILED = 400
_UNPROCESSABLE = 422


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that is complete and, where it claims to be JSON, is JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """An answer that is relayed as it comes. `chunks` raises PxError where it breaks off."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


Answer = WholeAnswer | StreamedAnswer


class NotJsonError(ValueError):
    """An answer that claims to be JSON is none; the message says where."""


def media_type(content_type: str) -> str:
    """Return the type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Say whether a content type is JSON in the sense of RFC 6839."""
    kind = media_type(content_type)
    return kind == "application/json" or kind.endswith("+json")


def is_streamed(answer: aiohttp.ClientResponse) -> bool:
    """Say whether an answer is a stream of items, to be relayed from its first byte."""
    return media_type(answer.headers.get("Content-Type", "")) in _STREAMED


def passed_headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the headers that go on to the client."""
    named = {token.strip().lower() for token in answer.headers.get("Connection", "").split(",")}
    return {name: value for name, value in answer.headers.items() if name.lower() not in _OWN_HEADERS | named}


def check_json(answer: aiohttp.ClientResponse, body: bytes) -> None:
    """Check a complete answer that claims to be JSON.

    Raises:
        NotJsonError: it is none.
    """
    if "Content-Encoding" in answer.headers or not is_json(answer.headers.get("Content-Type", "")):
        return
    try:
        json.loads(body)
    except ValueError as error:
        raise NotJsonError(str(error)) from error


async def read_up_to(answer: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """Read at most `limit` bytes and a little; say whether that was all."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            return b"".join(parts), False
    return b"".join(parts), True


async def tool_error(spec: ToolSpec, answer: aiohttp.ClientResponse, stderr_tail: str) -> ToolFailedError:
    """Turn an error answer of a tool into an error that carries its status and its words."""
    body, _ = await read_up_to(answer, TOOL_BODY_BYTES)
    said = _said(answer, body[:TOOL_BODY_BYTES])
    words = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    error = ToolFailedError(
        f"{spec.unit} answered {answer.status}{': ' + words[:300] if words else ''}",
        hint=f"See `pxctl logs {spec.unit} --stderr` and `pxctl tools debug {spec.name}`.",
        unit=spec.unit,
        tool_status=answer.status,
        tool_body=said,
        stderr_tail=stderr_tail,
    )
    error.status = answer.status
    if answer.status == _UNPROCESSABLE:
        error.exit_code = EXIT_USAGE
    return error


def is_error(answer: aiohttp.ClientResponse) -> bool:
    """Say whether the tool itself says that it failed."""
    return answer.status >= _FAILED


def _said(answer: aiohttp.ClientResponse, body: bytes) -> Any:
    if is_json(answer.headers.get("Content-Type", "")):
        try:
            return json.loads(body)
        except ValueError:
            pass
    return body.decode(errors="replace")
