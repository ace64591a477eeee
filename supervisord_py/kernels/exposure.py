"""Which kinds of cells this daemon offers: Python, bash, or both. Pure."""

from __future__ import annotations

from enum import StrEnum


class Expose(StrEnum):
    """`[kernels] expose`."""

    BOTH = "both"
    PYTHON = "python"
    BASH = "bash"

    @property
    def python(self) -> bool:
        """Whether Python cells are wanted."""
        return self is not Expose.BASH

    @property
    def bash(self) -> bool:
        """Whether bash cells are wanted."""
        return self is not Expose.PYTHON


WORDS = {
    "0": Expose.BASH,
    "bash": Expose.BASH,
    "1": Expose.PYTHON,
    "py": Expose.PYTHON,
    "mix": Expose.BOTH,
    "both": Expose.BOTH,
}
"""What PX_PY and PI_PY may say."""


def expose_of(word: str) -> Expose | None:
    """Return what a word of PX_PY or PI_PY means; None for a word that they do not know."""
    return WORDS.get(word.strip().lower())


def degraded(wanted: Expose, *, python: bool, bash: bool) -> Expose | None:
    """Return what is offered of what is wanted.

    Where Python cells are wanted and cannot be had, bash takes their place, even where only Python was asked for: an
    agent that can do something is better than one that can do nothing. The other way round nothing is widened: who
    asked for bash alone did not want Python.

    Args:
        wanted: By setting.
        python: There is a Python for cells.
        bash: There is a bash.

    Returns:
        None when nothing at all can be offered.
    """
    if wanted.python and python:
        return Expose.BOTH if wanted.bash and bash else Expose.PYTHON
    return Expose.BASH if bash else None
