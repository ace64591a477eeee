"""One call of `exec`: sent, followed event by event, cancelled by Ctrl-C, taken up again over a new control plane.

Laws: no byte of output is left out and none is given twice, whatever happens to the connection. Ctrl-C reaches the cell
of this call and nobody else's: while no cell of ours runs it closes the connection, which takes the call out of line.
"""

from __future__ import annotations

import json
import signal
from _thread import start_new_thread

from pxctl import interrupts
from pxctl.client import Answer, query, quote
from pxctl.failure import Failure, Interrupted, Problem, Unreachable
from pxctl.following import Patience
from pxctl.streams import split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from types import FrameType
    from typing import Any, Self

    from pxctl.client import Client

    Event = dict[str, Any]

NDJSON = "application/x-ndjson"
STREAMS = ("stdout", "stderr")
_PROBLEM_TYPE = "urn:px:problem:"
_CUT_OFF = {"interrupted", "shutdown"}
_PAGE_BYTES = 1024 * 1024
_PAUSE_SECONDS = 0.1
_LEAVE_AT = 4
"""The Ctrl-C at which the client goes away: the ladder has four rungs, and goes on by itself."""


class Order:
    """What is asked for.

    Attributes:
        name: Of the session, as the user said it, without its kind.
        cwd: Where, absolute.
        body: Of the request.
        instance: PX_INSTANCE of the caller, None outside of the daemon's children.
    """

    def __init__(self, name: str, cwd: str, body: Mapping[str, Any], instance: str | None) -> None:
        self.name = name
        self.cwd = cwd
        self.body = body
        self.instance = instance

    @property
    def unit(self) -> str:
        """The unit in messages."""
        return f"kernel:{self.name}"

    def open_fields(self, accept: str) -> dict[str, str]:
        """Return the header fields of the request."""
        fields = {"Content-Type": "application/json", "Accept": accept}
        return fields if self.instance is None else {**fields, "X-Px-Instance": self.instance}

    def content(self) -> bytes:
        """Return the body of the request."""
        return json.dumps(self.body, ensure_ascii=False).encode("utf-8", "surrogateescape")

    @property
    def target(self) -> str:
        """Where it is sent."""
        return f"/api/kernels/{quote(self.name)}/execute"


