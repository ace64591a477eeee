"""One table of the front matter, asked key by key: every answer has its type, every wrong one is noted with its place.

Nothing is raised while reading, so that a person learns of all mistakes at once; a wrong value reads as its default.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from supervisord_py.config.documents import did_you_mean
from supervisord_py.pipes.declaring.front_matter import Items, Node, Scalar, Table, kind_of
from supervisord_py.pipes.models import ConfigProblem
from supervisord_py.pipes.schedule import shown, span_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.pipes.declaring.front_matter import Entry

T = TypeVar("T")
_YES = frozenset({"true", "yes", "on"})
_NO = frozenset({"false", "no", "off"})
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?")
_COUNTED = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)")

_COUNTS = {"": 1, "k": 1000, "m": 1_000_000, "b": 1_000_000_000}
_SIZES = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1024),
    **dict.fromkeys(("m", "mb", "mib"), 1024**2),
    **dict.fromkeys(("g", "gb", "gib"), 1024**3),
}
MAX_SECONDS = 366 * 86400.0


class WrongValueError(ValueError):
    """A text that is no value of its type: what is wrong, and what to write."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


def flag_of(text: str) -> bool:
    """Read yes or no, in any of the usual words."""
    word = text.strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise WrongValueError(f"{shown(text)} is neither true nor false", "write true or false")


def whole_of(text: str, least: int, most: int) -> int:
    """Read a whole number."""
    found = text.strip()
    if not _WHOLE.fullmatch(found):
        raise WrongValueError(f"{shown(text)} is no whole number", f"write a number from {least} to {most}")
    value = int(found)
    if not least <= value <= most:
        raise WrongValueError(f"{value} is out of range", f"write a number from {least} to {most}")
    return value


def money_of(text: str) -> float:
    """Read an amount of US dollars, more than nothing; a $ in front is allowed."""
    found = text.strip().removeprefix("$")
    if not _NUMBER.fullmatch(found) or float(found) <= 0:
        raise WrongValueError(f"{shown(text)} is no amount of dollars", "write an amount above 0, such as 0.50")
    return float(found)


def count_of(text: str) -> int:
    """Read a number above 0, which may end in k (thousand), M (million) or B."""
    return _scaled(text, _COUNTS, "write a number above 0, such as 200000, 200k or 1.5M")


def size_of(text: str) -> int:
    """Read bytes: `512MB`, `2GiB`; a unit is a power of 1024."""
    return _scaled(text, _SIZES, "write a size such as 512MB or 2GB")


def _scaled(text: str, units: dict[str, int], hint: str) -> int:
    found = _COUNTED.fullmatch(text.strip().lower().replace("_", ""))
    value = float(found[1]) * units.get(found[2], 0) if found else 0
    if not 1 <= value < 2**53:
        raise WrongValueError(f"{shown(text)} is not understood", hint)
    return int(value)


def seconds_of(text: str) -> float:
    """Read a time span: seconds, or `90s`, `10m`, `1h30m`, `2 hours`; more than 0, at most a year."""
    found = text.strip().lower()
    value = float(found) if _NUMBER.fullmatch(found) else span_of(found)
    if value is None:
        raise WrongValueError(f"{shown(text)} is no time span", "write seconds (600), or 90s, 10m, 1h30m")
    if not 0 < value <= MAX_SECONDS:
        raise WrongValueError(f"{shown(text)} is out of range", "write a time above 0 and up to 366 days")
    return value


