"""The members of a JSON body, read by their types; a mistake is told with its JSON pointer. Pure.

Null is the same as absent. A member that nobody reads is refused with the nearest match, as a setting would be.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from supervisord_py.api.names import nearest_hint
from supervisord_py.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_SHOWN = 80


class Members:
    """One object of a body.

    Args:
        document: The object.
        known: Names of the members that it may have.
        at: JSON pointer of the object itself.

    Raises:
        InvalidInputError: It has another member.
    """

    def __init__(self, document: Mapping[str, Any], known: Collection[str], at: str = "") -> None:
        self._at = at
        self._values = {name: value for name, value in document.items() if value is not None}
        for name in self._values:
            if name not in known:
                hint = nearest_hint(name, known)
                hint = hint if hint.startswith("did") else f"known: {', '.join(known)}"
                raise refuse(f"{at}/{name[:_SHOWN]}", f"The body has no use for {name[:_SHOWN]!r}.", hint)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """Return a text that is not empty, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(name, "a text that is not empty")
        return value

    def choice(self, name: str, words: Sequence[str]) -> str | None:
        """Return one of `words`, or None."""
        value = self._values.get(name)
        if value is not None and value not in words:
            raise self._wrong(name, f"one of {', '.join(words)}")
        return value

    def number(self, name: str) -> float | None:
        """Return a finite number that is not negative, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise self._wrong(name, "a number that is not negative, and no larger than a double can be")
        return float(value)

    def signed(self, name: str) -> float | None:
        """Return a finite number, or None: for what is clamped and not refused."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise self._wrong(name, "a number, no larger than a double can be")
        return float(value)

    def whole(self, name: str, lowest: int, highest: int) -> int | None:
        """Return a whole number within bounds, both included, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self._wrong(name, f"a whole number from {lowest} to {highest}")
        return value

    def flag(self, name: str) -> bool:
        """Return True or False; absent is False."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return an object of texts; absent is empty."""
        value = self._values.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise self._wrong(name, "an object of texts")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; absent is empty."""
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and "\0" not in each for each in value):
            raise self._wrong(name, "a list of texts")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return an object of whatever JSON values, or None."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def objects(self, name: str, known: Collection[str]) -> tuple[Members, ...]:
        """Return a list of objects; absent is empty."""
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong(name, "a list of objects")
        return tuple(Members(each, known, f"{self._at}/{name}/{place}") for place, each in enumerate(value))

    def source(self, name: str) -> str | None:
        """Return a text that may be empty, or None."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def missing(self, name: str) -> InvalidInputError:
        """Make the error for a member that must be there."""
        return refuse(f"{self._at}/{name}", f"{self._at}/{name} is missing.", "see: man pxd-api")

    def _wrong(self, name: str, wanted: str) -> InvalidInputError:
        at = f"{self._at}/{name}"
        return refuse(at, f"{at} must be {wanted}.", "see: man pxd-api")


def refuse(pointer: str, message: str, hint: str) -> InvalidInputError:
    """Make the error for one mistake in a body."""
    return InvalidInputError(message, hint=hint, errors=[{"pointer": pointer, "message": message}])
