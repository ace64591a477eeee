"""Output that comes over time: followed over restarts of the control plane, and shown as pipe and
terminal get it.

After each loss a stream is taken up again at the place that the caller remembers, so that nothing
is shown twice and nothing is left out. A pipe gets bytes as they are, a terminal text that cannot
steer it.
"""

from __future__ import annotations

import binascii
import codecs
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pxctl import output
from pxctl.app import Invocation
from pxctl.client import AWAY, Client, Document, Exit, Failure, query, usage

if TYPE_CHECKING:
    from datetime import datetime

NDJSON = "application/x-ndjson"
OnHead = Callable[[Mapping[str, str]], None]
STREAMS = ("stdout", "stderr")
_AWAY_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 60.0
_SLICE_SECONDS = 300.0
_PAGE_BYTES = 1024 * 1024
_ALL = 1_000_000_000  # more events than are ever kept


# -- a daemon that is away -------------------------------------------------------------------------


def waking_client(invocation: Invocation) -> Client:
    """Return a client that starts the daemon where nobody answers, unless that is turned off."""
    if invocation.no_autostart or invocation.env.get("PX_AUTOSTART", "1").lower() in {
        "0",
        "false",
        "no",
        "off",
    }:
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
        """Do the same for an answer that has an end, and was cut off before it: a daemon that is
        gone stays gone.
        """
        if failure.kind == "unreachable" and self._seen is not None:
            detail = (
                "the daemon was stopped before its answer was complete; what was shown is not all"
            )
            hint = "pxctl daemon start, then run the same command again"
            raise Failure(detail, kind="interrupted", hint=hint) from failure
        self.bear(failure)

    def bear(self, failure: Failure) -> None:
        """Pause; raise `failure` where it is no loss, or the daemon was never there, or is away
        too long.
        """
        if failure.kind != "unreachable":  # who took the request was there until now
            self.met()
        if (
            failure.kind not in AWAY
            or self._seen is None
            or time.monotonic() - self._seen > _AWAY_SECONDS
        ):
            raise failure
        time.sleep(_PAUSE_SECONDS)


# -- followed --------------------------------------------------------------------------------------


def stream(
    client: Client, method: str, target: str, *, on_head: OnHead | None = None, **request: Any
) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event of an NDJSON answer; raises the problem that it ends with.

    `on_head` is called with the answer's fields, in lower case, before its first line.
    """
    fields = {**request.pop("fields", {}), "Accept": NDJSON}
    with client.open(method, target, fields=fields, **request) as exchange:
        if on_head is not None:
            on_head(exchange.fields)
        for line in exchange.lines():
            yield line, json.loads(line)


def events_of(
    client: Client, target: str, asked: dict[str, object], on_head: OnHead | None = None
) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event of an NDJSON answer to the parameters `asked`; unless `follow` is false,
    for ever.

    After a loss it goes on behind the last event, at the position, number or mark that this one
    names. Raises Failure if the answer has an end and cannot be had up to it.
    """
    is_endless = asked.get("follow", True)
    patience, seen = Patience(), dict[str, str]()
    while True:
        try:
            request: dict[str, Any] = {
                "timeout": None if is_endless else _READ_SECONDS,
                "fields": seen,
            }
            for line, event in stream(
                client, "GET", _question(target, asked), on_head=on_head, **request
            ):
                patience.met()
                if "seen" in event:
                    seen = {"Last-Event-ID": event["seen"]}
                elif "next_position" in event:
                    asked |= {"cursor": event["next_position"], "lines": None, "since": None}
                elif "id" in event:
                    rest = None if is_endless else _ALL
                    asked |= {"after": event["id"], "limit": rest, "since": None}
                yield line, event
            if not is_endless:
                return
            patience.met()
            # an orderly end of an endless answer: the control plane is being replaced
            time.sleep(_PAUSE_SECONDS)
        except Failure as failure:
            if is_endless:
                patience.bear(failure)
            else:
                patience.bear_cut(failure)


def _question(target: str, asked: dict[str, object]) -> str:
    """Return path and query; what is given several times is a tuple."""
    items: list[tuple[str, object]] = []
    for name, value in asked.items():
        items += [(name, each) for each in value] if isinstance(value, tuple) else [(name, value)]
    return query(target, items)


