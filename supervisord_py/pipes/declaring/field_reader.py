"""One table of the front matter, asked key by key: every answer has its type, every wrong one is noted with its place.

Nothing is raised while reading, so that a person learns of all mistakes at once; a wrong value reads as its default.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from supervisord_py.pipes.declaring.nodes import Items, Node, Scalar, Table, kind_of
from supervisord_py.pipes.declaring.problems import did_you_mean, shown
from supervisord_py.pipes.declaring.values import WrongValueError, flag_of, seconds_of, whole_of
from supervisord_py.pipes.definition import ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.pipes.declaring.nodes import Entry

T = TypeVar("T")


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
            return self._listed_argv(key, node)
        if not isinstance(node, Scalar):
            self.text(key)
            return ()
        try:
            words = tuple(shlex.split(node.text))
        except ValueError as error:
            self.complain(key, f"cannot be split into words: {error}", "close the quote, or write a list: [prog, arg]")
            return ()
        return self._checked_argv(key, words)

    def _listed_argv(self, key: str, node: Items) -> tuple[str, ...]:
        words = []
        for each in node.items:
            if not isinstance(each, Scalar):
                hint = "write a list of texts: [prog, arg]"
                self.complain(key, f"must be a list of words, but holds {kind_of(each)}", hint, each)
                return ()
            words.append(each.text)
        return self._checked_argv(key, tuple(words))

    def _checked_argv(self, key: str, words: tuple[str, ...]) -> tuple[str, ...]:
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
