"""What takes its time: endless answers, kept output page after page, executions to their end.

One loop follows over a restart of the daemon's control plane: after each loss the stream is taken up again at the place
that the caller remembers, so that nothing is shown twice and nothing is left out. A pipe gets bytes as they are; a
terminal gets nothing that could steer it.
"""

from __future__ import annotations

import binascii
import codecs
import json
import os
import re
import time

from pxctl import output
from pxctl.client import Failure, Interrupted, Problem, Unreachable, query, quote, raise_problem, split_lines, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Self

    from pxctl.app import Invocation
    from pxctl.cells import Shaper
    from pxctl.client import Client

    Event = dict[str, Any]

NDJSON = "application/x-ndjson"
STREAMS = ("stdout", "stderr")
NOT_KEPT = "pxctl: not all of its output was kept (pipes.output_file_bytes)"
_CUT_OFF = frozenset({"shutdown", "interrupted"})
"""What the daemon answers while its control plane goes: another one follows."""
_AWAY_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 60.0
_SLICE_SECONDS = 300.0
_PAGE_BYTES = 1024 * 1024


def is_loss(failure: Failure) -> bool:
    """Say whether the daemon, or its control plane, went away; another one may follow."""
    return isinstance(failure, Unreachable | Interrupted) or (isinstance(failure, Problem) and failure.kind in _CUT_OFF)


