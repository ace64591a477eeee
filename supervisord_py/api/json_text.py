"""JSON as it leaves us and comes in: UTF-8, compact, and never in the way of what it tells of. Pure.

Law: whatever a kernel or a file system gave can be told. Half of a surrogate pair (an undecodable file name in a
traceback) is no UTF-8; it leaves as its JSON escape, which every reader of JSON knows, and what is not a number leaves
as null. Coming in, half a character is refused with its place: what is asked for goes to disks, processes and a ledger,
none of which could hold it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 80


def json_bytes(document: Any, *, indent: int | None = None, default: Callable[[Any], str] | None = None) -> bytes:
    """Return a document as JSON in UTF-8.

    Args:
        document: What JSON knows, and what `default` makes a text of.
        indent: Spaces for each level; None is compact.
        default: Called with what JSON does not know.

    Raises:
        TypeError: There is something in it that JSON does not know.
    """
    separators = (",", ":") if indent is None else None
    write = partial(json.dumps, allow_nan=False, separators=separators, indent=indent, default=default)
    try:
        return write(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return write(document).encode()
    except ValueError:
        return write(_finite(document)).encode()


def json_text(document: Any) -> str:
    """As `json_bytes`, as text."""
    return json_bytes(document).decode()


def half_character(raw: bytes, document: Any) -> str | None:
    """Return the JSON pointer of a text in `document` that is no Unicode text, None where there is none.

    Args:
        raw: What the document was parsed from; looked at first, because that is quick.
        document: What it says.
    """
    return next(_halves(document, ""), None) if _HALF.search(raw) else None


def _halves(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, str):
        if not _is_whole(value):
            yield at
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if not _is_whole(name):
                yield at
            yield from _halves(each, f"{at}/{_escaped(name)}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _halves(each, f"{at}/{place}")


def _finite(value: Any) -> Any:
    """Return `value` with null for every number that is none: not a number, infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _escaped(name: str) -> str:
    """Return a name as a part of a JSON pointer (RFC 6901)."""
    return name[:_SHOWN].replace("~", "~0").replace("/", "~1")


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
