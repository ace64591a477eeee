"""An execution from its beginning to its end: queued once, followed event by event, over new control planes.

Laws: no byte of output is left out and none is given twice, whatever happens to the connection. What is asked to be
queued is queued once: asking again bears the same Idempotency-Key.
"""

from __future__ import annotations

import json
import os

from pxctl.calling import STREAMS, bytes_of, parsed_event
from pxctl.client import query
from pxctl.executions import execution_route
from pxctl.failure import Interrupted, Problem, Unreachable
from pxctl.following import CUT_OFF, Patience, ndjson_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

    Event = dict[str, Any]


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
    """What is told of one execution.

    Args:
        invocation: Whose daemon.
        execution: Which.
        stream: Only this one; None is stdout and stderr.
    """

    def __init__(self, invocation: Invocation, execution: Event, *, stream: str | None = None) -> None:
        self._invocation = invocation
        self._execution = execution
        self._stream = stream
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
            fresh = self._fresh(event)
            if fresh is not None:
                yield fresh
            if event.get("event") == "done":
                return

    def _target(self) -> str:
        """Return the request. The offset is that of the first stream; what comes twice of the other is passed over."""
        first = self._stream or STREAMS[0]
        offset = self._seen.get(first) or None
        return query(execution_route(self._execution, "tail"), [("stream", self._stream), ("offset", offset)])

    def _fresh(self, event: Event) -> Event | None:
        """Return an event without what was given before; None where nothing of it is new."""
        match event.get("event"):
            case "start" if self._began:
                return {**event, "event": "status"}
            case "start":
                self._began = True
                return event
            case "output":
                return self._fresh_output(event)
            case _:
                return event

    def _fresh_output(self, event: Event) -> Event | None:
        stream = str(event.get("stream"))
        content, seen = bytes_of(event), self._seen.get(stream, 0)
        offset = int(event.get("offset") or 0)
        end = offset + len(content)
        if end <= seen:
            return None
        self._seen[stream] = end
        if offset >= seen:
            return event
        rest = content[seen - offset :]
        kept = {key: value for key, value in event.items() if key not in {"text", "base64"}}
        return {**kept, "offset": seen, "end": end, "bytes": rest}
