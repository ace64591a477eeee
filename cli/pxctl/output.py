"""What people and programs see: the streams, the spinner, numbers and times in words, colour,
tables.

stdout carries the result and nothing else; everything else goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

Cell = tuple[str, str | None]  # a text and the name of its style

STDOUT, STDERR = 1, 2


# -- streams ---------------------------------------------------------------------------------------


def screen() -> os.terminal_size:
    import shutil  # two milliseconds, which a pipe need not wait for

    return shutil.get_terminal_size()


def write(piece: str | bytes, fd: int = STDOUT) -> None:
    view = memoryview(piece.encode("utf-8", "surrogateescape") if isinstance(piece, str) else piece)
    while view:
        view = view[os.write(fd, view) :]


def write_error(piece: str | bytes) -> None:
    """Write to stderr as it is; nobody reading it is no reason to fail."""
    with contextlib.suppress(OSError):
        write(piece, STDERR)


def notice(text: str) -> None:
    write_error(
        text.encode(sys.stderr.encoding if sys.stderr else "utf-8", "backslashreplace") + b"\n"
    )


def write_whole(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> int:
    """Write a file beside its place and move it there once it is complete; return its size in
    bytes.

    What is there and is no file (a pipe, /dev/null) is written to.
    """
    beside, size = f"{os.fspath(path)}.{os.getpid()}.part", 0
    is_file = os.path.isfile(path) or not os.path.exists(path)
    try:
        with open(beside if is_file else path, "wb") as file:
            for chunk in chunks:
                size += file.write(chunk)
        if is_file:
            os.replace(beside, path)
    except OSError as error:
        error.filename = os.fspath(path)  # of a full disk none is told, else what was to become it
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
    return size


class Spinner:
    """Says on stderr what is waited for and for how long, after 0.3 s, until it is stopped; leaves
    nothing behind.

    `phase` says what is going on; it is asked twice a second and may block briefly. One that is not
    `on` draws nothing, nor does a second one while another is there. It may be started and stopped
    again and again.
    """

    _is_there = False

    def __init__(self, label: str, phase: Callable[[], str], *, on: bool) -> None:
        self._label, self._phase, self._on = label, phase, on
        self._drawing: tuple[threading.Thread, threading.Event] | None = None

    def start(self) -> Spinner:
        if self._on and not Spinner._is_there:
            Spinner._is_there, stopped = True, threading.Event()
            self._drawing = (
                threading.Thread(target=self._draw, args=[stopped], daemon=True),
                stopped,
            )
            self._drawing[0].start()
        return self

    __enter__ = start

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._drawing is not None:
            thread, stopped = self._drawing
            stopped.set()
            thread.join(2.0)  # whoever reads stderr may have stopped reading
            Spinner._is_there, self._drawing = False, None

    def _draw(self, stopped: threading.Event) -> None:
        is_utf8 = (getattr(sys.stderr, "encoding", None) or "").lower().startswith("utf")
        frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if is_utf8 else "|/-\\"
        began, phase, turn = time.monotonic(), "", 0
        while not stopped.wait(0.1 if turn else 0.3):
            if turn % 5 == 0:
                phase = self._phase()
            seconds = time.monotonic() - began
            # One row: of a longer text the carriage return would erase the last row only.
            room = screen().columns - len(f"x  {seconds:.1f}s") - 1
            words = cut(f"{self._label}: {phase}", room)
            write_error(f"\r\x1b[K{frames[turn % len(frames)]} {words} {seconds:.1f}s")
            turn += 1
        if turn:
            write_error("\r\x1b[K")


# -- words -----------------------------------------------------------------------------------------

ABSENT = "-"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
BY_STATE = {
    **dict.fromkeys(("ready", "idle", "completed", "ok", "pass"), "green"),
    **dict.fromkeys(("busy", "running"), "cyan"),
    **dict.fromkeys(("queued", "starting", "stopping", "warn", "preparing"), "yellow"),
    **dict.fromkeys(
        ("failed", "unresponsive", "timed_out", "fail", "error", "broken", "FOUND"), "red"
    ),
    **dict.fromkeys(("cold", "stopped", "disabled", "cancelled", "aborted", "skip", "no"), "dim"),
}


def wants_colour(choice: str, env: Mapping[str, str], *, terminal: bool) -> bool:
    """Decide by `--color`, then NO_COLOR, CLICOLOR_FORCE, TERM=dumb, then whether it is a
    terminal.
    """
    if choice != "auto":
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    return env.get("CLICOLOR_FORCE", "0") != "0" or (terminal and env.get("TERM", "") != "dumb")


def paint(text: str, style: str | None, *, on: bool) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if on and style and text else text


def duration(seconds: float | None) -> str:
    """Return "19ms", "0.4s", "12s", "3m20s", "2h05m", "4d03h"."""
    if seconds is None:
        return ABSENT
    if 0 < seconds < 0.1:
        return f"{max(1, round(seconds * 1000))}ms"
    if 0 < seconds < 10 and seconds % 1:
        return f"{seconds:.1f}s"
    whole = max(0, int(seconds))
    for length, unit, part, part_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= length:
            return f"{whole // length}{unit}{whole % length // part:02d}{part_unit}"
    return f"{whole}s"


def size(count: float | None) -> str:
    """Return "812B", "12.3M", "1.5G" (powers of 1024)."""
    if count is None:
        return ABSENT
    amount, units = float(count), "BKMGTP"
    while abs(amount) >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{int(amount)}B" if units[0] == "B" else f"{amount:.1f}{units[0]}"


def memory(document: dict[str, Any]) -> str:
    """Return what a unit uses; "rss" behind it: pages that its processes share are counted for
    each of them.
    """
    text = size(document.get("memory_bytes") or document.get("rss_bytes"))
    is_sum = document.get("memory_kind") == "rss" and (document.get("processes") or 0) > 1
    return f"{text} rss" if is_sum else text


def epoch(text: object) -> float | None:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None


def ago(text: object) -> str:
    """Return "12s ago"; a moment to come is "in 5m00s"."""
    at, now = epoch(text), time.time()
    if at is None:
        return ABSENT
    return f"{duration(int(now - at))} ago" if at <= now else f"in {duration(int(at - now))}"


def clean(text: str) -> str:
    """Return `text` on one line and without what steers a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else " " if letter in "\n\t\r" else "�" for letter in text
    )


