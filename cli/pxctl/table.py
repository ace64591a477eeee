"""Tables for terminals and pipes. Pure: cells in, lines out.

Law: no line is wider than asked; the columns that matter least go first, then the elastic ones shrink; the first column
(what it is about) is never cut away. Without a width nothing is dropped or cut.
"""

from __future__ import annotations

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


class Part:
    """A laid-out piece of a line: text padded to its column, and its style."""

    __slots__ = ("style", "text")

    def __init__(self, text: str, style: str | None) -> None:
        self.text = text
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
    import unicodedata  # noqa: PLC0415 - only where a text is not ASCII

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
            parts.append(Part(GAP, None))
        parts.append(Part(text, row[at].style))
    return parts
