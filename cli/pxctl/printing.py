"""Tables and name-value lists onto stdout, in the width there is."""

from __future__ import annotations

from pxctl.table import Cell, Column, clean, lay_out, width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from pxctl.invocation import Invocation


def print_table(invocation: Invocation, columns: list[Column], rows: list[list[Cell]]) -> None:
    """Print a table with its heading."""
    paint = invocation.paint
    for line in lay_out(columns, rows, invocation.width):
        invocation.say("".join(paint(part.text, part.style) for part in line).rstrip())


def print_facts(invocation: Invocation, facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, the values below each other."""
    widest = max((width_of(name) for name, _ in facts), default=0)
    for name, value in facts:
        invocation.say(f"{name}{' ' * (widest - width_of(name))}  {clean(value)}")