def ask(client: Client, order: Order) -> Answer:
    """Run it and return the whole answer at once. Ctrl-C closes the connection, and thereby cancels."""
    fields = order.open_fields("application/json")
    with client.open("POST", order.target, body=order.content(), fields=fields, timeout=None) as exchange:
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
        self._done: list[dict[str, Any]] = []
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
        if not interrupts.was_noted():
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
        order = self._order
        try:
            fields = order.open_fields(NDJSON)
            with self._client.open("POST", order.target, body=order.content(), fields=fields, timeout=None) as exchange:
                for line in split_lines(exchange.chunks()):
                    if line.strip():
                        yield from self._noted(parsed_event(line))
        except (Interrupted, Problem) as failure:
            if self._cell is None or (isinstance(failure, Problem) and failure.kind not in _CUT_OFF):
                raise
            yield from self._taken_up(self._cell)

    # -- what is known ----------------------------------------------------------------------------------------------

    def _noted(self, event: Event) -> Iterator[Event]:
        """Yield the event, and before the end of a cell what the stream left out of it."""
        match event.get("event"):
            case "starting":
                self.kernel = str(event.get("kernel") or self.kernel)
            case "cell_started":
                self._cell = str(event.get("id"))
                self.kernel = str(event.get("kernel") or self.kernel)
                self._counts = dict.fromkeys(STREAMS, 0)
            case "output":
                self._counts[_stream(event)] += len(bytes_of(event))
            case "cell_done":
                cell = event.get("cell") or {}
                if sum(self._counts.values()) < int(cell.get("total_bytes") or 0):
                    yield from self._rest(str(cell.get("id")))
                self._done.append(cell)
                self._cell = None
            case "done":
                self.kernel = str((event.get("result") or {}).get("kernel") or self.kernel)
        yield event

    def _rest(self, cell_id: str) -> Iterator[Event]:
        for stream in STREAMS:
            while page := self._page(cell_id, stream):
                yield page

    def _page(self, cell_id: str, stream: str) -> Event | None:
        """Return what comes next in the file of a stream as an event; None when there is nothing more now."""
        offset = self._counts[stream]
        target = self._kernel_target(
            f"/cells/{quote(cell_id)}/output", [("offset", offset), ("limit", _PAGE_BYTES), ("stream", stream)]
        )
        with self._client.open("GET", target) as exchange:
            content = exchange.read()
        if not content:
            return None
        self._counts[stream] += len(content)
        return {"event": "output", "id": cell_id, "stream": stream, "bytes": content}

    def _kernel_target(self, path: str, parameters: list[tuple[str, object]] | None = None) -> str:
        return query(f"/api/kernels/{quote(self._located())}{path}", parameters or [])

    def _located(self) -> str:
        """Return the id of the session; a name may mean several, of which one has our cell."""
        if self.kernel == self._order.name and self._cell is not None:
            kernels = self._client.get("/api/kernels").document.get("kernels", [])
            ours = next((one for one in kernels if self._has_cell(one, self._cell)), None)
            self.kernel = self.kernel if ours is None else str(ours.get("id"))
        return self.kernel

    def _has_cell(self, kernel: Mapping[str, Any], cell_id: str) -> bool:
        if kernel.get("running") == cell_id:
            return True
        if kernel.get("name") != self._order.name:
            return False
        history = self._client.get(f"/api/kernels/{quote(str(kernel.get('id')))}/cells").document
        return any(cell.get("id") == cell_id for cell in history.get("cells", []))

    # -- when the control plane is replaced -------------------------------------------------------------------------

    def _taken_up(self, cell_id: str) -> Iterator[Event]:
        """Yield the rest of a cell that goes on while its stream broke off, then what is known of the call."""
        yield {"event": "notice", "text": "the daemon's control plane was replaced; the cell goes on"}
        row = yield from self._until_ended(cell_id)
        self._cell = None
        cell = {
            key: row.get(key) for key in ("id", "title", "status", "error", "duration_seconds", "variables", "steps")
        }
        cell["duration"] = cell["duration_seconds"]
        yield {"event": "cell_done", "cell": cell}
        self._done.append(cell)
        yield {"event": "done", "result": self._pieced_together(row)}

    def _until_ended(self, cell_id: str) -> Generator[Event, None, Event]:
        """Yield the output of a cell until it has ended; return its row of the history."""
        patience = Patience()
        patience.met()
        while True:
            try:
                row = self._row(cell_id)
                patience.met()
                yield from self._rest(cell_id)
            except (Unreachable, Interrupted, Problem) as failure:
                patience.bear(failure)
                continue
            if row.get("status") != "running":
                return row
            interrupts.pause(_PAUSE_SECONDS)

    def _row(self, cell_id: str) -> dict[str, Any]:
        cells = self._client.get(self._kernel_target("/cells")).document.get("cells", [])
        found = next((cell for cell in cells if cell.get("id") == cell_id), None)
        if found is None:
            raise Failure("the cell is not in the session's history", kind="interrupted", hint="pxctl kernel list")
        row: dict[str, Any] = found
        return row

    def _pieced_together(self, row: Mapping[str, Any]) -> dict[str, Any]:
        status = str(row.get("status"))
        return {
            "schema": "px.exec/1",
            "kernel": self.kernel,
            "name": self._order.name,
            "cwd": self._order.cwd,
            "variables": row.get("variables") or "kept",
            "status": status if status != "ok" or not self._has_more() else "aborted",
            "message": self._words(status),
            "notices": [],
            "cells": self._done,
        }

    def _has_more(self) -> bool:
        """Say whether cells were left out, as far as that can be known from what was sent."""
        cells = self._order.body.get("cells")
        return not isinstance(cells, list) and "code" not in self._order.body

    def _words(self, status: str) -> str | None:
        if status == "ok":
            return "The control plane was replaced: later cells were not run." if self._has_more() else None
        return f"The cell ended with status {status} while the control plane was replaced; later cells were not run."

    # -- Ctrl-C -----------------------------------------------------------------------------------------------------

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the cell that runs; again: the next rung. Runs between two instructions of the main thread."""
        del number, frame
        self._presses += 1
        cell_id = self._cell
        if cell_id is None or self._presses >= _LEAVE_AT:
            interrupts.note()
            raise KeyboardInterrupt
        # Not threading: whatever the main thread was doing with its locks waits until this returns.
        start_new_thread(self._interrupt, (cell_id,))

    def _interrupt(self, cell_id: str) -> None:
        try:
            kernel = self._client.get(self._kernel_target("")).document
            if kernel.get("running") == cell_id:
                self._client.ask("POST", self._kernel_target("/interrupt"))
        except Failure:
            # The stream tells what became of the cell; the next Ctrl-C asks again.
            return


def bytes_of(event: Event) -> bytes:
    """Return the bytes of an output event, exactly."""
    if isinstance(content := event.get("bytes"), bytes):
        return content
    if isinstance(encoded := event.get("base64"), str):
        import binascii  # noqa: PLC0415 - only for what is no text

        return binascii.a2b_base64(encoded)
    return str(event.get("text", "")).encode("utf-8", "surrogatepass")


def _stream(event: Event) -> str:
    return "stderr" if event.get("stream") == "stderr" else "stdout"


def parsed_event(line: bytes) -> Event:
    """Return the event of a line of NDJSON.

    Raises:
        Problem: It is the problem that the stream ended with.
        Failure: It is no event.
    """
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
    if not isinstance(event, dict):
        raise Failure("the daemon sent a line that is no event", kind="bad_answer")
    if str(event.get("type", "")).startswith(_PROBLEM_TYPE):
        status = event.get("status")
        raise Problem(status if isinstance(status, int) else 500, event)
    return event
