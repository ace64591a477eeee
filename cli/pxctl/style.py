"""Colour, and when there is to be any. Pure but for the look at the environment that is passed in.

Law: colour is never the only carrier of a fact.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}

BY_STATE = {
    "ready": "green",
    "idle": "green",
    "busy": "cyan",
    "running": "cyan",
    "queued": "yellow",
    "completed": "green",
    "timed_out": "red",
    "cancelled": "dim",
    "disabled": "dim",
    "starting": "yellow",
    "stopping": "yellow",
    "failed": "red",
    "cold": "dim",
    "stopped": "dim",
    "ok": "green",
    "pass": "green",
    "warn": "yellow",
    "fail": "red",
    "skip": "dim",
}


def wants_colour(choice: str, env: Mapping[str, str], *, terminal: bool) -> bool:
    """Decide by `--color`, then NO_COLOR, CLICOLOR_FORCE, TERM=dumb, then whether it is a terminal."""
    if choice != "auto":
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return terminal and env.get("TERM", "") != "dumb"


class Paint:
    """Paints text, or leaves it as it is."""

    __slots__ = ("on",)

    def __init__(self, *, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, style: str | None) -> str:
        """Return `text` in a style of CODES."""
        if not self.on or not style or not text:
            return text
        return f"\x1b[{CODES[style]}m{text}\x1b[0m"
