"""Cells: what `exec` is to run, the call on its way, and what becomes of its events for programs that read them.

What was given is sent as it stands; the daemon splits scripts and reads notebooks. No byte of output is left out and
none is given twice, whatever happens to the connection. Ctrl-C reaches the cell of this call only: while no
cell of ours runs it closes the connection, which takes the call out of line. On a pipe, stdout gets the bytes of the
cells' stdout, unchanged, and the text of results on lines of their own; everything else goes to stderr.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import signal
import time
from _thread import start_new_thread

from pxctl import output, terminal
from pxctl.client import Answer, query, route, split_lines
from pxctl.failure import Failure, Interrupted, Problem, Unreachable, usage
from pxctl.follow import CUT_OFF, NDJSON, STREAMS, Patience, bytes_of, pages, parsed_event
from pxctl.shown_text import Shaper, shaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from typing import Any, Self

    from pxctl.app import Invocation
    from pxctl.client import Client, Exchange
    from pxctl.screen import Album

    Event = dict[str, Any]

NOTEBOOK, SCRIPTS, SHELL = ".ipynb", {".py", ""}, {".sh", ".bash"}
_EXAMPLE = "pxctl exec 'print(1 + 1)', or pxctl exec -f FILE, or … | pxctl exec"


class Source:
    """What is to be run.

    Attributes:
        member: Name of the member of the request: `code`, `script` or `notebook`.
        text: Its value.
        file: Where it was read from; None for code that was typed or piped.
        is_shell: Whether it is for the shell.
    """

    __slots__ = ("file", "is_shell", "member", "text")

    def __init__(self, member: str, text: str, file: str | None = None, *, is_shell: bool = False) -> None:
        self.member = member
        self.text = text
        self.file = file
        self.is_shell = is_shell

    @property
    def is_notebook(self) -> bool:
        """Whether it comes back with outputs in it."""
        return self.member == "notebook"

    def body(self) -> dict[str, Any]:
        """Return its part of the request."""
        return {self.member: self.text}


def read_source(invocation: Invocation, code: str | None, file: str | None, *, bash: bool) -> Source:
    """Return what is to be run.

    Raises:
        Failure: Nothing was given, two things were, or the file cannot be read.
    """
    if code is not None and file is not None:
        raise usage("CODE and -f exclude each other", "pxctl exec -f FILE")
    if file is not None:
        return _from_file(file, bash=bash)
    if code is not None and code != "-":
        return Source("code", code, is_shell=bash)
    if code is None and invocation.in_is_terminal:
        raise usage("there is nothing to run", _EXAMPLE)
    text = _text(terminal.read_input(), "stdin")
    if not text.strip():
        raise usage("there is nothing to run: stdin is empty", _EXAMPLE)
    return Source("code", text, is_shell=bash)


def _from_file(file: str, *, bash: bool) -> Source:
    if file == "-":
        return Source("code" if bash else "script", _text(terminal.read_input(), "stdin"), file, is_shell=bash)
    try:
        with open(file, "rb") as opened:
            text = _text(opened.read(), file)
    except OSError as error:
        raise usage(f"cannot read {file}: {error.strerror}", f"ls -l {file}") from error
    ending = os.path.splitext(file)[1].lower()
    if ending == NOTEBOOK:
        if bash:
            raise usage(f"{file} is a notebook, and --bash runs shell scripts", f"pxctl exec -f {file}")
        return Source("notebook", text, file)
    is_shell = bash or ending in SHELL
    return Source("script" if ending in SCRIPTS and not is_shell else "code", text, file, is_shell=is_shell)


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage(f"{where} is no UTF-8 text: byte {error.start}", f"iconv -t UTF-8 {where}") from error


# -- the call ---------------------------------------------------------------------------------------------------------

_PAUSE_SECONDS = 0.1
_LEAVE_AT = 4
"""The Ctrl-C at which the client goes away: the ladder has four rungs, and goes on by itself."""


class Order:
    """What is asked for.

    Attributes:
        name: Of the session, as the user said it, without its kind.
        unit: The unit in messages.
        cwd: Where, absolute.
        body: Of the request.
        instance: PX_INSTANCE of the caller, None outside of the daemon's children.
    """

    def __init__(self, name: str, cwd: str, body: Mapping[str, Any], instance: str | None) -> None:
        self.name = name
        self.unit = f"kernel:{name}"
        self.cwd = cwd
        self.body = body
        self.instance = instance

    def send(self, client: Client, accept: str) -> Exchange:
        """Send it; return the exchange with the answer still to be read."""
        fields = {"Content-Type": "application/json", "Accept": accept}
        if self.instance is not None:
            fields["X-Px-Instance"] = self.instance
        body = json.dumps(self.body, ensure_ascii=False).encode("utf-8", "surrogateescape")
        return client.open("POST", route("kernel", self.name, "execute"), body=body, fields=fields, timeout=None)


def ask(client: Client, order: Order) -> Answer:
    """Run it and return the whole answer at once. Ctrl-C closes the connection, and thereby cancels."""
    with order.send(client, "application/json") as exchange:
        raw = exchange.read()
    try:
        return Answer(raw, json.loads(raw))
    except ValueError as error:
        raise Failure(f"the daemon's answer is not JSON: {error}", kind="bad_answer", hint="pxctl doctor") from error


class Call:
    """A call on its way. Use as a context manager: while it lasts, Ctrl-C belongs to it.

    Args:
        client: Of the daemon.
        order: What is asked for.
    """

    def __init__(self, client: Client, order: Order) -> None:
        self._client = client
        self._order = order
        self._cell: str | None = None
        self._counts = dict.fromkeys(STREAMS, 0)
        self._done: list[Event] = []
        self._presses = 0
        self._before: Any = None
        self.kernel = order.name

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            # A shell has its background jobs ignore the Ctrl-C that is meant for others.
            signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *exc: object) -> None:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
            signal.signal(signal.SIGINT, self._before)

    @property
    def was_cancelled(self) -> bool:
        """Whether the user pressed Ctrl-C."""
        return self._presses > 0

    def events(self) -> Iterator[Event]:
        """Yield what happens up to `done`.

        Raises:
            Failure: The call never ran, or was cut off before its first cell.
            KeyboardInterrupt: It was cancelled before its first cell, or its end is not waited for any more.
        """
        try:
            with self._order.send(self._client, NDJSON) as exchange:
                for line in filter(bytes.strip, split_lines(exchange.chunks())):
                    yield from self._noted(parsed_event(line))
        except (Interrupted, Problem) as failure:
            if self._cell is None or (isinstance(failure, Problem) and failure.kind not in CUT_OFF):
                raise
            yield from self._taken_up(self._cell)

    def _noted(self, event: Event) -> Iterator[Event]:
        """Yield the event, and before the end of a cell what the stream left out of it."""
        self.kernel = str(event.get("kernel") or (event.get("result") or {}).get("kernel") or self.kernel)
        match event.get("event"):
            case "cell_started":
                self._cell = str(event.get("id"))
                self._counts = dict.fromkeys(STREAMS, 0)
            case "output":
                self._counts[_stream(event)] += len(bytes_of(event))
            case "cell_done":
                cell = event.get("cell") or {}
                if sum(self._counts.values()) < int(cell.get("total_bytes") or 0):
                    yield from self._rest(str(cell.get("id")))
                self._done.append(cell)
                self._cell = None
        yield event

    def _rest(self, cell_id: str) -> Iterator[Event]:
        """Yield what comes next in the files of a cell's output, as events."""
        for stream in STREAMS:
            target = route("kernel", self.kernel, f"cells/{cell_id}/output")
            for page in pages(self._client, target, [("stream", stream)], self._counts[stream], None):
                self._counts[stream] = page.end
                if page.content:
                    yield {"event": "output", "id": cell_id, "stream": stream, "bytes": page.content}

    def _taken_up(self, cell_id: str) -> Iterator[Event]:
        """Yield the rest of a cell that goes on while its stream broke off, then what is known of the call."""
        yield {"event": "notice", "text": "the daemon's control plane was replaced; the cell goes on"}
        row = yield from self._until_ended(cell_id)
        self._cell = None
        members = ("id", "title", "status", "error", "duration_seconds", "variables", "steps")
        cell = {**{key: row.get(key) for key in members}, "duration": row.get("duration_seconds")}
        self._done.append(cell)
        yield {"event": "cell_done", "cell": cell}
        yield {"event": "done", "result": self._pieced_together(row)}

    def _until_ended(self, cell_id: str) -> Generator[Event, None, Event]:
        """Yield the output of a cell until it has ended; return its row of the history."""
        patience = Patience(met=True)
        while True:
            try:
                cells = self._client.get(route("kernel", self.kernel, "cells")).document.get("cells", [])
                row: Event | None = next((cell for cell in cells if cell.get("id") == cell_id), None)
                if row is None:
                    detail = "the cell is not in the session's history"
                    raise Failure(detail, kind="interrupted", hint="pxctl kernel list")
                patience.met()
                yield from self._rest(cell_id)
            except (Unreachable, Interrupted, Problem) as failure:
                patience.bear(failure)
                continue
            if row.get("status") != "running":
                return row
            time.sleep(_PAUSE_SECONDS)

    def _pieced_together(self, row: Event) -> Event:
        status, message = str(row.get("status")), None
        # Cells may have been left out, as far as that can be known from what was sent.
        has_more = not isinstance(self._order.body.get("cells"), list) and "code" not in self._order.body
        if status != "ok":
            message = (
                f"The cell ended with status {status} while the control plane was replaced; later cells were not run."
            )
        elif has_more:
            message = "The control plane was replaced: later cells were not run."
        return {
            "schema": "px.exec/1",
            "kernel": self.kernel,
            "name": self._order.name,
            "cwd": self._order.cwd,
            "variables": row.get("variables") or "kept",
            "status": "aborted" if status == "ok" and has_more else status,
            "message": message,
            "notices": [],
            "cells": self._done,
        }

    def _pressed(self, number: int, frame: object) -> None:
        """Interrupt the cell that runs; again: the next rung. Runs between two instructions of the main thread."""
        self._presses += 1
        if self._cell is None or self._presses >= _LEAVE_AT:
            terminal.interrupt(number, frame)
        # Not threading: whatever the main thread was doing with its locks waits until this returns.
        start_new_thread(self._interrupt, (str(self._cell),))

    def _interrupt(self, cell_id: str) -> None:
        # The stream tells what became of the cell; the next Ctrl-C asks again.
        with contextlib.suppress(Failure):
            self._client.ask("POST", query(route("kernel", self.kernel, "interrupt"), [("cell", cell_id)]))


