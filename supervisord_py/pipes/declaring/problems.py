"""What is wrong with one pipe's file: told with line and cure, all of it at once. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisord_py.pipes.definition import BrokenPipe, ConfigProblem

MAX_PROBLEMS = 100
MAX_MESSAGE = 400


class DeclarationError(Exception):
    """A file cannot be used; `problems` has at least one member."""

    def __init__(self, *problems: ConfigProblem) -> None:
        super().__init__(problems[0].text)
        self.problems = problems


def config_error(broken: BrokenPipe) -> ConfigError:
    """Return what is wrong as the error of every surface; all problems are in its `errors` member."""
    return error_of((broken.problem, *broken.more), f"pipe:{broken.name}")


def error_of(problems: Sequence[ConfigProblem], unit: str | None) -> ConfigError:
    """Return problems, of which there is at least one, as one error."""
    first = problems[0]
    place = first.file if first.line is None else f"{first.file}:{first.line}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ConfigError(
        f"{place}: {first.detail}{more}",
        hint=first.hint,
        unit=unit,
        file=first.file,
        line=first.line,
        column=first.column,
        key=first.key,
        errors=[members(each) for each in problems[:MAX_PROBLEMS]],
    )


def members(problem: ConfigProblem) -> dict[str, Any]:
    """Return the JSON form of one problem."""
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "detail": problem.detail,
        "hint": problem.hint,
    }


def clip(text: str, limit: int = MAX_MESSAGE) -> str:
    """Shorten what quotes somebody's text."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shown(text: str) -> str:
    """Quote somebody's text in a message: one line, not long, control characters visible."""
    return repr(clip(text, 80))


def nearest_of(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name nearest to `name`, or None when none is near."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:100].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or the empty string."""
    nearest = nearest_of(name, known)
    return f"; did you mean {nearest!r}?" if nearest else ""
