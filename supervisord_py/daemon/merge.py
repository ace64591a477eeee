"""Lays sources of settings over each other: later ones win, key by key, and every key remembers whence it came. Pure.

A source is a *layer*: a tree `{section: {key: value}}` and the origin of each key in it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Key = tuple[str, ...]
Tree = dict[str, Any]

ADDITIVE = frozenset({("tools", "paths")})
"""Lists that every source adds to instead of replacing what the sources below said."""


class OriginKind(Enum):
    """The sorts of places a setting may come from, weakest first."""

    DEFAULT = auto()
    FILE = auto()
    ENVIRONMENT = auto()
    FLAG = auto()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value stands: a file (and line), a variable, a flag, or nowhere (the default)."""

    kind: OriginKind = OriginKind.DEFAULT
    where: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case OriginKind.DEFAULT:
                return "default"
            case OriginKind.FILE:
                return self.where if self.line is None else f"{self.where}:{self.line}"
            case OriginKind.ENVIRONMENT:
                return f"env {self.where}"
            case OriginKind.FLAG:
                return f"flag {self.where}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One source: what it says, and where each key of it stands; `whole` is the source itself."""

    whole: Origin
    tree: Tree
    origins: Mapping[Key, Origin] = field(default_factory=dict)

    def origin(self, key: Key) -> Origin:
        """Return where `key`, or else the nearest thing around it, stands."""
        for length in range(len(key), 0, -1):
            if (found := self.origins.get(key[:length])) is not None:
                return found
        return self.whole


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome: one tree, and the origin of every key that any layer set."""

    tree: Tree
    origins: dict[Key, Origin]


def merge(layers: Sequence[Layer]) -> Merged:
    """Lay `layers` over each other, weakest first. Sections are tables here: layers were validated before."""
    tree: Tree = {}
    origins: dict[Key, Origin] = {}
    for layer in layers:
        for section, values in layer.tree.items():
            into = tree.setdefault(section, {})
            for name, value in values.items():
                key = (section, name)
                into[name] = (*into.get(name, ()), *value) if key in ADDITIVE else value
                origins[key] = layer.origin(key)
    return Merged(tree, origins)


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return what was probably meant by `word`, or None when nothing is close."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None
