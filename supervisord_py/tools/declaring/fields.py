"""Typed reading of one JSON object: every getter checks type and range, and notes what is wrong instead of raising.

A getter gives its default for a value that is wrong, so that reading goes on and one pass finds every problem. What no
getter asked for is an unknown key: `refuse_unknown` names it with its nearest match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.tools.declaring.json_positions import child
from supervisord_py.tools.declaring.problems import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from enum import StrEnum
    from pathlib import Path

    from supervisord_py.tools.declaring.json_positions import Document
    from supervisord_py.tools.declaring.problems import Problems

    Choice = TypeVar("Choice", bound=StrEnum)

MAX_TEXT = 65536


@dataclass(frozen=True, slots=True)
class Span:
    """Inclusive bounds of a number, in the unit that the key's name says."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def type_name(value: Any) -> str:
    """Name a JSON value's type as a person would."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


class Fields:
    """One JSON object at `pointer` of a document.

    Args:
        file: The file, for messages.
        document: The parsed file.
        pointer: Where the object stands in it.
        members: The object itself.
        problems: Where problems go.

    Attributes:
        lenient_nulls: Null counts as absent, here and below.
    """

    def __init__(
        self, file: Path, document: Document, pointer: str, members: Mapping[str, Any], problems: Problems
    ) -> None:
        self.file = file
        self.document = document
        self.pointer = pointer
        self.members = members
        self.problems = problems
        self.lenient_nulls = False
        self._asked: set[str] = set()

    def wrong(self, key: str, message: str) -> None:
        """Note a problem with the value of `key`."""
        self.problems.add(self.file, self.document, child(self.pointer, key), message)

    def missing(self, key: str) -> None:
        """Note that `key` is required and absent."""
        self.problems.add(self.file, self.document, self.pointer, f"the key {key!r} is missing")

    def has(self, key: str) -> bool:
        """Say whether the key is there; a null counts only where nulls do."""
        return key in self.members and not (self.lenient_nulls and self.members[key] is None)

    def present(self) -> dict[str, Any]:
        """Return the members that are there."""
        return {key: value for key, value in self.members.items() if self.has(key)}

    def _below(self, pointer: str, members: Mapping[str, Any]) -> Fields:
        below = Fields(self.file, self.document, pointer, members, self.problems)
        below.lenient_nulls = self.lenient_nulls
        return below

    def raw(self, key: str) -> Any:
        """Return the value unchecked, None where it is absent; counts as asked for."""
        self._asked.add(key)
        return self.members.get(key)

    def _typed(self, key: str, wanted: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
        """Return the value as only element, or nothing when it is absent or wrong."""
        self._asked.add(key)
        if not self.has(key):
            return ()
        value = self.members[key]
        if fits(value):
            return (value,)
        self.wrong(key, f"must be {wanted}, not {type_name(value)}")
        return ()

    def text(self, key: str, default: str) -> str:
        """Read a string without NUL."""
        for value in self._typed(key, "a string", lambda value: isinstance(value, str)):
            if "\0" not in value and len(value) <= MAX_TEXT:
                return str(value)
            self.wrong(key, f"must be a string of at most {MAX_TEXT} characters without NUL")
        return default

    def optional_text(self, key: str) -> str | None:
        """Read a non-empty string, None where the key is absent."""
        value = self.text(key, "")
        if not value and self.members.get(key) == "":
            self.wrong(key, "must not be empty")
        return value or None

    def boolean(self, key: str, *, default: bool) -> bool:
        """Read true or false."""
        for value in self._typed(key, "true or false", lambda value: isinstance(value, bool)):
            return bool(value)
        return default

    def integer(self, key: str, span: Span, default: int) -> int:
        """Read a whole number in a span; 60.0 is one, true is none."""
        value = self.optional_integer(key, span)
        return default if value is None else value

    def optional_integer(self, key: str, span: Span) -> int | None:
        """Read a whole number in a span, None where the key is absent."""
        for value in self._typed(key, "a whole number", _is_whole):
            if value in span:
                return int(value)
            self.wrong(key, f"must be {span}, not {value:g}" if abs(value) < 10**15 else f"must be {span}")
        return None

    def number(self, key: str, span: Span, default: float) -> float:
        """Read a number in a span."""
        for value in self._typed(key, "a number", _is_number):
            if value in span:
                return float(value)
            self.wrong(key, f"must be {span}, not {value:g}" if abs(value) < 10**15 else f"must be {span}")
        return default

    def choice(self, key: str, choices: type[Choice], default: Choice) -> Choice:
        """Read one word of a closed list."""
        known = [each.value for each in choices]
        for value in self._typed(key, " or ".join(repr(each) for each in known), lambda value: isinstance(value, str)):
            if value in known:
                return choices(value)
            self.wrong(key, f"must be one of {', '.join(known)}, not {value!r}{did_you_mean(value, known)}")
        return default

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Read an array of non-empty strings without NUL, None where the key is absent or wrong."""
        for value in self._typed(key, "an array of strings", lambda value: isinstance(value, list)):
            bad = [index for index, each in enumerate(value) if not _is_plain_text(each)]
            for index in bad:
                self.problems.add(
                    self.file,
                    self.document,
                    child(child(self.pointer, key), index),
                    "must be a non-empty string without NUL",
                )
            return None if bad else tuple(value)
        return None

    def nested(self, key: str) -> Fields | None:
        """Read an object, None where the key is absent or wrong."""
        for value in self._typed(key, "an object", lambda value: isinstance(value, dict)):
            return self._below(child(self.pointer, key), value)
        return None

    def nested_list(self, key: str) -> list[Fields]:
        """Read an array of objects, empty where the key is absent or wrong."""
        found: list[Fields] = []
        for value in self._typed(key, "an array of objects", lambda value: isinstance(value, list)):
            for index, each in enumerate(value):
                pointer = child(child(self.pointer, key), index)
                if isinstance(each, dict):
                    found.append(self._below(pointer, each))
                else:
                    self.problems.add(self.file, self.document, pointer, f"must be an object, not {type_name(each)}")
        return found

    def refuse_unknown(self, elsewhere: Mapping[str, str] | None = None, known: Iterable[str] = ()) -> None:
        """Note every key that nobody asked for, with the nearest known one.

        Args:
            elsewhere: Keys that belong somewhere else, with a sentence that says where.
            known: Further keys that are allowed.
        """
        allowed = self._asked | set(known)
        for key in self.members:
            if key not in allowed:
                place = (elsewhere or {}).get(key)
                message = f"unknown key {key!r}" + (f": {place}" if place else did_you_mean(key, allowed))
                self.problems.add_key(self.file, self.document, child(self.pointer, key), message)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


def _is_plain_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value and len(value) <= MAX_TEXT