def ask_until(
    client: Client, target: Callable[[float], str], timeout: float | None, *, slack: float = 0.0
) -> Document:
    """Return a document once the daemon has it, asked for in slices, over restarts of the control
    plane.

    `target` makes the request of so many seconds; `slack`: how much longer than those the daemon
    may take to say that they are over. Raises Failure: `timeout` is over.
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

    Each is its content, where the next one begins, and what is known: `total_bytes` so far;
    `complete`: no more will come; `truncated`: not all was kept (a full disk), and an empty page is
    the end.
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
        known: Document = {
            name: fields.get(f"x-{name}") == "true" for name in ("complete", "truncated")
        }
        yield content, offset, known | {"total_bytes": int(fields.get("x-total-bytes") or 0)}
        if not content or known["complete"]:
            return


# -- moments that people name ----------------------------------------------------------------------

_TIME_FORMS = (
    "10m, 1h30m, '2 hours ago', '1 month ago', 16:00, today, 'yesterday 23:00', 2026-01-31, "
    "2026-01-31T12:00:00Z"
)
_SECONDS_OF_UNIT = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
_MONTHS_OF_UNIT = {
    **dict.fromkeys(("mo", "month", "months"), 1),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), 12),
}
_AGE = re.compile(r"-?(?:(?:\d+(?:\.\d+)?|an?\b) *[a-z]+(?: *,? *(?:and +)?| +(?=ago)))+(?:ago)?")
_AGE_PART = re.compile(r"(\d+(?:\.\d+)?|an?\b) *([a-z]+)")
_DAY_WORD = re.compile(r"(today|yesterday)(?: +(?:at +)?(\d?\d:\d\d(?::\d\d)?))?")
_CLOCK = re.compile(r"\d?\d:\d\d(?::\d\d)?")


def since_when(text: str | None, option: str = "--since") -> str | None:
    """Return the moment that a person names as RFC 3339 in UTC, None for None.

    It is an age (`1h30m`, `2 weeks ago`; a month and a year go back in the calendar), a time of day
    (the last one), a day, or an ISO 8601 time; without a zone it is of here. Raises Failure
    (usage): it is none of these.
    """
    if text is None:
        return None
    from datetime import UTC, datetime

    words = text.strip().lower()
    now = datetime.now()
    try:
        if words == "now":
            moment = now
        elif _AGE.fullmatch(words):
            moment = _before(now, words)
        elif named := _DAY_WORD.fullmatch(words):
            moment = _on_day(now, named[1], named[2] or "00:00")
        elif _CLOCK.fullmatch(words):
            moment = _on_day(now, "today", words)
            if moment > now:
                moment = _on_day(now, "yesterday", words)
        elif words.isdigit():
            # `90` may be seconds, minutes or a year, and Python reads eight digits as a date.
            raise _UnknownTimeError("a number needs a unit, as in 10m or 2h")
        else:
            moment = _iso_time(text.strip())
        return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError) as error:
        reason = str(error) if isinstance(error, _UnknownTimeError) else "it is no time"
        raise usage(f"{option} {text!r}: {reason}", f"it takes {_TIME_FORMS}") from error


class _UnknownTimeError(ValueError):
    """Why a text is no time, in words for the person who wrote it."""


def _before(now: datetime, words: str) -> datetime:
    """Return the moment that is so long ago. Raises ValueError, OverflowError."""
    from datetime import timedelta

    moment = now
    for amount, unit in _AGE_PART.findall(words):
        if unit == "ago":
            continue
        count = 1.0 if amount.startswith("a") else float(amount)
        if unit in _SECONDS_OF_UNIT:
            moment -= timedelta(seconds=count * _SECONDS_OF_UNIT[unit])
        elif unit in _MONTHS_OF_UNIT and count.is_integer():
            moment = _months_before(moment, int(count) * _MONTHS_OF_UNIT[unit])
        elif unit in _MONTHS_OF_UNIT:
            raise _UnknownTimeError(
                f"a part of a {unit.removesuffix('s')} has no fixed length; use days"
            )
        else:
            raise _UnknownTimeError(
                f"{unit!r} is no unit of time; use s, m, h, d, w, months or years"
            )
    return moment


def _months_before(moment: datetime, months: int) -> datetime:
    """Go back in the calendar; where the month is shorter, to its last day."""
    from calendar import monthrange

    year, month = divmod(moment.year * 12 + moment.month - 1 - months, 12)
    if year < 1:
        raise _UnknownTimeError("it is before the year 1")
    last_day = monthrange(year, month + 1)[1]
    return moment.replace(year=year, month=month + 1, day=min(moment.day, last_day))


def _on_day(now: datetime, day: str, clock: str) -> datetime:
    """Return a time of day of today or yesterday. Raises ValueError: there is no such time."""
    from datetime import datetime, timedelta

    date = now.date()
    if day == "yesterday":
        date -= timedelta(days=1)
    padded = clock if clock[2:3] == ":" else f"0{clock}"
    return datetime.fromisoformat(f"{date} {padded}")


def _iso_time(text: str) -> datetime:
    from datetime import datetime

    if not re.match(r"\d{4}-\d\d-\d\d", text):
        # Python also reads weeks and numbers without hyphens, which few people mean
        raise ValueError(text)
    return datetime.fromisoformat(text)


# -- shown -----------------------------------------------------------------------------------------

_STEERING = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI, of which colours are
    r"|\x1b[\]P_^X][^\x07\x1b\x9c\n]{0,1024}(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]{1,4}[0-~]|\x1b[0-OQ-WYZ\\`-~]"  # two characters and more (ECMA-48)
    # C0 but tab, newline, return; DEL, C1, overrides of direction, halves of characters
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What may become an escape sequence with the next piece.
_BEGUN = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]P_^X][^\x07\x1b\x9c\n]{0,1024}\x1b?|[ -/]{0,4})?\Z"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def harmless(text: str, *, colour: bool = False) -> str:
    """Return a complete text without what steers a terminal; colours stay where `colour` wants
    them.
    """

    def instead(found: re.Match[str]) -> str:
        kept = found[0] if colour and _COLOUR.fullmatch(found[0]) else ""
        return "�" if len(found[0]) == 1 else kept

    return _STEERING.sub(instead, text)


class Outlet:
    """Where one stream goes: bytes as they are, or made harmless for a terminal, the same
    however they are cut.
    """

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
            self._ends_line, self._is_painted = (
                shown.endswith("\n"),
                self._is_painted or "\x1b" in shown,
            )
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
    """Both streams of what runs elsewhere, what is said about it, and a spinner; as a context
    manager it ends lines.
    """

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