def indented(text: str, most: int) -> list[str]:
    """Return the lines of a text for people, each by two columns to the right; of a long one the
    last `most`.
    """
    lines = text.splitlines()
    left_out = len(lines) - most
    shown = [f"  {clean(line.expandtabs())}".rstrip() for line in lines[-most:]]
    if left_out > 0:
        return [f"  … {left_out} lines before these (--json shows them)", *shown]
    return shown


# -- tables ----------------------------------------------------------------------------------------

_GAP = "  "


def width_of(text: str) -> int:
    """Return the number of terminal cells of `text`: wide letters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    invisible = sum(unicodedata.category(letter) in {"Mn", "Me", "Cf"} for letter in text)
    return (
        len(text)
        - invisible
        + sum(unicodedata.east_asian_width(letter) in {"W", "F"} for letter in text)
    )


def cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    while text and width_of(text) >= width:
        text = text[:-1]
    return text + "…" * (width > 0)


class Column(NamedTuple):
    """A column: heading; the key of a row or a function of it, to a text, a number or a Cell; what
    is absent is blank.

    `rank`: the column of the highest is dropped first where there is no room, the first column
    never. `minimum`: cells to which it may be cut before a column is dropped; None: it is not.
    `is_count`: it says how many, and is left out where there is none in any row.
    """

    title: str
    value: str | Callable[[dict[str, Any]], object]
    rank: int = 0
    right: bool = False
    minimum: int | None = None
    is_count: bool = False

    def cell(self, row: dict[str, Any]) -> Cell:
        value = row.get(self.value) if isinstance(self.value, str) else self.value(row)
        text, style = value if isinstance(value, tuple) else (value, None)
        if text is None or text == ABSENT:
            return "", style
        return clean(json.dumps(text) if isinstance(text, bool) else str(text)), style

    def is_blank(self, text: str) -> bool:
        return text == "" or (self.is_count and text == "0")


def with_broken(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"state": "broken"} if row.get("config_error") else row for row in rows]


def state_column(key: str = "state", title: str = "STATE", rank: int = 1) -> Column:
    return Column(title, lambda row: (row.get(key), BY_STATE.get(str(row.get(key)))), rank)


def table(
    columns: Sequence[Column],
    rows: Sequence[dict[str, Any]],
    width: int | None,
    *,
    colour: bool = False,
) -> list[str]:
    """Return heading and rows as lines of at most `width` cells (None: as wide as they are).

    Columns that are empty in every row are left out, the first excepted.
    """
    lines: list[list[Cell]] = [[(column.title, "bold") for column in columns]]
    lines += [[column.cell(row) for column in columns] for row in rows]
    shown_at = [0]
    for at, column in enumerate(columns):
        if at > 0 and not all(column.is_blank(line[at][0]) for line in lines[1:]):
            shown_at.append(at)
    widths = {at: max(width_of(line[at][0]) for line in lines) for at in shown_at}
    if width is not None:
        _fit(columns, widths, width)

    def shown(at: int, cell: Cell) -> str:
        text, style = cut(cell[0], widths[at]), cell[1]
        padding, painted = " " * (widths[at] - width_of(text)), paint(text, style, on=colour)
        return padding + painted if columns[at].right else painted + padding

    return [_GAP.join(shown(at, line[at]) for at in widths).rstrip() for line in lines]


def _fit(columns: Sequence[Column], widths: dict[int, int], width: int) -> None:
    """Drop columns until what is left fits once it is cut to its minimum, and cut it as far as
    is needed.
    """

    def too_much() -> int:
        return max(0, sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width)

    by_rank = sorted(list(widths)[1:], key=lambda at: (columns[at].rank, at))
    spare = {at: max(0, widths[at] - (columns[at].minimum or widths[at])) for at in by_rank}
    while by_rank and too_much() > sum(spare[at] for at in by_rank):
        del widths[by_rank.pop()]
    for at in reversed(by_rank):
        widths[at] -= min(too_much(), spare[at])
    widths[0] = max(1, widths[0] - too_much())