@dataclass(slots=True)
class Findings:
    """What is wrong with one file, and what is doubtful."""

    file: str
    problems: list[ConfigProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Fields:
    """The keys of one table. `path` stands before each key in messages: `retries.` for the table of `retries`."""

    def __init__(self, table: Table, findings: Findings, path: str = "") -> None:
        self.findings = findings
        self._entries = {each.key: each for each in table.entries}
        self._path = path

    def entry(self, key: str) -> Entry | None:
        """Return a key with its value; None where it is absent or null."""
        entry = self._entries.get(key)
        if entry is None or (isinstance(entry.value, Scalar) and entry.value.is_null):
            return None
        return entry

    def node(self, key: str) -> Node | None:
        """Return the value of a key; None where it is absent or null."""
        entry = self.entry(key)
        return entry.value if entry is not None else None

    def complain(self, key: str, detail: str, hint: str, node: Node | None = None) -> None:
        """Note that a key is wrong, at `node` or else at its value or the key itself."""
        entry = self._entries.get(key)
        place = node.place if node is not None else entry.value.place if entry is not None else None
        line, column = (place.line, place.column) if place is not None else (None, None)
        name = self._path + key
        self.findings.problems.append(ConfigProblem(f"{name}: {detail}", hint, self.findings.file, line, column, name))

    def warn(self, sentence: str) -> None:
        """Note what is doubtful."""
        self.findings.warnings.append(sentence)

    def text(self, key: str) -> str | None:
        """Read a text; None where there is none."""
        node = self.node(key)
        if node is None:
            return None
        if not isinstance(node, Scalar):
            self.complain(key, f"must be text, not {kind_of(node)}", f"write {self._path}{key}: some text")
            return None
        return node.text.strip() or None

    def read(self, key: str, default: T, reading: Callable[[str], T]) -> T:
        """Read a scalar with a function that may raise WrongValueError."""
        text = self.text(key)
        if text is None:
            return default
        try:
            return reading(text)
        except WrongValueError as error:
            self.complain(key, error.detail, error.hint)
            return default

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Read true or false."""
        return self.read(key, default, flag_of)

    def whole(self, key: str, least: int, most: int) -> int | None:
        """Read a whole number between bounds."""
        return self.read(key, None, lambda text: whole_of(text, least, most))

    def seconds(self, key: str) -> float | None:
        """Read a time span in seconds."""
        return self.read(key, None, seconds_of)

    def one_of(self, key: str, words: tuple[str, ...]) -> str | None:
        """Read one word of a few."""
        word = self.text(key)
        if word is None or word.lower() in words:
            return word.lower() if word else None
        self.complain(key, f"{shown(word)} is not known{did_you_mean(word, words)}", f"write {', '.join(words)}")
        return None

    def texts(self, key: str) -> tuple[tuple[str, Node], ...]:
        """Read a text or a list of texts, each with its node; empty ones are left out."""
        node = self.node(key)
        if node is None:
            return ()
        found = []
        for each in node.items if isinstance(node, Items) else (node,):
            if not isinstance(each, Scalar):
                self.complain(key, f"must be text or a list of texts, but holds {kind_of(each)}", "write texts", each)
            elif each.text.strip() and not each.is_null:
                found.append((each.text.strip(), each))
        return tuple(found)

    def argv(self, key: str) -> tuple[str, ...]:
        """Read a program with its arguments: a line split as a shell splits words, or a list as it is."""
        node = self.node(key)
        if isinstance(node, Items):
            wrong = next((each for each in node.items if not isinstance(each, Scalar)), None)
            if wrong is not None:
                hint = "write a list of texts: [prog, arg]"
                self.complain(key, f"must be a list of words, but holds {kind_of(wrong)}", hint, wrong)
                return ()
            words = tuple(each.text for each in node.items if isinstance(each, Scalar))
        elif not isinstance(node, Scalar):
            self.text(key)
            return ()
        else:
            try:
                words = tuple(shlex.split(node.text))
            except ValueError as error:
                hint = "close the quote, or write a list: [prog, arg]"
                self.complain(key, f"cannot be split into words: {error}", hint)
                return ()
        if not words or not words[0]:
            self.complain(key, "names no program", f"write {self._path}{key}: ./program --flag")
            return ()
        return words

    def table(self, key: str, known: tuple[str, ...]) -> Fields | None:
        """Read a map of our own, in which an unknown key is a mistake; None where there is none."""
        node = self.node(key)
        if not isinstance(node, Table):
            if node is not None:
                hint = f"write keys of {', '.join(known)} under {key}:"
                self.complain(key, f"must be a map, not {kind_of(node)}", hint)
            return None
        inner = Fields(node, self.findings, f"{self._path}{key}.")
        for each in node.entries:
            if each.key not in known:
                nearest = did_you_mean(each.key, known)
                inner.complain(each.key, f"is not known{nearest}", f"keys are {', '.join(known)}", _key_node(each))
        return inner


def _key_node(entry: Entry) -> Scalar:
    return Scalar(entry.key, entry.place, entry.span)
