"""An execution from its beginning to its end: queued once, followed event by event over new control planes, shown.

No byte of output is left out and none is given twice, whatever happens to the connection. What is asked to be queued is
queued once: asking again bears the same Idempotency-Key. A pipe gets the bytes as they are; a terminal gets nothing
that could steer it. Ctrl-C ends the watching, never the execution.
"""

from __future__ import annotations

import codecs
import json
import os

from pxctl import output, terminal
from pxctl.client import query
from pxctl.executions import (
    PREFIX,
    await_execution,
    execution_route,
    exit_code_of,
    failure_of,
    particulars,
    sentence,
    successor_of,
)
from pxctl.failure import FAILED, OK, Interrupted, Problem, Silent, Unreachable
from pxctl.follow import CUT_OFF, STREAMS, Patience, bytes_of, ndjson_lines, parsed_event
from pxctl.shown_text import Shaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from pxctl.app import Invocation
    from pxctl.client import Client

    Event = dict[str, Any]

NOT_KEPT = "pxctl: not all of its output was kept (pipes.output_file_bytes)"


def queue_once(client: Client, target: str, content: dict[str, Any]) -> Event:
    """Have an execution queued and return it; a connection that is lost meanwhile is taken up again.

    Raises:
        Failure: The daemon refuses, or it is not known whether it was queued.
    """
    fields = {"Content-Type": "application/json", "Idempotency-Key": os.urandom(16).hex()}
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
    patience, was_there = Patience(), False
    while True:
        try:
            with client.open("POST", target, body=body, fields=fields, timeout=None) as exchange:
                queued: Event = json.loads(exchange.read())
                return queued
        except (Interrupted, Unreachable, Problem) as failure:
            if not was_there and not isinstance(failure, Unreachable):
                was_there = True
                patience.met()
            patience.bear(failure)


class Following:
    """What is told of one execution."""

    def __init__(self, invocation: Invocation, execution: Event) -> None:
        self._invocation = invocation
        self._execution = execution
        self._seen = dict.fromkeys(STREAMS, 0)
        self._began = False

    def events(self) -> Iterator[Event]:
        """Yield `start`, then `output` and `status` as they come, and `done` with the final row.

        Raises:
            Failure: There is no such execution any more, or the daemon is away for too long.
        """
        for line in ndjson_lines(self._invocation, self._target, follow=True):
            try:
                event = parsed_event(line)
            except Problem as problem:
                # The control plane goes; the stream is taken up at the next one.
                if problem.kind in CUT_OFF:
                    continue
                raise
            kind = event.get("event")
            if kind == "start" and self._began:
                event["event"] = "status"
            self._began = self._began or kind == "start"
            if kind != "output" or self._is_fresh(event):
                yield event
            if kind == "done":
                return

    def _target(self) -> str:
        """Return the request. The offset is that of stdout; what comes twice of stderr is passed over."""
        return query(execution_route(self._execution, "tail"), [("offset", self._seen["stdout"] or None)])

    def _is_fresh(self, event: Event) -> bool:
        """Say whether output has anything new, and take from it what was given before."""
        stream, content = str(event.get("stream")), bytes_of(event)
        offset, seen = int(event.get("offset") or 0), self._seen.get(stream, 0)
        if offset + len(content) <= seen:
            return False
        self._seen[stream] = offset + len(content)
        if offset < seen:
            event.pop("text", None)
            event.pop("base64", None)
            event.update(offset=seen, end=self._seen[stream], bytes=content[seen - offset :])
        return True


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
        self._spinner: terminal.Spinner | None = None
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
        if self._spinner is None:
            self._spinner = self._invocation.spinner(self._unit, lambda: self._phase)
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
    not_before = output.epoch(execution.get("not_before"))
    if not_before is not None and not_before > now:
        return f"waiting {output.duration(int(not_before - now) + 1)} before it is tried"
    position = execution.get("position")
    return f"waiting in line: position {position}" if position else ""


def watch(invocation: Invocation, client: Client, execution: Event) -> int:
    """Follow an execution to its end; return 0 when it completed.

    A next try that begins at once (the next preset of the pipe's list) is followed, too, and its outcome counts; one
    that comes later is only named. Under `--json` the last row is one document, and its status the exit code; under
    `-q` its id is all that is printed.

    Raises:
        Failure: It did not complete.
        Silent: Ctrl-C.
    """
    while True:
        try:
            is_shown = not (invocation.json or invocation.quiet)
            final = follow(invocation, execution) if is_shown else await_execution(client, execution)
        except KeyboardInterrupt:
            leave(invocation, execution)
            raise Silent(FAILED) from None
        successor = successor_of(client, final)
        if successor is None or successor.get("not_before") is not None:
            return _end(invocation, final, successor)
        invocation.notice(f"pxctl: {sentence(final)}; execution {successor.get('id')} follows with the next preset")
        execution = successor


def _end(invocation: Invocation, final: Event, successor: Event | None) -> int:
    if invocation.json:
        invocation.document(final)
        return exit_code_of(final)
    if invocation.quiet:
        invocation.say(str(final.get("id")))
    if (failure := failure_of(final, successor)) is not None:
        raise failure
    invocation.notice(f"pxctl: {_name(final)}: {', '.join(['completed', *particulars(final)])}")
    return OK


def follow(invocation: Invocation, execution: Event) -> Event:
    """Show an execution's output and where it is until it is over; return the final row."""
    final = execution
    with ExecutionView(invocation, execution) as view:
        for event in Following(invocation, execution).events():
            view.show(event)
            if isinstance(known := event.get("execution"), dict):
                final = known
    if final.get("truncated"):
        invocation.warn(NOT_KEPT)
    return final


def leave(invocation: Invocation, execution: Event) -> None:
    """Say what goes on."""
    number = execution.get("id")
    invocation.warn(f"\npxctl: detached; {_name(execution)} goes on")
    invocation.warn(
        invocation.err_paint("hint:", "bold") + f" pxctl pipe tail -f {number}; to end it: pxctl pipe cancel {number}"
    )


def let_go(invocation: Invocation, execution: Event) -> int:
    """Tell of an execution that nobody waits for; return 0 unless it ended badly before it began."""
    failure = failure_of(execution) if execution.get("finished_at") else None
    if invocation.json:
        invocation.document(execution)
        return OK if failure is None else failure.exit_code
    if failure is not None:
        raise failure
    if invocation.quiet:
        invocation.say(str(execution.get("id")))
        return OK
    words = where_it_is(execution, invocation.now()) or str(execution.get("status"))
    invocation.say(f"{_name(execution)}: {words}")
    return OK


def _name(execution: Event) -> str:
    return f"{PREFIX}{execution.get('pipe_name')} execution {execution.get('id')}"
