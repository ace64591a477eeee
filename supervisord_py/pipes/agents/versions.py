"""Version numbers as programs print them, and ranges of them (`>=0.74,<2`). Pure."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Version = tuple[int, ...]

_NUMBER = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+)")
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class VersionRange:
    """What a version must satisfy: all bounds. `text` is as it was written."""

    text: str
    bounds: tuple[tuple[str, Version], ...]

    def __contains__(self, version: Version) -> bool:
        return all(_OPERATORS[sign](_compare(version, bound), 0) for sign, bound in self.bounds)

    def __str__(self) -> str:
        return self.text


def parse_version(text: str) -> Version | None:
    """Return the first version number in what a program printed, or None: `v20.20.2`, `codex-cli 0.169.0`."""
    found = _NUMBER.search(text)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def version_text(version: Version) -> str:
    """Return `0.74.2`."""
    return ".".join(str(part) for part in version)


def parse_range(text: str) -> VersionRange:
    """Read a range.

    Raises:
        ValueError: It is none; the message says how one looks.
    """
    bounds = []
    for part in text.split(","):
        found = _BOUND.fullmatch(part.strip())
        if found is None:
            raise ValueError(f'{part.strip()!r} is no bound of a version; write for example ">=0.74,<2"')
        bounds.append((found[1], tuple(int(number) for number in found[2].split("."))))
    return VersionRange(text, tuple(bounds))


def _compare(one: Version, other: Version) -> int:
    """Return a negative number, 0 or a positive one; what is not said counts as 0."""
    for mine, its in zip_longest(one, other, fillvalue=0):
        if mine != its:
            return mine - its
    return 0
