"""What is wrong with one pipe's file: told with line and cure, all of it at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.pipes.models import BrokenPipe, ConfigProblem

MAX_PROBLEMS = 100


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
