"""Output that comes over time: followed over restarts of the control plane, and shown as pipe and terminal get it.

After each loss a stream is taken up again at the place that the caller remembers, so that nothing is shown twice and
nothing is left out. A pipe gets bytes as they are, a terminal text that cannot steer it.
"""

from __future__ import annotations

import binascii
import codecs
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from pxctl import output
from pxctl.app import Invocation
from pxctl.client import AWAY, Client, Document, Exit, Failure, query, usage

NDJSON = "application/x-ndjson"
STREAMS = ("stdout", "stderr")
_AWAY_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 60.0
_SLICE_SECONDS = 300.0
_PAGE_BYTES = 1024 * 1024


# -- a daemon that is away ---------------------------------------------------------------------------------------------


def waking_client(invocation: Invocation) -> Client:
    """Return a client that starts the daemon where nobody answers, unless that is turned off."""
    if invocation.no_autostart or invocation.env.get("PX_AUTOSTART", "1").lower() in {"0", "false", "no", "off"}:
        return invocation.client()

    def wake() -> None:
        from pxctl.service import START_SECONDS, start_daemon  # which few calls need

        invocation.notice("pxctl: starting pxd …")
        start_daemon(invocation, START_SECONDS)

    return invocation.client(wake)


class Patience:
    """Bears the absence of a daemon that was there before, or of its control plane, for a while."""

    _seen: float | None = None  # when there was the last sign of it

    def met(self) -> None:
        self._seen = time.monotonic()

    def bear_cut(self, failure: Failure) -> None:
        """Do the same for an answer that has an end, and was cut off before it: a daemon that is gone stays gone."""
        if failure.kind == "unreachable" and self._seen is not None:
            detail = "the daemon was stopped before its answer was complete; what was shown is not all"
            hint = "pxctl daemon start, then run the same command again"
            raise Failure(detail, kind="interrupted", hint=hint) from failure
        self.bear(failure)

    def bear(self, failure: Failure) -> None:
        """Pause; raise `failure` where it is no loss, or the daemon was never there, or is away too long."""
        if failure.kind != "unreachable":  # who took the request was there until now
            self.met()
        if failure.kind not in AWAY or self._seen is None or time.monotonic() - self._seen > _AWAY_SECONDS:
            raise failure
        time.sleep(_PAUSE_SECONDS)


# -- followed ---------------------------------------------------------------------------------------------------------


def stream(client: Client, method: str, target: str, **request: Any) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event of an NDJSON answer; raises the problem that it ends with."""
    fields = {**request.pop("fields", {}), "Accept": NDJSON}
    with client.open(method, target, fields=fields, **request) as exchange:
        for line in exchange.lines():
            yield line, json.loads(line)


def events_of(client: Client, target: str, asked: dict[str, object]) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event of an NDJSON answer to the parameters `asked`; unless `follow` is false, for ever.

    After a loss it goes on behind the last event, at the position, number or mark that this one names. Raises Failure
    if the answer has an end and cannot be had up to it.
    """
    is_endless = asked.get("follow", True)
    patience, seen = Patience(), dict[str, str]()
    while True:
        try:
            timeout = None if is_endless else _READ_SECONDS
            for line, event in stream(client, "GET", query(target, asked.items()), timeout=timeout, fields=seen):
                patience.met()
                if "seen" in event:
                    seen = {"Last-Event-ID": event["seen"]}
                elif "next_position" in event:
                    asked |= {"cursor": event["next_position"], "lines": None, "since": None}
                elif "id" in event:
                    asked |= {"after": event["id"], "limit": None}
                yield line, event
            if not is_endless:
                return
            patience.met()
            time.sleep(_PAUSE_SECONDS)  # an orderly end of an endless answer: the control plane is being replaced
        except Failure as failure:
            if is_endless:
                patience.bear(failure)
            else:
                patience.bear_cut(failure)


def ask_until(client: Client, target: Callable[[float], str], timeout: float | None, *, slack: float = 0.0) -> Document:
    """Return a document once the daemon has it, asked for in slices, over restarts of the control plane.

    `target` makes the request of so many seconds; `slack`: how much longer than those the daemon may take to say that
    they are over. Raises Failure: `timeout` is over.
    """
    patience, deadline = Patience(), None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
        part = min(max(left, 0.001), _SLICE_SECONDS)  # a socket takes 0 for "do not block"
        try:
            return client.get(target(part), timeout=part + slack)
        except Failure as failure:
            if failure.kind == "timed_out":
                patience.met()
            else:
                patience.bear(failure)
            if deadline is not None and time.monotonic() >= deadline:
                failure.kind, failure.exit_code = "timed_out", Exit.TIMED_OUT
                raise


def bytes_of(event: Document) -> bytes:
    if "bytes" in event:
        return bytes(event["bytes"])
    if "base64" in event:
        return binascii.a2b_base64(event["base64"])
    return str(event.get("text", "")).encode("utf-8", "surrogatepass")


