"""Careful reading of JSON that somebody else's program wrote: a wrong type is as good as nothing, never an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NOTHING: Mapping[str, Any] = {}


def member(record: Any, *path: str) -> Any:
    """Return what lies at a path of member names, None where there is nothing."""
    for name in path:
        if not isinstance(record, dict):
            return None
        record = record.get(name)
    return record


def words(record: Any, *path: str) -> str | None:
    """Return a text."""
    found = member(record, *path)
    return found if isinstance(found, str) else None


def count(record: Any, *path: str) -> int:
    """Return a number that cannot be negative, as a whole one; 0 where there is none."""
    return int(amount(record, *path))


def amount(record: Any, *path: str) -> float:
    """Return a number that is neither negative nor without end; 0 where there is none."""
    found = member(record, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 0.0
    return float(found) if 0 <= found < float("inf") else 0.0


def blocks(record: Any, *path: str) -> Iterable[dict[str, Any]]:
    """Return the objects of a list."""
    found = member(record, *path)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def block_text(content: Any) -> str:
    """Return the joined texts of a message's content: a text, or a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(words(each, "text") or "" for each in blocks({"it": content}, "it") if each.get("type") == "text")
