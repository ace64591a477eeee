"""`pxctl logs`: what units printed, byte for byte of one unit, line by line of several.

Ctrl-C ends the looking, never what is looked at.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import click

from pxctl import output
from pxctl.app import Invocation, declare, root, unit_names
from pxctl.client import Document, Failure, folder_for, of_units, quote, usage
from pxctl.streams import bytes_of, events_of, harmless, since_when

_LINES_OF_ALL = 20  # of each unit, where none is named
_AGES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STYLES = ("cyan", "green", "yellow")  # of the units' names, in turn


class Line(NamedTuple):
    """A line of a unit's output.

    `time` is RFC 3339; `lost_bytes`: so much of its output is missing here.
    """

    time: str
    unit: str
    content: bytes
    lost_bytes: int = 0


# -- which of it -----------------------------------------------------------------------------------


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise usage(
            f"--grep {text!r} is no regular expression: {error}",
            "pxctl logs UNIT --grep 'error|warning'",
        ) from error


def _until_when(text: str | None, now: float) -> float | None:
    """Return the Unix seconds of a time or an age as `--since` takes them."""
    if text is None:
        return None
    try:
        moment = str(since_when(text))
    except Failure as failure:
        failure.detail = failure.detail.replace("--since", "--until")
        raise
    if ages := re.findall(r"(\d+(?:\.\d+)?)([smhd])", moment.lower() if "T" not in moment else ""):
        return now - sum(float(amount) * _AGES[unit] for amount, unit in ages)
    return datetime.fromisoformat(moment).timestamp()


def _up_to(
    events: Iterable[tuple[bytes, Document]], until: float | None
) -> Iterator[tuple[bytes, Document]]:
    """Yield what came before a moment.

    Output is in the order in which it came, so that the first later one ends it.
    """
    for line, piece in events:
        came_at = output.epoch(piece.get("time"))
        if until is not None and came_at is not None and came_at >= until:
            return
        yield line, piece


def lines_of(unit: str, pieces: Iterable[Document]) -> Iterator[Line]:
    """Yield whole lines out of pieces of output; of each stream on its own, as they come to
    their end.
    """
    begun: dict[str, bytes] = {}
    last = ""
    for piece in pieces:
        last = str(piece.get("time") or last)
        if "gap_bytes" in piece:
            yield Line(last, unit, b"", int(piece["gap_bytes"]))
            continue
        stream = str(piece.get("stream"))
        *whole, begun[stream] = (begun.get(stream, b"") + bytes_of(piece)).split(b"\n")
        for content in whole:
            yield Line(last, unit, content)
    for content in begun.values():
        if content:
            yield Line(last, unit, content)


def _chosen(lines: Iterable[Line], pattern: re.Pattern[str] | None) -> Iterator[Line]:
    for line in lines:
        if (
            pattern is None
            or line.lost_bytes
            or pattern.search(line.content.decode("utf-8", "replace"))
        ):
            yield line


# -- several units at once -------------------------------------------------------------------------


def _follow_all(sources: Sequence[Callable[[], Iterator[Line]]]) -> Iterator[Line]:
    """Yield the lines of endless sources as they come. Raises what ends one of them."""
    arrived: queue.SimpleQueue[Line | BaseException] = queue.SimpleQueue()

    def pump(source: Callable[[], Iterator[Line]]) -> None:
        try:
            for line in source():
                arrived.put(line)
        except BaseException as error:  # it is raised where the lines are taken
            arrived.put(error)

    for source in sources:
        threading.Thread(target=pump, args=[source], daemon=True).start()
    while True:
        item = arrived.get()
        if isinstance(item, BaseException):
            raise item
        yield item


# -- shown -----------------------------------------------------------------------------------------


def _stamped(content: bytes, moment: str, *, begins_line: bool) -> bytes:
    """Return a piece of output with the time before each of its lines.

    Only a newline ends a line, so that a progress bar (carriage returns) stays in one line.
    """
    stamp = f"{moment} ".encode()
    # A newline at the end begins no line yet: the next piece does.
    stamped = re.sub(rb"\n(?!\Z)", b"\n" + stamp, content)
    return stamp + stamped if begins_line else stamped


@declare(root, "logs", "read the logs")
@click.argument("units", nargs=-1, metavar="[UNIT]...", shell_complete=unit_names)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on as output comes; survives a restart of the control plane.",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="N",
    help="The last N lines only, of each unit.",
)
@click.option(
    "--since",
    metavar="T",
    help="From a time (RFC 3339, 16:00, today) or an age (90s, 10m, 2h, 1d) on.",
)
@click.option("--until", metavar="T", help="Up to a time or an age.")
@click.option(
    "--grep", metavar="RE", help="Lines that match a regular expression; -n counts these."
)
@click.option("--stdout", "stream", flag_value="stdout", help="Only what came on stdout.")
@click.option("--stderr", "stream", flag_value="stderr", help="Only what came on stderr.")
@click.option("--timestamps", is_flag=True, help="Begin each line with the time of its output.")
def show_logs(
    invocation: Invocation,
    units: tuple[str, ...],
    timestamps: bool,
    until: str | None,
    grep: str | None,
    **asked: Any,
) -> None:
    """Show the output of units as it came; with --json a line of NDJSON for each piece.

    Of several units (names, globs, or none named: all) each line begins with the unit's name, in
    the order of time; without UNIT the last 20 lines of each. Where output was lost, a note on
    stderr says how much.

    $ pxctl logs compound-interest -f -n 20 --timestamps
    $ pxctl logs 'tool:*' --since '2 hours ago' --grep 'Error|Traceback'
    """
    if until is not None and asked["follow"]:
        raise usage("--until and --follow exclude each other", "pxctl logs UNIT --until 16:00")
    asked["since"] = since_when(asked["since"])
    end = _until_when(until, time.time())
    pattern = _pattern(grep)
    is_one = len(units) == 1 and not any(sign in units[0] for sign in "*?[")
    if is_one:
        invocation.action = f"read the logs of {units[0]}"
    view = _View(invocation, asked, end, pattern, timestamps=timestamps)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            if is_one and pattern is None and not (end is not None and asked["lines"] is not None):
                view.show_pieces(units[0])
            elif invocation.json:
                view.show_json(units if is_one else view.resolve(units))
            else:
                view.show_lines(units if is_one else view.resolve(units))
        except Failure as failure:
            if units:
                from pxctl.executions import explain_number

                explain_number(invocation.client(), failure, units[0], "pxctl pipe output")
            raise


class _View:
    """One call of `pxctl logs`: what was asked for, and how it is shown."""

    def __init__(
        self,
        invocation: Invocation,
        asked: dict[str, Any],
        until: float | None,
        pattern: re.Pattern[str] | None,
        *,
        timestamps: bool,
    ) -> None:
        self._invocation = invocation
        self._asked = asked
        self._until = until
        self._pattern = pattern
        self._timestamps = timestamps

    def resolve(self, units: Sequence[str]) -> list[str]:
        """Return the full names that names and globs mean; of none all, and then only their last
        lines.
        """
        if (
            not units
            and self._asked["lines"] is None
            and self._asked["since"] is None
            and self._until is None
        ):
            self._asked["lines"] = _LINES_OF_ALL
        target = of_units("/api/units", "name", units or ("*",))
        try:
            answer = self._invocation.client().get(target)
        except Failure as failure:
            if units or failure.kind != "unknown_unit":
                raise
            self._invocation.notice(
                "no units yet; add a tool: pxctl tools add example:compound-interest"
            )
            return []
        return [str(unit["unit"]) for unit in answer.get("units", [])]

    def _events(self, unit: str, **changes: Any) -> Iterator[tuple[bytes, Document]]:
        asked = {**self._asked, **changes, "cwd": folder_for([unit])}
        return _up_to(
            events_of(self._invocation.client(), f"/api/units/{quote(unit)}/logs", asked),
            self._until,
        )

    # -- one unit, as it came

    def show_pieces(self, unit: str) -> None:
        """Write the output of one unit as it came, or with --json the pieces as they came."""
        invocation = self._invocation
        begins_line = True
        has_any = False
        last_instance: str | None = None
        for line, piece in self._events(unit):
            has_any = True
            if invocation.json:
                output.write(line + b"\n")
                continue
            if "gap_bytes" in piece:
                invocation.warn(f"pxctl: {piece['gap_bytes']} bytes of output were lost here")
                continue
            instance = piece.get("instance")
            is_next_start = last_instance is not None and instance != last_instance
            if is_next_start and invocation.out_is_terminal:
                if not begins_line:
                    output.write(b"\n")
                self._mark_start(piece)
                begins_line = True
            last_instance = instance
            content = bytes_of(piece)
            shown = content
            if self._timestamps:
                shown = _stamped(content, str(piece.get("time") or ""), begins_line=begins_line)
            output.write(shown)
            # A piece without content leaves the cursor where it is.
            if content:
                begins_line = content.endswith(b"\n")
        if not has_any and not invocation.json:
            invocation.notice(self._why_empty(unit))

    def _why_empty(self, unit: str) -> str:
        name = unit
        with contextlib.suppress(Failure, KeyError, IndexError):
            name = str(
                self._invocation.client().get(of_units("/api/units", "name", [unit]))["units"][0][
                    "unit"
                ]
            )
        kind, _, session = name.partition(":")
        if kind == "kernel":
            return (
                "the kernel's process printed nothing; what cells printed: pxctl kernel export "
                f"{session}"
            )
        return f"{name} printed nothing that fits"

    def _mark_start(self, piece: Document) -> None:
        came_at = output.epoch(piece.get("time"))
        clock = "" if came_at is None else time.strftime(", %H:%M:%S", time.localtime(came_at))
        self._invocation.warn(
            self._invocation.paint(f"── output of the next start{clock} ──", "dim")
        )

    # -- lines

    def show_json(self, units: Sequence[str]) -> None:
        """Write lines of NDJSON, each with its unit."""
        for line in self._all_lines(units):
            document: Document = {"unit": line.unit, "time": line.time or None}
            if line.lost_bytes:
                document["gap_bytes"] = line.lost_bytes
            else:
                document["text"] = line.content.decode("utf-8", "replace")
            self._invocation.print(json.dumps(document, ensure_ascii=False))

    def show_lines(self, units: Sequence[str]) -> None:
        invocation = self._invocation
        width = max(map(len, units), default=0)
        styles = {unit: _STYLES[number % len(_STYLES)] for number, unit in enumerate(units)}
        for line in self._all_lines(units):
            before = ""
            if len(units) > 1:
                before = invocation.paint(f"{line.unit:<{width}} |", styles[line.unit]) + " "
            if line.lost_bytes:
                invocation.warn(f"{before}pxctl: {line.lost_bytes} bytes of output were lost here")
                continue
            if self._timestamps:
                before += f"{line.time} "
            content = line.content
            if invocation.out_is_terminal:
                content = harmless(
                    content.decode("utf-8", "replace"), colour=invocation.has_colour
                ).encode()
            output.write(before.encode() + content + b"\n")

    def _all_lines(self, units: Sequence[str]) -> Iterable[Line]:
        if self._asked["follow"]:
            return _follow_all([partial(self._lines, unit) for unit in units]) if units else ()
        return heapq.merge(*(self._lines(unit) for unit in units), key=lambda line: line.time)

    def _lines(self, unit: str) -> Iterator[Line]:
        """Yield the lines of a unit that were asked for."""
        if not self._client_counts_lines():
            pieces = (piece for _, piece in self._events(unit))
            return _chosen(lines_of(unit, pieces), self._pattern)
        # All lines are read, and the last ones of those that fit are kept.
        pieces = (piece for _, piece in self._events(unit, lines=None))
        lines = _chosen(lines_of(unit, pieces), self._pattern)
        return iter(deque(lines, self._asked["lines"]))

    def _client_counts_lines(self) -> bool:
        """Say whether `--lines` is counted here, not by the daemon.

        The daemon counts from the end of all output: it knows neither the pattern nor the end that
        was asked for. Output that is followed has no end to count from.
        """
        if self._asked["lines"] is None or self._asked["follow"]:
            return False
        return self._pattern is not None or self._until is not None