def pages(
    client: Client, route: str, stream: str, offset: int = 0, limit: int | None = None
) -> Iterator[tuple[bytes, int, Document]]:
    """Yield pages of kept output up to its end for now, or to the limit; at least one.

    Each is its content, where the next one begins, and what is known: `total_bytes` so far; `complete`: no more will
    come; `truncated`: not all was kept (a full disk), and an empty page is the end.
    """
    last = None if limit is None else offset + limit
    patience = Patience()
    while last is None or offset < last:
        size = _PAGE_BYTES if last is None else min(last - offset, _PAGE_BYTES)
        page = query(route, [("offset", offset), ("limit", size), ("stream", stream)])
        try:
            with client.open("GET", page) as exchange:
                content, fields = exchange.read(), exchange.fields
        except Failure as failure:  # a page is asked for again: nothing of it was shown
            patience.bear_cut(failure)
            continue
        patience.met()
        offset += len(content)
        known: Document = {name: fields.get(f"x-{name}") == "true" for name in ("complete", "truncated")}
        yield content, offset, known | {"total_bytes": int(fields.get("x-total-bytes") or 0)}
        if not content or known["complete"]:
            return


def since_when(text: str | None) -> str | None:
    """Return a time as the daemon reads it, RFC 3339 or an age; "today" and times without a zone are of here."""
    if text is None:
        return None
    from datetime import UTC, datetime, timedelta

    words, now = text.strip().lower(), datetime.now()
    if found := re.fullmatch(r"((?:\d+(?:\.\d+)?[smhd])+)|(\d+(?:\.\d+)?) *([smhd])[a-z]*(?: +ago)?", words):
        return found[1] or found[2] + found[3]
    try:
        if words in {"today", "yesterday"}:
            moment = datetime.combine(now.date() - timedelta(days=words == "yesterday"), datetime.min.time())
        elif re.fullmatch(r"\d?\d:\d\d", words):
            moment = datetime.fromisoformat(f"{now:%Y-%m-%d} {words:0>5}")
            moment -= timedelta(days=moment > now)
        else:
            moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        forms = "10m, '2 hours ago', 16:00, today, yesterday, 2026-01-31, 2026-01-31T12:00:00Z"
        raise usage(f"--since {text!r} is no time", f"it takes {forms}") from error
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- shown ------------------------------------------------------------------------------------------------------------

_STEERING = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI, of which colours are
    r"|\x1b[\]P_^X][^\x07\x1b\x9c\n]{0,1024}(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]{1,4}[0-~]|\x1b[0-OQ-WYZ\\`-~]"  # two characters and more (ECMA-48)
    # C0 but tab, newline, return; DEL, C1, overrides of direction, halves of characters
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What may become an escape sequence with the next piece.
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]P_^X][^\x07\x1b\x9c\n]{0,1024}\x1b?|[ -/]{0,4})?\Z")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def harmless(text: str, *, colour: bool = False) -> str:
    """Return a complete text without what steers a terminal; colours stay where `colour` wants them."""

    def instead(found: re.Match[str]) -> str:
        kept = found[0] if colour and _COLOUR.fullmatch(found[0]) else ""
        return "�" if len(found[0]) == 1 else kept

    return _STEERING.sub(instead, text)


class Outlet:
    """Where one stream goes: bytes as they are, or made harmless for a terminal, the same however they are cut."""

    def __init__(self, invocation: Invocation, stream: str) -> None:
        is_err = stream == "stderr"
        self.is_terminal = invocation.err_is_terminal if is_err else invocation.out_is_terminal
        self._write = output.write_error if is_err else output.write
        self._colour = invocation.err_has_colour if is_err else invocation.has_colour
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""  # the beginning of an escape sequence
        self._ends_line, self._is_painted = True, False

    def put(self, content: bytes, *, is_end: bool = False) -> None:
        if not self.is_terminal:
            self._ends_line = content.endswith(b"\n") if content else self._ends_line
            self._write(content)
            return
        text, self._held = self._held + self._decode(content, is_end), ""
        if not is_end and (begun := _BEGUN.search(text)):
            text, self._held = text[: begun.start()], begun[0]
        if shown := harmless(text, colour=self._colour):
            self._ends_line, self._is_painted = shown.endswith("\n"), self._is_painted or "\x1b" in shown
            self._write(shown)

    def put_lines(self, text: str) -> None:
        whole = ("" if self._ends_line else "\n") + text.removesuffix("\n") + "\n"
        self.put(whole.encode("utf-8", "surrogatepass"))

    def close_line(self) -> None:
        """End a line and a colour that are begun on a terminal."""
        if self.is_terminal:
            self.put(b"", is_end=True)
            self._write(("\x1b[0m" if self._is_painted else "") + ("" if self._ends_line else "\n"))
            self._ends_line, self._is_painted = True, False


class Screen(AbstractContextManager["Screen"]):
    """Both streams of what runs elsewhere, what is said about it, and a spinner; as a context manager it ends lines."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        self.invocation, self.phase = invocation, "…"
        self.out, self.err = (Outlet(invocation, stream) for stream in STREAMS)
        self._spinner = invocation.spinner(unit, lambda: self.phase)
        self._said: set[str] = set()

    def __exit__(self, *exc: object) -> None:
        self.close_lines()

    def put(self, stream: str, content: bytes) -> None:
        outlet, other = (self.err, self.out) if stream == "stderr" else (self.out, self.err)
        self._spinner.stop()
        if outlet.is_terminal:
            other.close_line()
        outlet.put(content)

    def say(self, text: str, style: str | None = None) -> None:
        """Write a line to stderr, unless -q silences it; text of others is made harmless."""
        self.close_lines()
        words = harmless(text).rstrip()
        self.invocation.notice(output.paint(words, style, on=self.invocation.err_has_colour))

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(f"pxctl: {text}")

    def wait(self, phase: str) -> None:
        self.phase = phase
        self._spinner.start()

    def close_lines(self) -> None:
        self._spinner.stop()
        self.out.close_line()
        self.err.close_line()
