"""What is wrong with one tool's files, all of it: collected while reading, raised once.

The first problem is the detail of the error, and every one is in its `errors` member, so that a person mends a file
in one go.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from supervisord_py.tools.declaring.json_positions import Document, JsonSyntaxError, Place

MAX_PROBLEMS = 100
MAX_MESSAGE = 400


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Line and column count from 1; None where the file itself is the matter."""

    file: str
    message: str
    pointer: str = ""
    line: int | None = None
    column: int | None = None

    def where(self) -> str:
        """Return `file, line N, column N, at /pointer`, as far as known."""
        parts = [self.file]
        if self.line is not None:
            parts.append(f"line {self.line}, column {self.column}")
        if self.pointer:
            parts.append(f"at {self.pointer}")
        return ", ".join(parts)

    def members(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "pointer": self.pointer,
            "message": self.message,
        }


@dataclass(slots=True)
class Problems:
    """A growing list of problems and warnings of one tool."""

    unit: str
    found: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_file(self, file: Path, message: str) -> None:
        """Note that a file as a whole is wrong: missing, unreadable, too large."""
        self.found.append(Problem(str(file), message))

    def add_syntax(self, file: Path, error: JsonSyntaxError) -> None:
        """Note that a file is not JSON."""
        self._add(file, error.message, "", error.place)

    def add(self, file: Path, document: Document, pointer: str, message: str) -> None:
        """Note that the value at `pointer` is wrong."""
        self._add(file, message, pointer, document.place(pointer))

    def add_key(self, file: Path, document: Document, pointer: str, message: str) -> None:
        """Note that the key at the end of `pointer` is wrong."""
        self._add(file, message, pointer, document.key_place(pointer))

    def _add(self, file: Path, message: str, pointer: str, place: Place) -> None:
        self.found.append(Problem(str(file), clip(message), pointer, place.line, place.column))

    def warn(self, message: str) -> None:
        """Note what is doubtful but no error."""
        self.warnings.append(clip(message))

    def raise_if_any(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: With the first problem as detail and all of them in `errors`.
        """
        if self.found:
            raise self.error()

    def error(self) -> ConfigError:
        """Return the problems as one error; there must be at least one."""
        first = self.found[0]
        more = f" (and {len(self.found) - 1} more)" if len(self.found) > 1 else ""
        return ConfigError(
            f"{first.where()}: {first.message}{more}",
            hint=f"mend the file, then: pxctl tools validate {self.unit.partition(':')[2]}",
            unit=self.unit,
            file=first.file,
            line=first.line,
            column=first.column,
            pointer=first.pointer,
            errors=[problem.members() for problem in self.found[:MAX_PROBLEMS]],
        )


def clip(text: str, limit: int = MAX_MESSAGE) -> str:
    """Shorten a message that quotes what somebody wrote."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the nearest known name, or the empty string."""
    nearest = nearest_of(name, known)
    return f"; did you mean {nearest!r}?" if nearest else ""


def nearest_of(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `name`, or None when none is near."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:100].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None
