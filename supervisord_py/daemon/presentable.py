"""Turns the facts of a log event into plain JSON values that may be shown. Pure.

Objects are never rendered by repr: only texts, numbers, paths, enums, errors and collections of them pass; everything
else is named by its type. Values under names that smell of secrets, and the values of environments, never pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import PurePath
from typing import Any

HIDDEN = "[hidden]"
MAX_DEPTH = 6
MAX_TEXT = 16 * 1024
MAX_ITEMS = 200

_SECRET = re.compile(r"token|secret|passw|authorization|api[_-]?key|credential|cookie|private[_-]?key", re.IGNORECASE)
_ABOUT_A_SECRET = re.compile(r"(_file|_path|_bytes|_seconds)$", re.IGNORECASE)
_ENVIRONMENTS = frozenset({"env", "environ", "environment"})


def presentable(name: str, value: Any, depth: int = 0) -> Any:
    """Return `value`, a fact called `name`, as JSON values without secrets."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if _SECRET.search(name) and not _ABOUT_A_SECRET.search(name):
        return HIDDEN
    text = _as_text(value)
    if text is not None:
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    return _collection(name, value, depth)


def _as_text(value: Any) -> str | None:
    match value:
        case str() | PurePath():
            return str(value)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case _:
            return None


def _collection(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, Mapping) and name.lower() in _ENVIRONMENTS:
        return sorted(str(key) for key in value)
    if depth >= MAX_DEPTH and isinstance(value, Mapping | list | tuple | AbstractSet):
        return "…"
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {str(key): presentable(str(key), each, depth + 1) for key, each in items}
    if isinstance(value, list | tuple | AbstractSet):
        return [presentable(name, each, depth + 1) for each in list(value)[:MAX_ITEMS]]
    return f"<{type(value).__name__}>"
