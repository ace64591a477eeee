"""JSON that knows where it stands: every value of a document by JSON pointer, with its line and column.

The parser is strict where `json` is not, because its only inputs are files that people write: a duplicate key, NaN, a
lone surrogate, a trailing comma, a comment or a byte order mark is an error at a place, never a surprise later.
It gives values, positions or `JsonSyntaxError`; nothing else escapes, whatever the bytes.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100
MAX_DIGITS = 400
"""Longer numbers are typing errors; int() refuses past 4300 digits on its own, with a less helpful text."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_STRINGS = json.JSONDecoder()
_WORDS = {"true": True, "false": False, "null": None}
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a text file; both count from 1, columns in characters."""

    line: int
    column: int


class JsonSyntaxError(ValueError):
    """The text is not the JSON that is asked for; `place` and `pointer` say where."""

    def __init__(self, message: str, place: Place, pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text. `values` and `keys` map JSON pointers to character offsets."""

    value: Any
    text: str
    values: dict[str, int]
    keys: dict[str, int]

    def place(self, pointer: str) -> Place:
        """Return where the value of `pointer` begins; of its nearest existing parent where there is none."""
        while pointer and pointer not in self.values:
            pointer = pointer.rpartition("/")[0]
        return place_of(self.text, self.values.get(pointer, 0))

    def key_place(self, pointer: str) -> Place:
        """Return where the key that `pointer` ends in stands; array members have no key, so their value counts."""
        if pointer in self.keys:
            return place_of(self.text, self.keys[pointer])
        return self.place(pointer)

    def with_value(self, pointer: str, value: Any) -> str:
        """Return the text with another value at `pointer`, which must exist; every other character stays as it is."""
        start = self.values[pointer]
        _, end = _Scanner(self.text).scan(start, pointer, 0)
        return self.text[:start] + json.dumps(value, ensure_ascii=False) + self.text[end:]


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
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        message = f"not UTF-8: byte 0x{raw[error.start]:02x} ({error.reason})"
        raise JsonSyntaxError(message, place_of(before, len(before))) from None
    return parse(text)


def parse(text: str) -> Document:
    """Parse one JSON document.

    Raises:
        JsonSyntaxError: Whatever is wrong, with its place.
    """
    scanner = _Scanner(text)
    value, end = scanner.scan(scanner.skip(0), "", 0)
    end = scanner.skip(end)
    if end != len(text):
        raise scanner.error("text after the end of the document", end)
    return Document(value, text, scanner.values, scanner.keys)


class _Scanner:
    """Recursive descent over one text; methods take an offset and return a value and the offset after it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    def skip(self, at: int) -> int:
        """Return the offset of the next character that is no white space."""
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def error(self, message: str, at: int, pointer: str = "") -> JsonSyntaxError:
        return JsonSyntaxError(message, place_of(self.text, at), pointer)

    def scan(self, at: int, pointer: str, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels", at)
        self.values[pointer] = at
        match self.text[at : at + 1]:
            case "{":
                return self.scan_object(at, pointer, depth)
            case "[":
                return self.scan_array(at, pointer, depth)
            case '"':
                return self.scan_string(at, pointer)
            case "":
                raise self.error("the text ends where a value should stand", at, pointer)
            case _:
                return self.scan_scalar(at, pointer)

    def scan_object(self, at: int, pointer: str, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        start, at = at, self.skip(at + 1)
        if self.text[at : at + 1] == "}":
            return members, at + 1
        while True:
            key, at = self.scan_key(at, pointer, members)
            members[key], at = self.scan(at, child(pointer, key), depth + 1)
            at = self.skip(at)
            if self.text[at : at + 1] == "}":
                return members, at + 1
            at = self.after_comma(at, start, "}", pointer)

    def scan_key(self, at: int, pointer: str, members: dict[str, Any]) -> tuple[str, int]:
        if self.text[at : at + 1] != '"':
            raise self.error('expected a key in double quotes, as in "name": …', at, pointer)
        key, end = self.scan_string(at, pointer)
        own = child(pointer, key)
        if key in members:
            first = place_of(self.text, self.keys[own])
            raise self.error(f"the key {key!r} stands twice; the first is on line {first.line}", at, own)
        self.keys[own] = at
        end = self.skip(end)
        if self.text[end : end + 1] != ":":
            raise self.error(f"expected ':' after the key {key!r}", end, own)
        return key, self.skip(end + 1)

    def scan_array(self, at: int, pointer: str, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        start, at = at, self.skip(at + 1)
        if self.text[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, at = self.scan(at, child(pointer, len(items)), depth + 1)
            items.append(item)
            at = self.skip(at)
            if self.text[at : at + 1] == "]":
                return items, at + 1
            at = self.after_comma(at, start, "]", pointer)

    def after_comma(self, at: int, start: int, closing: str, pointer: str) -> int:
        """Pass the comma between two members, and say what is wrong where there is none or one too many."""
        if self.text[at : at + 1] == "":
            opened = place_of(self.text, start)
            raise self.error(f"the text ends inside what was opened on line {opened.line}", at, pointer)
        if self.text[at] != ",":
            raise self.error(f"expected ',' or '{closing}'", at, pointer)
        after = self.skip(at + 1)
        if self.text[after : after + 1] == closing:
            raise self.error(f"trailing comma before '{closing}'", at, pointer)
        return after

    def scan_string(self, at: int, pointer: str) -> tuple[str, int]:
        try:
            value, end = _STRINGS.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            raise self.error(f"broken string: {error.msg}", error.pos, pointer) from None
        if _SURROGATE.search(value):
            raise self.error("broken string: half of a surrogate pair", at, pointer)
        return value, end

    def scan_scalar(self, at: int, pointer: str) -> tuple[Any, int]:
        word = _WORD.match(self.text, at)
        if word:
            if word.group() not in _WORDS:
                raise self.error(f"{word.group()[:40]} is no JSON value", at, pointer)
            return _WORDS[word.group()], word.end()
        number = _NUMBER.match(self.text, at)
        if number is None:
            shown = "a comment is no JSON" if self.text[at] in "/#" else f"unexpected {self.text[at]!r}"
            raise self.error(shown, at, pointer)
        return self.scan_number(number, pointer), number.end()

    def scan_number(self, number: re.Match[str], pointer: str) -> int | float:
        digits = number.group()
        if len(digits) > MAX_DIGITS:
            raise self.error(f"a number of more than {MAX_DIGITS} digits", number.start(), pointer)
        if number.group(1) is None and number.group(2) is None:
            return int(digits)
        value = float(digits)
        if math.isinf(value):
            raise self.error(f"{digits[:40]} is too large for a number", number.start(), pointer)
        return value
