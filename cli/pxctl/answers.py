"""What becomes of a tool's answer: printed, made pretty, streamed item by item, or saved.

Law: on a pipe the bytes go out as they came; a terminal never gets binary; a file is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os

from pxctl.app import json_text
from pxctl.client import split_events, split_lines
from pxctl.failure import USAGE, Failure, raise_problem
from pxctl.output import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.client import Exchange

_HELD_BYTES = 8 * 1024 * 1024
"""A JSON answer up to this size is printed only once it is complete; a longer one goes out as it comes."""
_SSE, _NDJSON = "text/event-stream", "application/x-ndjson"
_PROBLEM_PREFIX = b"urn:px:problem:"


def is_json(content_type: str) -> bool:
    """Say whether a media type is JSON."""
    return content_type == "application/json" or content_type.endswith("+json")


def is_text(content_type: str) -> bool:
    """Say whether a media type can be shown on a terminal."""
    return is_json(content_type) or content_type.startswith("text/") or content_type in {_NDJSON, "application/xml"}


def print_answer(invocation: Invocation, exchange: Exchange, before: Callable[[], None]) -> None:
    """Print the answer of a run to stdout; `before` is called before anything is printed (it clears the spinner)."""
    content_type = exchange.head.content_type
    if invocation.out_is_terminal and not is_text(content_type):
        raise Failure(
            f"the tool answered with {content_type or 'bytes of no known type'}, which is not for a terminal",
            kind="binary_answer",
            hint="run it again with -o FILE",
            exit_code=USAGE,
        )
    if is_json(content_type):
        _print_json(invocation, exchange, before)
        return
    for chunk in exchange.chunks():
        before()
        invocation.write(chunk)


def _print_json(invocation: Invocation, exchange: Exchange, before: Callable[[], None]) -> None:
    held, size = [], 0
    chunks = exchange.chunks()
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > _HELD_BYTES:
            break
    else:
        raw = b"".join(held)
        before()
        invocation.write(_pretty(raw) if invocation.out_is_terminal else raw)
        return
    before()
    for chunk in held:
        invocation.write(chunk)
    for chunk in chunks:
        invocation.write(chunk)


def _pretty(raw: bytes) -> bytes:
    """Return JSON indented for people; what is not JSON in spite of its type stays as it is, without control codes."""
    try:
        return (json_text(json.loads(raw), indent=2) + "\n").encode("utf-8", "backslashreplace")
    except (ValueError, RecursionError):
        return ("\n".join(clean(line) for line in raw.decode("utf-8", "replace").splitlines()) + "\n").encode()


def print_items(invocation: Invocation, exchange: Exchange, before: Callable[[], None]) -> None:
    """Print the items of a stream, one a line, each as it comes. An item that is a problem ends the run with it.

    `before` is called before each is printed.
    """
    content_type = exchange.head.content_type
    if content_type == _SSE:
        for name, payload in split_events(exchange.chunks()):
            _raise_problem(payload, named=name in {"error", "problem"})
            before()
            invocation.write(payload + b"\n")
    elif content_type in {_NDJSON, "application/ndjson", "application/jsonl", "application/json-lines"}:
        for line in split_lines(exchange.chunks()):
            if line.strip():
                _raise_problem(line, named=False)
                before()
                invocation.write(line + b"\n")
    else:
        print_answer(invocation, exchange, before)


def _raise_problem(payload: bytes, *, named: bool) -> None:
    """Raise the problem document that a stream ended with; whatever else an item holds is the tool's own business."""
    if not named and _PROBLEM_PREFIX not in payload[:200]:
        return
    try:
        members = json.loads(payload)
    except ValueError:
        return
    if isinstance(members, dict):
        raise_problem(members)


class Saved:
    """What was saved where."""

    __slots__ = ("content_type", "path", "pointer", "size")

    def __init__(self, path: str, size: int, content_type: str, pointer: str | None) -> None:
        self.path = path
        self.size = size
        self.content_type = content_type
        self.pointer = pointer


def save_answer(exchange: Exchange, path: str) -> Saved:
    """Save an answer: an image inside JSON as the image, anything else as it came."""
    content_type = exchange.head.content_type
    if not is_json(content_type):
        return Saved(path, write_whole(path, exchange.chunks()), content_type, None)
    raw = exchange.read()
    found = embedded(raw)
    if found is None:
        return Saved(path, write_whole(path, iter([raw])), content_type, None)
    pointer, kind, content = found
    return Saved(path, write_whole(path, iter([content])), kind, pointer)


def write_whole(path: str, chunks: Iterator[bytes]) -> int:
    """Write a file beside its place and move it there once it is complete; return its size in bytes."""
    beside = f"{path}.{os.getpid()}.part"
    size = 0
    try:
        with open(beside, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
        os.replace(beside, path)
    except OSError as error:
        _discard(beside)
        raise Failure(f"cannot write {path}: {error.strerror}", kind="os_error", hint=f"ls -ld {path}") from error
    except BaseException:
        _discard(beside)
        raise
    return size


def _discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_SHORTEST = 16


def embedded(raw: bytes) -> tuple[str, str, bytes] | None:
    """Return (JSON pointer, media type, bytes) of the first file that JSON holds as base64; None when there is none."""
    try:
        return _find(json.loads(raw), "")
    except (ValueError, RecursionError):
        return None


def _find(value: Any, pointer: str) -> tuple[str, str, bytes] | None:
    match value:
        case str():
            decoded = _decode(value)
            return None if decoded is None else (pointer, *decoded)
        case dict():
            pairs = [(str(key).replace("~", "~0").replace("/", "~1"), inner) for key, inner in value.items()]
        case list():
            pairs = [(str(at), inner) for at, inner in enumerate(value)]
        case _:
            return None
    return next((found for key, inner in pairs if (found := _find(inner, f"{pointer}/{key}")) is not None), None)


def _decode(text: str) -> tuple[str, bytes] | None:
    """Read `data:TYPE;base64,…` (RFC 2397), or bare base64 that begins as a known kind of file does."""
    if len(text) < _SHORTEST:
        return None
    head, comma, rest = text.partition(",")
    if text.startswith("data:") and comma and head.endswith(";base64"):
        content = _base64(rest)
        return None if content is None else (head[len("data:") : -len(";base64")] or "text/plain", content)
    start = _base64(text[:_SHORTEST])
    kind = next((kind for magic, kind in _MAGIC if start is not None and start.startswith(magic)), None)
    content = _base64(text) if kind is not None else None
    return None if kind is None or content is None else (kind, content)


def _base64(text: str) -> bytes | None:
    import binascii

    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (ValueError, UnicodeEncodeError):
        return None
