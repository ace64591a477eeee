"""JSON files that people write: strictly read, and every value and key found by its pointer when an error needs it.

A duplicate key, NaN, a number out of range, half a surrogate pair or a byte order mark is an error, never a surprise
later. It gives values, positions or `JsonSyntaxError`; nothing else escapes, whatever the bytes.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 100
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a text file; both count from 1, columns in characters."""

    line: int
    column: int


class JsonSyntaxError(ValueError):
    """The text is not the JSON that is asked for; `place` says where."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.message = message
        self.place = place


class _Refused(ValueError):
    """Found while parsing, where json does not say where it is."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(message)
        self.token = token


@dataclass(frozen=True)
class Document:
    """A parsed text."""

    value: Any
    text: str

    @cached_property
    def _offsets(self) -> tuple[dict[str, int], dict[str, int]]:
        """Character offsets of values and of keys, by JSON pointer."""
        values: dict[str, int] = {}
        keys: dict[str, int] = {}
        _index(_TOKEN.finditer(self.text), "", values, keys)
        return values, keys

    def place(self, pointer: str) -> Place:
        """Return where the value of `pointer` begins; of its nearest existing parent where there is none."""
        values = self._offsets[0]
        while pointer and pointer not in values:
            pointer = pointer.rpartition("/")[0]
        return place_of(self.text, values.get(pointer, 0))

    def key_place(self, pointer: str) -> Place:
        """Return where the key that `pointer` ends in stands; array members have no key, so their value counts."""
        keys = self._offsets[1]
        return place_of(self.text, keys[pointer]) if pointer in keys else self.place(pointer)


def _index(tokens: Iterator[re.Match[str]], pointer: str, values: dict[str, int], keys: dict[str, int]) -> str:
    """Note the offsets of one value of sound JSON; returns a token that closes what is around it, if it met that."""
    token = next(tokens)
    if token[0] in "}]":
        return token[0]
    values[pointer] = token.start()
    if token[0] == "[":
        index = 0
        while _index(tokens, child(pointer, index), values, keys) != "]" and next(tokens)[0] == ",":
            index += 1
    elif token[0] == "{":
        while (key := next(tokens))[0] != "}":
            own = child(pointer, json.loads(key[0]))
            keys[own] = key.start()
            next(tokens)
            _index(tokens, own, values, keys)
            if next(tokens)[0] == "}":
                break
    return ""


def place_of(text: str, offset: int) -> Place:
    """Turn a character offset into line and column."""
    return Place(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def child(pointer: str, token: str | int) -> str:
    """Append one reference token, escaped as RFC 6901 asks."""
    return f"{pointer}/{str(token).replace('~', '~0').replace('/', '~1')}"


def pointer_of(path: Any) -> str:
    """Join a sequence of keys and indexes to a JSON pointer."""
    pointer = ""
    for token in path:
        pointer = child(pointer, token)
    return pointer


def parse_bytes(raw: bytes) -> Document:
    """Parse UTF-8 without a byte order mark.

    Raises:
        JsonSyntaxError: Whatever is wrong, with its place.
    """
    if raw.startswith(b"\xef\xbb\xbf"):
        raise JsonSyntaxError("the file begins with a byte order mark; save it as UTF-8 without one", Place(1, 1))
    try:
        return parse(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        message = f"not UTF-8: byte 0x{raw[error.start]:02x} ({error.reason})"
        raise JsonSyntaxError(message, place_of(before, len(before))) from None


def parse(text: str) -> Document:
    """Parse one JSON document.

    Raises:
        JsonSyntaxError: Whatever is wrong, with its place.
    """
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise JsonSyntaxError(error.msg, Place(error.lineno, error.colno)) from None
    except _Refused as error:
        raise JsonSyntaxError(str(error), place_of(text, max(0, text.rfind(error.token)))) from None
    except UnicodeEncodeError:
        raise JsonSyntaxError("half of a surrogate pair", place_of(text, text.lower().index("\\ud"))) from None
    except ValueError as error:
        raise JsonSyntaxError(str(error), Place(1, 1)) from None
    return Document(value, text)


def _check_depth(text: str) -> None:
    depth = 0
    if text.count("[") + text.count("{") > MAX_DEPTH:
        for token in _TOKEN.finditer(text):
            depth += (token[0] in "[{") - (token[0] in "]}")
            if depth > MAX_DEPTH:
                raise JsonSyntaxError(f"nested deeper than {MAX_DEPTH} levels", place_of(text, token.start()))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise _Refused(f"the key {key!r} stands twice", json.dumps(key, ensure_ascii=False))
        members[key] = value
    return members


def _refuse_constant(word: str) -> Any:
    raise _Refused(f"{word} is no JSON value", word)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _Refused(f"{digits[:40]} is too large for a number", digits)
    return value
