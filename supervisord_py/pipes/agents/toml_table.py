"""Typed reading of one TOML table: every getter checks, and notes what is wrong instead of raising. Pure.

A getter gives its default for a value that is wrong, so that one pass finds every problem. What no getter asked for is
an unknown key: `refuse_unknown` names it with its nearest match.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.pipes.models import ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from enum import StrEnum

    Choice = TypeVar("Choice", bound=StrEnum)

MAX_QUOTED = 80
_HEADER = re.compile(r"\s*\[\[?(?P<name>[^\[\]]+)\]\]?\s*(?:#.*)?$")


class TomlTable:
    """One table of a file.

    Args:
        members: The table itself.
        file, text: The file it stands in and all of its text, for messages.
        path: Its keys from the top.
        problems: Where problems go; shared with the tables below.
    """

    def __init__(
        self, members: Mapping[str, Any], *, file: str, text: str, path: tuple[str, ...], problems: list[ConfigProblem]
    ) -> None:
        self.members = members
        self.file = file
        self.text = text
        self.path = path
        self.problems = problems
        self._asked: set[str] = set()

    @property
    def name(self) -> str:
        """`agents.pi`."""
        return ".".join(self.path)

    def wrong(self, key: str, detail: str, hint: str) -> None:
        """Note a problem with the value of `key`."""
        line = line_of(self.text, self.path, key)
        self.problems.append(ConfigProblem(f"[{self.name}] {key}: {detail}", hint, self.file, line, key=key))

    def raw(self, key: str) -> Any:
        """Return the value unchecked, None where it is absent."""
        self._asked.add(key)
        return self.members.get(key)

    def words(self, key: str) -> str | None:
        """Return a text that is not empty."""
        value = self.raw(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        self._unfit(key, value, "a text in quotes that is not empty")
        return None

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts."""
        value = self.raw(key)
        if value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            return None if value is None else tuple(value)
        self._unfit(key, value, 'a list of texts: ["a", "b"]')
        return None

    def text_or_texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, which may be written as one text."""
        value = self.raw(key)
        return (value,) if isinstance(value, str) else self.texts(key)

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        value = self.raw(key)
        if value is None or isinstance(value, bool):
            return value
        self._unfit(key, value, "true or false")
        return None

    def amount(self, key: str, *, low: float = 0.0) -> float | None:
        """Return a number of at least `low`."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= low:
            return value
        self._unfit(key, value, f"a number of at least {low:g}")
        return None

    def count(self, key: str, *, low: int = 1) -> int | None:
        """Return a whole number of at least `low`."""
        value = self.raw(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= low):
            return value
        self._unfit(key, value, f"a whole number of at least {low}")
        return None

    def choice(self, key: str, choices: type[Choice]) -> Choice | None:
        """Return one of some words."""
        value = self.words(key)
        if value is None:
            return None
        if value not in set(choices):
            known = [each.value for each in choices]
            self.wrong(key, f"{quoted(value)} is none of {', '.join(known)}", _meant(value, known))
            return None
        return choices(value)

    def table(self, key: str) -> TomlTable | None:
        """Return a table below this one."""
        value = self.raw(key)
        if value is None or isinstance(value, dict):
            return None if value is None else self.below(key, value)
        self._unfit(key, value, f"a table: [{self.name}.{key}]")
        return None

    def tables(self, key: str) -> tuple[TomlTable, ...] | None:
        """Return a list of tables below this one."""
        value = self.raw(key)
        if value is None or (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
            return None if value is None else tuple(self.below(key, each) for each in value)
        self._unfit(key, value, f"a list of tables: [[{self.name}.{key}]]")
        return None

    def below(self, key: str, members: Mapping[str, Any]) -> TomlTable:
        """Return the view of a table that stands at `key`; counts as asked for."""
        self._asked.add(key)
        return TomlTable(members, file=self.file, text=self.text, path=(*self.path, key), problems=self.problems)

    def refuse_unknown(self) -> None:
        """Note every key that nobody asked for."""
        for key in self.members:
            if key not in self._asked:
                self.wrong(key, "there is no such key", _meant(key, self._asked))

    def _unfit(self, key: str, value: Any, wanted: str) -> None:
        self.wrong(key, f"{quoted(value)} is not {wanted}", f"write {wanted}, or leave the key out")


def quoted(value: Any) -> str:
    """Quote a value in a message, shortened."""
    shown = repr(value)
    return shown if len(shown) <= MAX_QUOTED else f"{shown[: MAX_QUOTED - 1]}…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:MAX_QUOTED].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def line_of(text: str, path: tuple[str, ...], key: str | None = None) -> int | None:
    """Return the line on which a key of a table stands (else its table's header, else None), counted from 1.

    Headers are found by their words; a key inside an inline table is told by the line of the table that holds it.
    """
    lines = text.splitlines()
    header = next((number for number, line in enumerate(lines, 1) if _is_header(line, path)), None)
    if header is None:
        return line_of(text, path[:-1], path[-1]) if len(path) > 1 else None
    for number, line in enumerate(lines[header:], header + 1):
        if _HEADER.match(line):
            below = key is not None and _is_header(line, (*path, key))
            return number if below else header
        if key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return header


def _is_header(line: str, path: tuple[str, ...]) -> bool:
    found = _HEADER.match(line)
    return found is not None and re.sub(r"[\"'\s]", "", found["name"]) == ".".join(path).replace(" ", "")


def _meant(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    meant = nearest(name, known)
    return f"did you mean {meant!r}?" if meant else f"known are {', '.join(known)}"
