"""A duration on the command line: a number of seconds, none of them below zero, none without end."""

from __future__ import annotations

import math

import click

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Seconds(click.FloatRange):
    """Takes a finite number of seconds; `nan` and `inf` are numbers for Python, but nothing to wait for."""

    name = "seconds"

    def __init__(self, lowest: float | None = 0) -> None:
        super().__init__(min=lowest)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error where it is none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number of seconds.", param, ctx)
        return number


SECONDS = Seconds()
CLAMPED_SECONDS = Seconds(None)
"""Of what the daemon clamps to its bounds, and tells so."""
