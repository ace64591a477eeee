"""Logs and events: streams that go on, and on over a restart of the daemon; and the times that
people say.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, ndjson, problem, problem_of, reply, silent
from cli.px import Px
from pxctl import streams
from pxctl.client import Client, Failure, Interrupted, Unreachable

LOGS, EVENTS = "GET /api/units/a/logs", "GET /api/events"


def piece(data: bytes, position: int) -> dict[str, Any]:
    at = {
        "time": f"2026-11-21T10:00:{position:02d}Z",
        "position": position,
        "next_position": position + len(data),
    }
    return {**at, "stream": "stdout", "base64": base64.b64encode(data).decode()}


def test_timestamps_begin_lines_not_pieces_and_what_was_lost_is_told_on_stderr(
    px: Px, daemon: FakeDaemon
) -> None:
    gap = {"gap_bytes": 512, "position": 20, "next_position": 532}
    daemon.on(
        LOGS, ndjson(piece(b"on", 0), piece(b"e\ntwo\rstill two\n", 2), gap, piece(b"end", 32))
    )
    ended = px("logs", "a", "--timestamps")
    assert ended.out.split(b"\n") == [
        b"2026-11-21T10:00:00Z one",
        b"2026-11-21T10:00:02Z two\rstill two",
        b"2026-11-21T10:00:32Z end",
    ]
    assert ended.err == "pxctl: 512 bytes of output were lost here\n"


AT = dt.datetime(2026, 3, 31, 10, 30)  # in Tokyo, nine hours before UTC
MOMENTS = {
    # Ages: each unit in each of its words, several parts, and what people write around them.
    "90s": "2026-03-31T01:28:30", "90 sec": "2026-03-31T01:28:30", "5 secs": "2026-03-31T01:29:55",
    "1 second ago": "2026-03-31T01:29:59", "10m": "2026-03-31T01:20:00",
    "10 min ago": "2026-03-31T01:20:00",
    "2 mins": "2026-03-31T01:28:00", "a minute ago": "2026-03-31T01:29:00",
    "an hour ago": "2026-03-31T00:30:00",
    "2h": "2026-03-30T23:30:00", "2 hrs ago": "2026-03-30T23:30:00",
    "2 Hours Ago": "2026-03-30T23:30:00",
    "3 days": "2026-03-28T01:30:00", "1d": "2026-03-30T01:30:00", "2w": "2026-03-17T01:30:00",
    "2 weeks ago": "2026-03-17T01:30:00", "1h30m": "2026-03-31T00:00:00",
    "1h30m ago": "2026-03-31T00:00:00",
    "1h 30m": "2026-03-31T00:00:00", "1 hour, 30 minutes ago": "2026-03-31T00:00:00",
    "1 day and 2 hours ago": "2026-03-29T23:30:00", "1.5h": "2026-03-31T00:00:00",
    "-1h": "2026-03-31T00:30:00",
    # The calendar: March has a 31st, February has none.
    "1 month ago": "2026-02-28T01:30:00", "2 months ago": "2026-01-31T01:30:00",
    "1 month": "2026-02-28T01:30:00",
    "1 year ago": "2025-03-31T01:30:00", "2y": "2024-03-31T01:30:00", "14mo": "2025-01-31T01:30:00",
    # Days and times of day: the last one that there was.
    "now": "2026-03-31T01:30:00", "today": "2026-03-30T15:00:00",
    "Yesterday": "2026-03-29T15:00:00",
    "yesterday 23:00": "2026-03-30T14:00:00", "today at 9:15": "2026-03-31T00:15:00",
    "0:00": "2026-03-30T15:00:00",
    "10:29": "2026-03-31T01:29:00", "16:00": "2026-03-30T07:00:00",
    "16:00:05": "2026-03-30T07:00:05",
    "2026-01-31": "2026-01-30T15:00:00", "2026-01-31 12:00": "2026-01-31T03:00:00",
    "2026-01-31T12:00:00Z": "2026-01-31T12:00:00",
    "2026-01-31T12:00:00+02:00": "2026-01-31T10:00:00",
}  # fmt: skip
REFUSED = (
    "3 moons ago", "1 dog ago", "1h30", "90", "20260131", "2026", "1.5 months ago", "25:00",
    "yesterday 25:00",
    "2026-W05", "10x", "m", "ago", "", "last night", "2026-13-01", "9999999 years ago",
    "99999999999999 days ago",
    "1h ago ago",
)  # fmt: skip


class _FixedTime(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _FixedTime:
        return cls(*AT.timetuple()[:6])


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine in Tokyo, at half past ten on the last of March."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setattr(dt, "datetime", _FixedTime)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_every_way_to_name_a_moment_means_the_right_one() -> None:
    found = {words: streams.since_when(words) for words in MOMENTS}
    assert found == {words: f"{moment}.000Z" for words, moment in MOMENTS.items()}
    assert streams.since_when(None) is None


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize("words", REFUSED)
def test_what_names_no_moment_is_refused_with_all_forms(words: str) -> None:
    with pytest.raises(Failure) as caught:
        streams.since_when(words, "--until")
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"--until {words!r}: ")
    assert "it takes 10m, 1h30m, '2 hours ago', '1 month ago', 16:00, today" in str(
        caught.value.hint
    )


def test_an_unknown_unit_of_time_is_named() -> None:
    with pytest.raises(
        Failure, match="'moons' is no unit of time; use s, m, h, d, w, months or years"
    ):
        streams.since_when("3 moons ago")


def test_events_ask_for_what_was_named_and_say_when_it_is_a_part(
    px: Px, daemon: FakeDaemon
) -> None:
    one = {
        "id": 7,
        "time": "2026-11-21T10:00:00.000Z",
        "unit": None,
        "event": "reloaded",
        "reason": None,
    }
    part = reply(
        json.dumps(one).encode() + b"\n",
        content_type="application/x-ndjson",
        more="X-Complete: false\r\n",
    )
    daemon.on(EVENTS, part)
    words = ("--unit", "a", "--unit", "b*", "--event", "died", "--event", "start*", "--failed")
    ended = px("events", *words, "--until", "2026-11-21T12:00:00Z", "--json")
    assert ended.json() == one
    note = (
        "these are the newest; there are older ones: pxctl events --until "
        "2026-11-21T10:00:00.000Z, or --since T"
    )
    assert (ended.err.startswith(f"pxctl: {note}"), ended.code) == (True, 0)
    assert set(daemon.seen[0].query) == {
        ("unit", "a"), ("unit", "b*"), ("event", "died"), ("event", "start*"), ("failed", "1"),
        ("follow", "0"),
        ("until", "2026-11-21T12:00:00.000Z"), ("cwd", str(px.folder)),
    }  # fmt: skip
    assert px("events", "-n", "1").err == "", "who asks for so many gets what he asked for"


def test_following_goes_on_where_it_was_cut_off(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        LOGS,
        ndjson(piece(b"one\n", 0), whole=False),
        problem(503, "shutdown", 1),
        b"",
        ndjson(piece(b"two\n", 4)),
        lambda asked, to: (
            to.sendall(ndjson(piece(b"three\n", 8), whole=False)) or silent(asked, to)
        ),
    )
    process = px.popen("logs", "a", "-f", "-n", "10")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    asked = [request.arguments for request in daemon.seen]
    assert asked[0] == {"follow": "1", "lines": "10", "cwd": str(px.folder)}
    assert [one.get("cursor") for one in asked] == [None, "4", "4", "4", "8"]


def test_logs_that_are_cut_off_go_on_where_they_were(px: Px, daemon: FakeDaemon) -> None:
    """A restart cuts them off: without an end, with the problem of the stop, and again."""
    daemon.on(
        LOGS,
        ndjson(piece(b"one\n", 0), whole=False),
        ndjson(piece(b"two\n", 4), problem_of(503, "shutdown")),
        b"",
        ndjson(piece(b"three\n", 8)),
    )
    ended = px("logs", "a", "-n", "10")
    assert (ended.code, ended.out) == (0, b"one\ntwo\nthree\n")
    asked = [request.arguments for request in daemon.seen]
    assert [(one.get("cursor"), one.get("lines")) for one in asked] == [
        (None, "10"), ("4", None), ("8", None), ("8", None)
    ]  # fmt: skip


@pytest.mark.parametrize("command", [("logs", "a"), ("events",)])
def test_an_answer_whose_rest_cannot_be_had_is_a_failure(
    px: Px, daemon: FakeDaemon, command: tuple[str, ...]
) -> None:
    def stops(asked: Request, connection: socket.socket) -> None:
        first = piece(b"one\n", 0) if asked.path.endswith("/logs") else event(1)
        connection.sendall(ndjson(first, whole=False))
        os.unlink(daemon.path)

    daemon.on(LOGS, stops).on(EVENTS, stops)
    ended = px(*command, "--json")
    Path(daemon.path).touch()  # which the fixture removes
    first, last = map(json.loads, ended.lines)
    assert (ended.code, first.get("kind"), last["kind"], last["exit_code"]) == (
        1,
        None,
        "interrupted",
        1,
    )
    assert "before its answer was complete" in last["detail"]


def test_pages_of_output_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon
) -> None:
    more = "X-Total-Bytes: 6\r\nX-Complete: "
    whole = [reply(b"one", more=f"{more}false\r\n"), b"", reply(b"two", more=f"{more}true\r\n")]
    daemon.on("GET /x", whole[0], *whole[1:])
    found = [page[0] for page in streams.pages(Client(daemon.path), "/x", "stdout")]
    assert found == [b"one", b"two"]
    assert [request.arguments["offset"] for request in daemon.seen] == ["0", "3", "3"]


def event(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "time": "2026-11-21T10:00:00Z",
        "unit": "tool:a",
        "event": "ready",
        "reason": None,
    } | more


def test_events_are_one_line_each(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        EVENTS,
        ndjson(event(1, pid=5), {"event": "gap", "missed": 3}, event(9, unit=None, reason="exit")),
    )
    ended = px("events", "-n", "20", "--unit", "a")
    assert ended.lines == [
        "2026-11-21T10:00:00Z  tool:a  ready  pid=5",
        "2026-11-21T10:00:00Z  pxd  ready  (exit)",
    ]
    assert "3 events were missed" in ended.err
    assert daemon.seen[0].arguments == {
        "follow": "0",
        "unit": "a",
        "limit": "20",
        "cwd": str(px.folder),
    }
    assert px("events", "-q").lines == ["1", "9"]


def test_a_control_plane_that_is_back_between_its_deaths_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_AWAY_SECONDS", 0.3)
    patience = streams.Patience()
    for _ in range(3):
        patience.bear(Interrupted("it was closed"))
    with pytest.raises(Unreachable):
        for _ in range(3):
            patience.bear(Unreachable("/x", "nobody"))
