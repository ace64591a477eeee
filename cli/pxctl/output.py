"""How results look: colour, numbers and times in words, tables and name-value lists. Pure but for the printing."""

from __future__ import annotations

import time
from datetime import datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pxctl.app import Invocation

    Part = tuple[str, str | None]
    """A laid-out piece of a line: text padded to its column, and its style."""


CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

BY_STATE = {
    **dict.fromkeys(("ready", "idle", "completed", "ok", "pass"), "green"),
    **dict.fromkeys(("busy", "running"), "cyan"),
    **dict.fromkeys(("queued", "starting", "stopping", "warn"), "yellow"),
    **dict.fromkeys(("failed", "timed_out", "fail", "error"), "red"),
    **dict.fromkeys(("cold", "stopped", "disabled", "cancelled", "aborted", "skip"), "dim"),
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


ABSENT = "-"

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_EVER = 1e12
_UNITS = ("B", "K", "M", "G", "T", "P")
_KIBI = 1024


def duration(seconds: object) -> str:
    """Return "0.4s", "12s", "3m20s", "2h05m", "4d03h"."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not abs(seconds) < _EVER:
        return ABSENT
    if 0 < seconds < 10 and seconds % 1:
        return f"{seconds:.1f}s"
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    return _long(whole)


def _long(whole: int) -> str:
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def size(count: object) -> str:
    """Return "812B", "12.3M", "1.5G" (powers of 1024)."""
    if not isinstance(count, int | float) or isinstance(count, bool):
        return ABSENT
    amount, unit = float(count), 0
    while abs(amount) >= _KIBI and unit < len(_UNITS) - 1:
        amount /= _KIBI
        unit += 1
    return f"{int(amount)}B" if unit == 0 else f"{amount:.1f}{_UNITS[unit]}"


def percent(value: object) -> str:
    """Return "3.1%"."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ABSENT
    return f"{value:.1f}%"


def epoch(text: object) -> float | None:
    """Return the Unix time of an RFC 3339 timestamp, None for what is not one."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


def ago(text: object, now: float) -> str:
    """Return "12s ago"; a moment to come is "in 5m00s"."""
    at = epoch(text)
    if at is None:
        return ABSENT
    return f"{duration(int(now - at))} ago" if at <= now else f"in {duration(int(at - now))}"


def counted(count: int, noun: str) -> str:
    """Return "1 unit", "2 units"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


GAP = "  "
ELLIPSIS = "…"


class Column:
    """One column.

    Args:
        title: Its heading.
        rank: 0 is kept as long as possible; the highest rank is dropped first.
        right: Aligned to the right (numbers).
        minimum: Cells to which it may be cut; None means never cut.
    """

    __slots__ = ("minimum", "rank", "right", "title")

    def __init__(self, title: str, *, rank: int = 0, right: bool = False, minimum: int | None = None) -> None:
        self.title = title
        self.rank = rank
        self.right = right
        self.minimum = minimum


class Cell:
    """A text and the name of its style."""

    __slots__ = ("style", "text")

    def __init__(self, text: str, style: str | None = None) -> None:
        self.text = clean(text)
        self.style = style


def clean(text: str) -> str:
    """Return `text` on one line and without what steers a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " if letter in "\n\t\r" else "�" for letter in text)


def width_of(text: str) -> int:
    """Return the number of terminal cells of `text`: wide letters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells(letter) for letter in text)


def _cells(letter: str) -> int:
    import unicodedata

    if unicodedata.combining(letter) or unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with an ellipsis where something is missing."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    at, used = 0, width_of(text[0])
    while used <= width - 1:
        at += 1
        used += width_of(text[at])
    return text[:at] + ELLIPSIS


def lay_out(columns: list[Column], rows: list[list[Cell]], width: int | None) -> list[list[Part]]:
    """Return heading and rows as lines of parts, at most `width` cells wide (None: as wide as they are).

    Columns that are empty in every row are left out, the first excepted.
    """
    wanted = [max([width_of(row[at].text) for row in rows], default=0) for at in range(len(columns))]
    kept = [at for at in range(len(columns)) if at == 0 or wanted[at] or not rows]
    widths = {at: max(wanted[at], width_of(columns[at].title)) for at in kept}
    if width is not None:
        _fit(columns, widths, width)
    heading = [Cell(column.title, "bold") for column in columns]
    return [_line(columns, row, widths) for row in [heading, *rows]]


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _fit(columns: list[Column], widths: dict[int, int], width: int) -> None:
    """Shrink the elastic columns to their minimum; while that is not enough drop the column of the highest rank."""
    while (over := _total(widths) - width) > 0:
        droppable = [at for at in widths if at != 0 and columns[at].rank > 0]
        elastic = [at for at in widths if columns[at].minimum is not None and (at != 0 or not droppable)]
        slack = {at: max(0, widths[at] - (columns[at].minimum or 0)) for at in elastic}
        if sum(slack.values()) >= over or not droppable:
            _shrink(columns, widths, slack, over)
            return
        del widths[max(droppable, key=lambda at: (columns[at].rank, at))]


def _shrink(columns: list[Column], widths: dict[int, int], slack: dict[int, int], over: int) -> None:
    for at in sorted(slack, key=lambda at: (-columns[at].rank, -at)):
        taken = min(over, slack[at])
        widths[at] -= taken
        over -= taken
    for at in sorted((at for at in widths if at != 0), reverse=True):
        # Not even the minima fit: what is left of the line belongs to the first column.
        if over <= 0:
            return
        over -= widths.pop(at) + len(GAP)
    if over > 0:
        widths[0] = max(1, widths[0] - over)


def _line(columns: list[Column], row: list[Cell], widths: dict[int, int]) -> list[Part]:
    parts: list[Part] = []
    last = max(widths)
    for at, width in sorted(widths.items()):
        text = cut(row[at].text, width)
        padding = " " * (width - width_of(text))
        if columns[at].right:
            text = padding + text
        elif at != last:
            text += padding
        if parts:
            parts.append((GAP, None))
        parts.append((text, row[at].style))
    return parts


def print_table(invocation: Invocation, columns: list[Column], rows: list[list[Cell]]) -> None:
    """Print a table with its heading."""
    invocation.say_all(table_lines(invocation, columns, rows))


def table_lines(invocation: Invocation, columns: list[Column], rows: list[list[Cell]]) -> list[str]:
    """Return the painted lines of a table with its heading."""
    paint = invocation.paint
    table = lay_out(columns, rows, invocation.width)
    return ["".join(paint(text, style) for text, style in line).rstrip() for line in table]


def print_facts(invocation: Invocation, facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, the values below each other."""
    widest = max((width_of(name) for name, _ in facts), default=0)
    for name, value in facts:
        invocation.say(f"{name}{' ' * (widest - width_of(name))}  {clean(value)}")


def local(text: object, *, terminal: bool) -> str:
    """Return "Mon 2026-11-23 08:00:00 CET" of an RFC 3339 time on a terminal; elsewhere the time as it came."""
    moment = epoch(text)
    if moment is None or not terminal:
        return ABSENT if text is None else str(text)
    return time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(moment))
