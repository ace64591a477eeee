"""One execution as it is watched: its stdout on stdout, its stderr on stderr, all that is said about it on stderr.

Laws: a pipe gets the bytes as they are; a terminal gets nothing that could steer it. What waits says what it waits for.
"""

from __future__ import annotations

import codecs

from pxctl import terminal, wording
from pxctl.calling import bytes_of
from pxctl.pipes import PREFIX
from pxctl.shown_text import Shaper
from pxctl.spinner import Spinner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from pxctl.invocation import Invocation

    Event = dict[str, Any]


class _Outlet:
    """Where one stream goes: bytes as they are, or shaped for a terminal."""

    def __init__(self, write: Callable[[str | bytes], None], shaper: Shaper | None) -> None:
        self._write = write
        self._shaper = shaper
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def put(self, content: bytes) -> None:
        """Write a piece."""
        shown = content if self._shaper is None else self._shaper.feed(self._decode(content))
        if shown:
            self._write(shown)

    def close_line(self) -> None:
        """End a line that is begun on a terminal."""
        if self._shaper is not None and (rest := self._shaper.fresh()):
            self._write(rest)


class ExecutionView:
    """Shows events. Use as a context manager: while it lasts, a spinner may be drawn.

    Args:
        invocation: Whose streams.
        execution: Which.
    """

    def __init__(self, invocation: Invocation, execution: Event) -> None:
        self._invocation = invocation
        self._unit = f"{PREFIX}{execution.get('pipe_name')}"
        self._phase = "…"
        self._last_words = ""
        self._spinner: Spinner | None = None
        self._quiet = False
        colour = invocation.paint.on
        shape_out = Shaper(colour=colour, full=True) if invocation.out_is_terminal else None
        shape_err = Shaper(colour=colour, full=True) if invocation.err_is_terminal else None
        self._out = _Outlet(invocation.write, shape_out)
        self._err = _Outlet(terminal.write_error, shape_err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop_spinner()
        self._close_lines()

    def show(self, event: Event) -> None:
        """Show one event."""
        match event.get("event"):
            case "output" if event.get("stream") == "stderr":
                self._put(self._err, self._out, bytes_of(event))
            case "output":
                self._put(self._out, self._err, bytes_of(event))
            case "start" | "status":
                self._tell(event.get("execution") or {})

    def _put(self, outlet: _Outlet, other: _Outlet, content: bytes) -> None:
        self._stop_spinner()
        self._quiet = True
        if self._invocation.out_is_terminal and self._invocation.err_is_terminal:
            other.close_line()
        outlet.put(content)

    def _tell(self, execution: Event) -> None:
        words = where_it_is(execution, self._invocation.now())
        self._phase = words or "…"
        if words and words != self._last_words:
            self._last_words = words
            self._stop_spinner()
            self._close_lines()
            self._invocation.notice(f"pxctl: {self._unit} execution {execution.get('id')}: {words}")
        if not self._quiet and execution.get("status") in {"queued", "running"}:
            self._start_spinner()

    def _start_spinner(self) -> None:
        invocation = self._invocation
        if self._spinner is None and invocation.err_is_terminal and not invocation.quiet:
            self._spinner = Spinner(self._unit, lambda: self._phase, on=invocation.env.get("TERM") != "dumb")
            self._spinner.__enter__()

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def _close_lines(self) -> None:
        self._out.close_line()
        self._err.close_line()


def where_it_is(execution: Event, now: float) -> str:
    """Return what an execution is doing: "waiting in line: position 2", "running"; empty once it is over."""
    match execution.get("status"):
        case "running":
            return "running"
        case "queued":
            return _waiting(execution, now)
        case _:
            return ""


def _waiting(execution: Event, now: float) -> str:
    not_before = wording.epoch(execution.get("not_before"))
    if not_before is not None and not_before > now:
        return f"waiting {wording.duration(int(not_before - now) + 1)} before it is tried"
    position = execution.get("position")
    return f"waiting in line: position {position}" if position else ""