def _stream(event: Event) -> str:
    return "stderr" if event.get("stream") == "stderr" else "stdout"


# -- what a bundle of a result holds ----------------------------------------------------------------------------------

PICTURES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
}
"""What is saved, with the ending of its file."""
_SVG = "image/svg+xml"
_JSON = "application/json"
_TEXTS = ("text/markdown", "text/plain", "text/html", "text/latex")
_TAGS = re.compile(r"<(style|script)\b.*?</\1\s*>|<[^<>]*>", re.DOTALL | re.IGNORECASE)


def picture_in(bundle: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """Return media type and bytes of the first picture; None where there is none, or what is there is not base64."""
    for mime in PICTURES:
        if mime in bundle:
            text = _joined(bundle[mime])
            try:
                found = text.encode() if mime == _SVG else binascii.a2b_base64("".join(text.split()), strict_mode=True)
            except (ValueError, UnicodeEncodeError):
                continue
            if found:
                return mime, found
    return None


def words_of(bundle: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return the text that stands for a bundle, in the daemon's own order; empty where it has none, as a picture."""
    if _JSON in bundle:
        return json.dumps(bundle[_JSON], ensure_ascii=False, indent=indent)
    mime = next((mime for mime in _TEXTS if mime in bundle), None)
    text = "" if mime is None else _joined(bundle[mime])
    if mime != "text/html":
        return text
    lines = (line.strip() for line in _TAGS.sub(" ", text).splitlines())
    return "\n".join(line for line in lines if line)


def _joined(value: Any) -> str:
    """Return a value as one text; a bundle may hold it as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- what is shown ----------------------------------------------------------------------------------------------------

SIGNS = {"ok": "✓", "error": "✗", "cancelled": "⊘", "timed_out": "⏱", "aborted": "-"}
STYLES = {"ok": "green", "error": "red", "cancelled": "yellow", "timed_out": "red", "aborted": "dim"}


class View:
    """Shows a call. Subclasses say how the things of a cell are shown.

    Args:
        invocation: Where to.
        has_headers: Whether cells are announced though there is only one.
    """

    def __init__(self, invocation: Invocation, *, has_headers: bool) -> None:
        self.invocation = invocation
        self._has_headers = has_headers
        self._said: set[str] = set()
        self._raised = False
        self.count = 0
        self.index = 0
        self.title: str | None = None

    @property
    def heads(self) -> bool:
        """Whether the cell that runs has a header."""
        if self.invocation.quiet:
            return False
        is_single = self.count == 1 or not self._has_headers
        return bool(self.title) or self.count > 1 or self.index > 0 or not is_single

    def show(self, event: Event) -> None:
        """Show one event."""
        match event.get("event"):
            case "cell_started":
                self.index, self.title = int(event.get("index") or 0), event.get("title")
                self.count = max(self.count, int(event.get("count") or 0))
                self._raised = False
                self.begin(event)
            case "output":
                self.output("stderr" if event.get("stream") == "stderr" else "stdout", bytes_of(event))
            case "display" | "result":
                self.rich(str(event.get("id")), event)
            case "error":
                self._raised = True
                self.traceback(list(map(str, event.get("traceback") or [])))
            case "cell_done":
                self._done(event.get("cell") or {})
            case "status":
                self.status(event.get("status") or {})
            case _:
                self._show_besides(event)

    def _done(self, cell: Event) -> None:
        """Show the end of a cell; an error that was not shown yet has no traceback: a shell's exit code, a death."""
        error = cell.get("error") or {}
        if error and not self._raised and cell.get("status") == "error":
            self.traceback([f"{error.get('name')}: {error.get('value')}"])
        self.end(cell)

    def _show_besides(self, event: Event) -> None:
        """Show what is not of the cell itself."""
        match event.get("event"):
            case "notice":
                self.say_once(str(event.get("text")))
            case "rung":
                self.remark(f"ending the cell: {event.get('action')}")
            case "queued":
                self.waiting(f"waiting in line ({event.get('position')})…")
            case "starting":
                self.waiting("starting the kernel…")

    def conclude(self, result: Event) -> None:
        """Tell what is to be told of the whole call, whatever came of it."""
        for cell in result.get("cells") or []:
            for text in cell.get("notices") or []:
                self.say_once(str(text))
        for text in result.get("notices") or []:
            self.say_once(str(text))

    def say_once(self, text: str) -> None:
        """Tell a sentence that the daemon may repeat."""
        if text not in self._said:
            self._said.add(text)
            self.close_line()
            self.invocation.notice(f"pxctl: {shaped(text, colour=False).rstrip()}")

    def number(self) -> str:
        """Return `[2/5]`, or `[2]` where nobody knows how many there are."""
        return f"[{self.index + 1}/{self.count}]" if self.count else f"[{self.index + 1}]"

    def header(self) -> str:
        """Return the header line of the cell, without colour."""
        title = shaped(self.title, colour=False).strip() if self.title else ""
        return f"{self.number()} {title}".rstrip()

    def verdict(self, cell: Event) -> tuple[str, str]:
        """Return the words and the style for how a cell ended."""
        status = str(cell.get("status"))
        word = "" if status == "ok" else f" {status.replace('_', ' ')}"
        seconds = cell.get("duration_seconds")
        took = f" {_seconds(seconds)}" if isinstance(seconds, int | float) else ""
        return f"{SIGNS.get(status, '?')}{word}{took}", STYLES.get(status, "red")

    # What the kinds of views show each in their own way: by default nothing.

    def begin(self, event: Event) -> None:
        """A cell was sent to the kernel."""

    def output(self, stream: str, content: bytes) -> None:
        """Some more of what it prints."""

    def rich(self, cell_id: str, event: Event) -> None:
        """A result or a display."""

    def traceback(self, lines: list[str]) -> None:
        """It raised something."""

    def status(self, status: Event) -> None:
        """A helper of the prelude says what it did."""

    def remark(self, text: str) -> None:
        """A step of the ladder was taken."""

    def waiting(self, phase: str) -> None:
        """Nothing runs yet."""

    def close_line(self) -> None:
        """End a line that is begun."""

    def end(self, cell: Event) -> None:
        """It ended."""

    def finish(self) -> None:
        """Nothing more comes, whatever the reason; may be called twice."""
        self.close_line()


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 10 else output.duration(seconds)


class PipeView(View):
    """Writes stdout for programs.

    Args:
        invocation: Where to.
        has_headers: As in View.
        raw: The bytes that cells print and nothing else.
        album: Where pictures are saved; None saves none.
    """

    def __init__(self, invocation: Invocation, *, has_headers: bool, raw: bool, album: Album | None) -> None:
        super().__init__(invocation, has_headers=has_headers)
        self._raw = raw
        self._album = album
        self._ends_line = True
        self._colour = invocation.err_paint.on
        self._shaper = Shaper(colour=self._colour, full=True) if invocation.err_is_terminal else None

    def begin(self, event: Event) -> None:
        """Announce it on stderr."""
        del event
        if self.heads and not self._raw:
            self.close_line()
            self.invocation.notice(self.header())

    def output(self, stream: str, content: bytes) -> None:
        """Pass the bytes on."""
        if stream == "stdout":
            self.invocation.write(content)
            self._ends_line = content.endswith(b"\n") if content else self._ends_line
        elif self._shaper is None:
            terminal.write_error(content)
        else:
            terminal.write_error(self._shaper.feed(content.decode("utf-8", "replace")))

    def rich(self, cell_id: str, event: Event) -> None:
        """Write the text of a result on lines of its own, and name the file of a picture on stderr."""
        if self._raw or event.get("update"):
            return
        bundle = event.get("data") or {}
        if text := words_of(bundle):
            before = "" if self._ends_line else "\n"
            self.invocation.write(before + (text if text.endswith("\n") else text + "\n"))
            self._ends_line = True
        if self._album is not None and (picture := picture_in(bundle)) is not None:
            mime, content = picture
            path = self._album.save(mime, content, cell_id)
            self.invocation.notice(f"pxctl: {mime} ({output.size(len(content))}) saved: {path}")

    def traceback(self, lines: list[str]) -> None:
        """Write it to stderr."""
        if lines and not self._raw:
            self.close_line()
            terminal.write_error(shaped("\n".join(lines), colour=self._colour))

    def remark(self, text: str) -> None:
        """Tell it on stderr."""
        if not self._raw:
            self.close_line()
            self.invocation.notice(f"pxctl: {text}")

    def close_line(self) -> None:
        """End a line of stderr that is begun."""
        if self._shaper is not None:
            terminal.write_error(self._shaper.fresh())

    def end(self, cell: Event) -> None:
        """Say on stderr how it ended."""
        self.close_line()
        if self.heads and not self._raw:
            self.invocation.notice(f"{self.number()} {self.verdict(cell)[0]}")


def failure_of(result: Event, unit: str, *, cancelled: bool) -> Failure | None:
    """Return the failure that a call ended with, None when all is well. Its sentence is the daemon's."""
    status = str(result.get("status"))
    if status == "ok":
        return None
    cell: Event = next((each for each in result.get("cells") or [] if each.get("status") != "ok"), {})
    error = str((cell.get("error") or {}).get("name") or "")
    code = EXITS.get(status, 1) if error != "ResourceLimitExceeded" else LIMIT
    message = str(result.get("message") or f"the cell ended with status {status}")
    kind = "cancelled" if cancelled and status == "cancelled" else f"cell_{status}"
    return Failure(message, kind=kind, exit_code=code, unit=unit, hint=_hint(status, cell, result))


EXITS = {"error": 1, "cancelled": 1, "aborted": 1, "timed_out": 7}
LIMIT = 9


def _hint(status: str, cell: Event, result: Event) -> str | None:
    kernel = result.get("kernel")
    if status == "timed_out":
        return "give it longer: pxctl exec --timeout S"
    if (cell.get("error") or {}).get("name") == "KernelDied":
        return f"pxctl why kernel:{kernel}"
    return None


# -- a kernel that is started ------------------------------------------------------------------------------------------


class Progress(View):
    """What is waited for: a spinner on a terminal, and the lines of builds wherever stderr goes."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        super().__init__(invocation, has_headers=False)
        self._unit = unit
        self._phase = "starting…"
        self._spinner: terminal.Spinner | None = None

    def __enter__(self) -> Self:
        self.waiting(self._phase)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_line()

    def show(self, event: Event) -> None:
        """Show one event; the spinner goes on below what was said."""
        super().show(event)
        self.waiting(self._phase)

    def waiting(self, phase: str) -> None:
        """Say what is waited for, where it takes a while."""
        self._phase = phase
        if self._spinner is None:
            self._spinner = self.invocation.spinner(self._unit, lambda: self._phase)
            self._spinner.__enter__()

    def close_line(self) -> None:
        """Erase the spinner."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def start_kernel(client: Client, content: Event, progress: Progress) -> Event:
    """Start it and show what is waited for; return the session."""
    fields = {"Content-Type": "application/json", "Accept": NDJSON}
    body = json.dumps(content).encode()
    with client.open("POST", "/api/kernels", body=body, fields=fields, timeout=None) as exchange:
        for line in split_lines(exchange.chunks()):
            event = parsed_event(line) if line.strip() else {}
            if event.get("event") == "done":
                return dict(event.get("result") or {})
            if event.get("schema") == "px.kernel/1":
                return event  # a daemon of an earlier version answers with the session alone
            progress.show(event)
    raise Failure("the daemon's answer ended before the kernel was ready", kind="bad_answer", hint="pxctl doctor")