class Patience:
    """Bears the absence of a daemon that was there before, for a while."""

    def __init__(self, *, met: bool = False) -> None:
        self._since: float | None = None
        self._met = met

    def met(self) -> None:
        """Note that the daemon answered."""
        self._met, self._since = True, None

    def bear(self, failure: Failure) -> None:
        """Pause; raise `failure` where it is no loss, or the daemon was never there, or is away too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not is_loss(failure) or not self._met or now - self._since > _AWAY_SECONDS:
            raise failure
        time.sleep(_PAUSE_SECONDS)


def events_of(invocation: Invocation, target: Callable[[], str], *, follow: bool) -> Iterator[tuple[bytes, Event]]:
    """Yield line and event of an NDJSON answer. `target` is asked anew at each connection: it names the place.

    Raises:
        Problem: The stream ended with it.
        Failure: A line is no event; the daemon is away for too long.
    """
    patience = Patience()
    while True:
        try:
            timeout = None if follow else _READ_SECONDS
            with invocation.client().open("GET", target(), fields={"Accept": NDJSON}, timeout=timeout) as exchange:
                patience.met()
                for line in split_lines(exchange.chunks()):
                    if line.strip():
                        yield line, parsed_event(line)
        except (Unreachable, Interrupted, Problem) as failure:
            if not follow:
                raise
            patience.bear(failure)
            continue
        if not follow:
            return
        # An orderly end of an endless answer: the control plane is being replaced.
        time.sleep(_PAUSE_SECONDS)


def parsed_event(line: bytes) -> Event:
    """Return the event of a line of NDJSON; raises the problem that the stream ended with."""
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
    if not isinstance(event, dict):
        raise Failure("the daemon sent a line that is no event", kind="bad_answer")
    raise_problem(event)
    return event


def bytes_of(event: Event) -> bytes:
    """Return the bytes of an output event, exactly."""
    if isinstance(content := event.get("bytes"), bytes):
        return content
    if isinstance(encoded := event.get("base64"), str):
        return binascii.a2b_base64(encoded)
    return str(event.get("text", "")).encode("utf-8", "surrogatepass")


def print_event(invocation: Invocation, event: Event) -> None:
    """Write an event as a line of NDJSON; what was read from a file after a loss is text, too."""
    if isinstance(content := event.pop("bytes", None), bytes):
        event["text"] = content.decode("utf-8", "replace")
    invocation.print(json.dumps(event, ensure_ascii=False, separators=(",", ":")))


_AGES = re.compile(r"(\d+(?:\.\d+)?) *(s|m|h|d)[a-z]*(?: +ago)?")


def since_when(text: str | None) -> str | None:
    """Return the time of `--since` and `--until` as the daemon reads it: RFC 3339, or an age ("10m").

    Understands "today", "yesterday", "16:00" (the last one that was) and "2 hours ago"; anything else is passed on.
    """
    if text is None:
        return None
    words = text.strip().lower()
    if found := _AGES.fullmatch(words):
        return found[1] + found[2]
    clock = re.fullmatch(r"(?:(today|yesterday) *)?(\d{1,2}):(\d{2})", words)
    if clock is None and words not in {"now", "today", "yesterday"}:
        return text
    now = time.localtime()
    day = now.tm_mday - (words.startswith("yesterday"))
    hour, minute = (int(clock[2]), int(clock[3])) if clock else (0, 0)
    if hour > 23 or minute > 59:
        raise usage(f"{text!r} is no time of the day", "--since 16:00, --since 2h, --since 2026-01-31T12:00:00Z")
    if words == "now":
        moment = time.time()
    else:
        moment = time.mktime((now.tm_year, now.tm_mon, day, hour, minute, 0, 0, 0, -1))
        if clock and not clock[1] and moment > time.time():
            moment = time.mktime((now.tm_year, now.tm_mon, day - 1, hour, minute, 0, 0, 0, -1))
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def ask_until(
    client: Client,
    target: Callable[[float], str],
    timeout: float | None,
    too_late: Callable[[Failure], Failure],
    *,
    slack: float = 0.0,
    met: bool = False,
) -> Event:
    """Return a document once the daemon has it, asked for in slices, over restarts of the control plane.

    Args:
        client: Of the daemon.
        target: Of so many seconds: the request.
        timeout: Seconds; None is without end.
        too_late: Makes the failure of a time that is over.
        slack: How much longer than a slice the daemon may take to say that it is over.
        met: The daemon answered before.
    """
    patience, deadline = Patience(met=met), None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
        part = min(max(left, 0.001), _SLICE_SECONDS)  # a socket takes a timeout of 0 for "do not block"
        try:
            document: Event = client.get(target(part), timeout=part + slack).document
            return document
        except Failure as failure:
            if failure.kind == "timed_out":
                patience.met()
            else:
                patience.bear(failure)
            if deadline is not None and time.monotonic() >= deadline:
                raise too_late(failure) from failure


# -- kept output ------------------------------------------------------------------------------------------------------


class Page:
    """A piece of output.

    Attributes:
        content: The bytes.
        end: Where the next page begins.
        total: Bytes of the whole output so far.
        complete: They reach the end, and no more will come.
        truncated: Not all of it was kept (pipes.output_file_bytes); an empty page is the end then.
    """

    __slots__ = ("complete", "content", "end", "total", "truncated")

    def __init__(self, content: bytes, offset: int, fields: dict[str, str]) -> None:
        self.content = content
        self.end = offset + len(content)
        self.total = int(fields.get("x-total-bytes") or 0)
        self.complete = fields.get("x-complete") == "true"
        self.truncated = fields.get("x-truncated") == "true"


def pages(client: Client, route: str, stream: str | None, offset: int = 0, limit: int | None = None) -> Iterator[Page]:
    """Yield page after page up to the end for now, or up to the limit; at least one."""
    left = limit
    while left is None or left > 0:
        size = _PAGE_BYTES if left is None else min(left, _PAGE_BYTES)
        with client.open("GET", query(route, [("offset", offset), ("limit", size), ("stream", stream)])) as exchange:
            page = Page(exchange.read(), offset, exchange.head.fields)
        yield page
        if not page.content or page.complete:
            return
        offset = page.end
        left = None if left is None else left - len(page.content)


def print_pages(invocation: Invocation, found: Iterable[Page], offset: int, place: Event) -> None:
    """Print kept output, under `--json` as one document with its place; say how to go on where there is more."""
    if invocation.json:
        listed = list(found)
        content, last = b"".join(page.content for page in listed), listed[-1]
        facts = {"offset": offset, "total_bytes": last.total, "complete": last.complete, "truncated": last.truncated}
        try:
            invocation.print_json({**place, **facts, "text": content.decode()})
        except UnicodeDecodeError:
            encoded = binascii.b2a_base64(content, newline=False).decode()
            invocation.print_json({**place, **facts, "base64": encoded})
        return
    shown, in_line, outlet = None, False, Outlet.stdout(invocation)
    for shown in found:
        in_line = not shown.content.endswith(b"\n") if shown.content else in_line
        outlet.put(shown.content)
    if outlet.close_line():
        in_line = False
    if shown is None or shown.complete:
        return
    # Where both streams are one place, the notice begins a line of its own.
    before = "\n" if in_line and _is_one_place() else ""
    if shown.truncated and not shown.content:
        kept = f"{shown.end} of {shown.total} bytes were kept (pipes.output_file_bytes)"
        invocation.warn(f"{before}pxctl: {kept}")
    else:
        more = f"{shown.end} of {shown.total} bytes so far; go on with --offset {shown.end}"
        invocation.notice(f"{before}pxctl: {more}")


def _is_one_place() -> bool:
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False


class Outlet:
    """Where one stream goes: bytes as they are, or shaped for a terminal."""

    def __init__(self, write: Callable[[str | bytes], None], shaper: Shaper | None) -> None:
        self._write = write
        self._shaper = shaper
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    @classmethod
    def stdout(cls, invocation: Invocation) -> Self:
        """Return the outlet to stdout."""
        return cls(output.write, _shaper(invocation) if invocation.out_is_terminal else None)

    @classmethod
    def stderr(cls, invocation: Invocation) -> Self:
        """Return the outlet to stderr."""
        return cls(output.write_error, _shaper(invocation) if invocation.err_is_terminal else None)

    def put(self, content: bytes) -> None:
        """Write a piece."""
        shown = content if self._shaper is None else self._shaper.feed(self._decode(content))
        if shown:
            self._write(shown)

    def close_line(self) -> bool:
        """End a line that is begun on a terminal; say whether this is one."""
        if self._shaper is not None and (rest := self._shaper.feed(self._decode(b"", True)) + self._shaper.fresh()):
            self._write(rest)
        return self._shaper is not None


def _shaper(invocation: Invocation) -> Shaper:
    from pxctl.cells import Shaper

    return Shaper(colour=invocation.has_colour, full=True)


# -- executions -------------------------------------------------------------------------------------------------------


def execution_events(invocation: Invocation, execution: Event) -> Iterator[Event]:
    """Yield `start`, then `output` and `status` as they come, and `done` with the final row.

    Raises:
        Failure: There is no such execution any more, or the daemon is away for too long.
    """
    seen = dict.fromkeys(STREAMS, 0)
    route = f"{execution_route(execution)}/tail"
    began = False

    def target() -> str:
        # The offset is that of stdout; what comes twice of stderr is passed over.
        return query(route, [("offset", seen["stdout"] or None)])

    for _, event in events_of(invocation, target, follow=True):
        match event.get("event"):
            case "output":
                stream, content = str(event.get("stream")), bytes_of(event)
                offset, known = int(event.get("offset") or 0), seen.get(stream, 0)
                if offset + len(content) <= known:
                    continue
                seen[stream] = offset + len(content)
                if offset < known:
                    for key in ("text", "base64"):
                        event.pop(key, None)
                    event.update(offset=known, end=seen[stream], bytes=content[known - offset :])
            case "start":
                event["event"] = "status" if began else "start"
                began = True
        yield event
        if event.get("event") == "done":
            return


def execution_route(execution: Event) -> str:
    """Return the route of an execution, under its pipe."""
    return f"/api/pipes/{quote(str(execution.get('pipe_name')))}/executions/{execution.get('id')}"


class ExecutionView:
    """Shows the events of an execution. Use as a context manager: while it lasts, a spinner may be drawn."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        self._invocation = invocation
        self._unit = unit
        self._phase = "…"
        self._has_printed = False
        self._spinner: output.Spinner | None = None
        self._out, self._err = Outlet.stdout(invocation), Outlet.stderr(invocation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop_spinner()
        self._out.close_line()
        self._err.close_line()

    def show(self, event: Event) -> None:
        """Show one event."""
        if event.get("event") == "output":
            pair = (self._out, self._err)
            outlet, other = pair if event.get("stream") != "stderr" else pair[::-1]
            self._stop_spinner()
            self._has_printed = True
            if self._invocation.out_is_terminal and self._invocation.err_is_terminal:
                other.close_line()
            outlet.put(bytes_of(event))
        elif event.get("event") in {"start", "status"}:
            self._show_status(event.get("execution") or {})

    def _show_status(self, execution: Event) -> None:
        words = where_it_is(execution)
        if words and words != self._phase:
            self._phase = words
            self._stop_spinner()
            self._out.close_line()
            self._err.close_line()
            self._invocation.notice(f"pxctl: {self._unit} execution {execution.get('id')}: {words}")
        if not self._has_printed and self._spinner is None and execution.get("status") in {"queued", "running"}:
            self._spinner = self._invocation.spinner(self._unit, lambda: self._phase).__enter__()

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def where_it_is(execution: Event) -> str:
    """Return what an execution is doing: "waiting in line: position 2", "running"; empty once it is over."""
    if execution.get("status") != "queued":
        return "running" if execution.get("status") == "running" else ""
    now, not_before = time.time(), output.epoch(execution.get("not_before"))
    if not_before is not None and not_before > now:
        return f"waiting {output.duration(int(not_before - now) + 1)} before it is tried"
    return f"waiting in line: position {execution['position']}" if execution.get("position") else ""


def follow_execution(invocation: Invocation, execution: Event) -> Event:
    """Show an execution's output and where it is until it is over; return the final row."""
    final = execution
    with ExecutionView(invocation, f"pipe:{execution.get('pipe_name')}") as view:
        for event in execution_events(invocation, execution):
            view.show(event)
            if isinstance(known := event.get("execution"), dict):
                final = known
    if final.get("truncated"):
        invocation.warn(NOT_KEPT)
    return final
