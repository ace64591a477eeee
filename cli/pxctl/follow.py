"""What takes its time: endless answers, kept output page after page, and waiting, over restarts of the control plane.

After each loss a stream is taken up again at the place that the caller remembers, so that nothing is shown twice and
nothing is left out.
"""

from __future__ import annotations

import binascii
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pxctl.client import Client, query, split_lines
from pxctl.failures import Document, Failure, raise_problem, usage

NDJSON = "application/x-ndjson"
_AWAY_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 60.0
_SLICE_SECONDS = 300.0
_PAGE_BYTES = 1024 * 1024


class Patience:
    """Bears the absence of a daemon that was there before, or of its control plane, for a while."""

    def __init__(self, *, met: bool = False) -> None:
        self._since: float | None = None
        self._met = met

    def met(self) -> None:
        self._met, self._since = True, None

    def bear(self, failure: Failure) -> None:
        """Pause; raise `failure` where it is no loss, or the daemon was never there, or is away too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._met = self._met or failure.kind != "unreachable"
        is_loss = failure.kind in {"unreachable", "interrupted", "shutdown"}
        if not is_loss or not self._met or now - self._since > _AWAY_SECONDS:
            raise failure
        time.sleep(_PAUSE_SECONDS)


def stream(
    client: Client, method: str, target: str, *, opened: Callable[[], None] | None = None, **request: Any
) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event of an NDJSON answer; raises the problem that it ends with."""
    fields = {**request.pop("fields", {}), "Accept": NDJSON}
    with client.open(method, target, fields=fields, **request) as exchange:
        if opened is not None:
            opened()
        for line in filter(bytes.strip, split_lines(exchange.chunks())):
            try:
                event = json.loads(line)
            except ValueError as error:
                raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
            raise_problem(event)
            yield line, event


def events_of(
    client: Client, target: Callable[[], str], *, follow: bool, seen: Callable[[], str | None] = lambda: None
) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event of an NDJSON answer.

    `target` is asked anew at each connection: it names the place, or `seen` does, the Last-Event-ID.
    """
    if not follow:
        yield from stream(client, "GET", target(), timeout=_READ_SECONDS)
        return
    patience = Patience()
    while True:
        try:
            fields = {"Last-Event-ID": last} if (last := seen()) else {}
            yield from stream(client, "GET", target(), opened=patience.met, timeout=None, fields=fields)
            # An orderly end of an endless answer: the control plane is being replaced.
            time.sleep(_PAUSE_SECONDS)
        except Failure as failure:
            patience.bear(failure)


def ask_until(
    client: Client,
    target: Callable[[float], str],
    timeout: float | None,
    too_late: Failure,
    *,
    slack: float = 0.0,
    met: bool = False,
) -> Document:
    """Return a document once the daemon has it, asked for in slices, over restarts of the control plane.

    `target` makes the request of so many seconds; `too_late` is raised once `timeout` is over. `slack`: how much longer
    than a slice the daemon may take to say so. `met`: it answered before.
    """
    patience, deadline = Patience(met=met), None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
        part = min(max(left, 0.001), _SLICE_SECONDS)  # a socket takes a timeout of 0 for "do not block"
        try:
            return client.get(target(part), timeout=part + slack)
        except Failure as failure:
            if failure.kind == "timed_out":
                patience.met()
            else:
                patience.bear(failure)
            if deadline is not None and time.monotonic() >= deadline:
                too_late.unit = failure.unit or too_late.unit
                raise too_late from failure


def bytes_of(event: Document) -> bytes:
    if "bytes" in event:
        return bytes(event["bytes"])
    if "base64" in event:
        return binascii.a2b_base64(event["base64"])
    return str(event.get("text", "")).encode("utf-8", "surrogatepass")


class FetchedPage(NamedTuple):
    """A piece of kept output: its bytes, where the next one begins, the bytes of the whole output so far.

    `complete`: they reach the end, and no more will come. `truncated`: not all of it was kept
    (pipes.output_file_bytes); an empty page is the end then.
    """

    content: bytes
    end: int
    total: int
    complete: bool
    truncated: bool


def pages(
    client: Client, route: str, stream: str | None, offset: int = 0, limit: int | None = None
) -> Iterator[FetchedPage]:
    """Yield page after page up to the end for now, or up to the limit; at least one."""
    last = None if limit is None else offset + limit
    while last is None or offset < last:
        size = _PAGE_BYTES if last is None else min(last - offset, _PAGE_BYTES)
        with client.open("GET", query(route, [("offset", offset), ("limit", size), ("stream", stream)])) as exchange:
            content, fields = exchange.read(), exchange.fields
        offset += len(content)
        is_complete, is_truncated = (fields.get(name) == "true" for name in ("x-complete", "x-truncated"))
        yield FetchedPage(content, offset, int(fields.get("x-total-bytes") or 0), is_complete, is_truncated)
        if not content or is_complete:
            return


def since_when(text: str | None) -> str | None:
    """Return the time of `--since` as the daemon reads it: RFC 3339, or an age ("10m").

    Understands "2 hours ago", and by the clock here "today", "yesterday", "16:00" (the last one that was) and a date
    and time without a zone.
    """
    if text is None:
        return None
    from datetime import UTC, datetime, timedelta

    words, now = text.strip().lower(), datetime.now()
    if re.fullmatch(r"(\d+(\.\d+)?[smhd])+", words):
        return words
    if found := re.fullmatch(r"(\d+(?:\.\d+)?) *([smhd])[a-z]*( +ago)?", words):
        return found[1] + found[2]
    try:
        if words in {"today", "yesterday"}:
            moment = datetime.combine(now.date() - timedelta(days=words == "yesterday"), datetime.min.time())
        elif re.fullmatch(r"\d?\d:\d\d", words):
            moment = datetime.strptime(f"{now:%Y-%m-%d} {words}", "%Y-%m-%d %H:%M")
            moment -= timedelta(days=moment > now)
        else:
            moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        forms = "10m, '2 hours ago', 16:00, today, yesterday, 2026-01-31, 2026-01-31T12:00:00Z"
        raise usage(f"--since {text!r} is no time", f"it takes {forms}") from error
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
