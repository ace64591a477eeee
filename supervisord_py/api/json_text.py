"""JSON as it leaves us: UTF-8, compact, and never in the way of what it tells of. Pure.

Half of a surrogate pair (an undecodable file name in a traceback) is no UTF-8; it leaves as its JSON escape, which
every reader of JSON knows, and what is not a number leaves as null.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
        return write(json.loads(json.dumps(document, default=default), parse_constant=lambda _: None)).encode()


def json_text(document: Any) -> str:
    """As `json_bytes`, as text."""
    return json_bytes(document).decode()
