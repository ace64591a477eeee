"""What YAML said, before anybody read a meaning into it: texts with their places, never numbers, dates or booleans.

A span is a pair of indexes into the text of the whole file; a place is for people, both parts from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where something begins; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` is what was written, quotes included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text. `plain` is one without quotes, `block` one that begins with | or >."""

    text: str
    place: Place
    span: Span
    plain: bool = True
    block: bool = False

    @property
    def is_null(self) -> bool:
        """Whether nothing was said: empty, `~` or `null` without quotes."""
        return self.plain and self.text in NULLS


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    place: Place
    span: Span
    flow: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a table with its value; keys are unique in their table."""

    key: str
    place: Place
    span: Span
    value: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A map. `flow` is one in braces."""

    entries: tuple[Entry, ...]
    place: Place
    span: Span
    flow: bool = False


Node: TypeAlias = Scalar | Items | Table


def kind_of(node: Node) -> str:
    """Name a node in a message."""
    if isinstance(node, Scalar):
        return "text"
    return "a list" if isinstance(node, Items) else "a map"


def simple(node: Node) -> object:
    """Return a node as texts, lists and dicts of texts; null is None."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Items):
        return [simple(each) for each in node.items]
    return {each.key: simple(each.value) for each in node.entries}
