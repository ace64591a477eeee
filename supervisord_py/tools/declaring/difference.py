"""Where do two JSON values differ? For drift of a schema, and for answers against their reference.

Pure. Every difference is a JSON pointer and two shortened values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.tools.declaring.json_positions import child
from supervisord_py.tools.declaring.problems import clip

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DIFFERENCES = 50


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers are equal when they differ by at most `absolute`, or by `relative` of the expected one."""

    absolute: float = 0.0
    relative: float = 0.0

    def allows(self, expected: float, actual: float) -> bool:
        """Say whether `actual` is near enough; not a number equals itself only."""
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        return expected == actual or abs(actual - expected) <= max(self.absolute, self.relative * abs(expected))


EXACT = Tolerance()


def differences(expected: Any, actual: Any, tolerance: Tolerance = EXACT) -> list[str]:
    """Return at most MAX_DIFFERENCES sentences `/pointer: expected …, got …`; empty when the values are equal."""
    found: list[str] = []
    for sentence in _walk("", expected, actual, tolerance):
        found.append(sentence)
        if len(found) == MAX_DIFFERENCES:
            break
    return found


def _walk(pointer: str, expected: Any, actual: Any, tolerance: Tolerance) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in dict.fromkeys([*expected, *actual]):
            own = child(pointer, key)
            if key not in actual:
                yield f"{own}: missing, expected {_shown(expected[key])}"
            elif key not in expected:
                yield f"{own}: not expected, got {_shown(actual[key])}"
            else:
                yield from _walk(own, expected[key], actual[key], tolerance)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{pointer or '/'}: expected {len(expected)} items, got {len(actual)}"
        for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
            yield from _walk(child(pointer, index), left, right, tolerance)
    elif not _equal(expected, actual, tolerance):
        yield f"{pointer or '/'}: expected {_shown(expected)}, got {_shown(actual)}"


def _equal(expected: Any, actual: Any, tolerance: Tolerance) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, (int, float)) and isinstance(actual, (int, float)):
        return tolerance.allows(expected, actual)
    return bool(expected == actual)


def _shown(value: Any) -> str:
    return clip(repr(value), 80)
