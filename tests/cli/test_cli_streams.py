"""Logs and events: streams that go on, and on over a restart of the daemon; and the times that people say."""

from __future__ import annotations

import base64
import datetime as dt
import re
import signal
import socket
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, ndjson, problem, until_client_leaves
from cli.px import Px
from pxctl import streams
from pxctl.client import Interrupted, Unreachable

LOGS, EVENTS = "GET /api/units/a/logs", "GET /api/events"


def piece(data: bytes, position: int) -> dict[str, Any]:
    at = {"time": f"2026-11-21T10:00:{position:02d}Z", "position": position, "next_position": position + len(data)}
    return {**at, "stream": "stdout", "base64": base64.b64encode(data).decode()}


def then_wait(raw: bytes) -> Any:
    def answer(request: Request, connection: socket.socket) -> None:
        connection.sendall(raw)
        until_client_leaves(connection)

    return answer


def test_what_was_lost_is_told_on_stderr(px: Px, daemon: FakeDaemon) -> None:
    gap = {"gap_bytes": 512, "position": 2, "next_position": 514}
    daemon.on(LOGS, ndjson(piece(b"a\n", 0), gap, piece(b"b\n", 14)))
    ended = px("logs", "a")
    assert (ended.out, ended.err) == (b"a\nb\n", "pxctl: 512 bytes of output were lost here\n")


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ("1h30m", "1h30m"), ("2 hours ago", "2h"), ("3 days", "3d"), ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31 12:00", "2026-01-31T03:00:00Z"), ("today", r"20..-..-..T15:00:00Z"), ("0:00", r"20.*T15:00:00Z"),
    ],
)  # fmt: skip
def test_since_is_understood_as_people_say_it(px: Px, daemon: FakeDaemon, words: str, pattern: str) -> None:
    daemon.on(LOGS, ndjson())
    assert px("logs", "a", "--since", words, TZ="Asia/Tokyo").code == 0
    assert re.fullmatch(pattern, daemon.seen[0].arguments["since"])


def test_today_began_at_midnight_and_nonsense_is_answered_with_all_forms(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(LOGS, ndjson())
    for words in ("today", "yesterday"):
        px("logs", "a", "--since", words, TZ="Asia/Tokyo")
    today, yesterday = (dt.datetime.fromisoformat(one.arguments["since"]) for one in daemon.seen)
    assert (today - yesterday, dt.datetime.now(dt.UTC) - today < dt.timedelta(days=1)) == (dt.timedelta(days=1), True)
    ended = px("logs", "a", "--since", "25:00")
    assert (ended.code, "hint: it takes 10m, '2 hours ago', 16:00, today" in ended.err) == (2, True)


def test_timestamps_begin_lines_not_pieces(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(LOGS, ndjson(piece(b"on", 0), piece(b"e\ntwo\rstill two\n", 2), piece(b"end", 20)))
    assert px("logs", "a", "--timestamps").out.split(b"\n") == [
        b"2026-11-21T10:00:00Z one", b"2026-11-21T10:00:02Z two\rstill two", b"2026-11-21T10:00:20Z end"
    ]  # fmt: skip


def test_following_goes_on_where_it_was_cut_off(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        LOGS,
        ndjson(piece(b"one\n", 0), whole=False),
        problem(503, "shutdown", 1),
        b"",
        ndjson(piece(b"two\n", 4)),
        then_wait(ndjson(piece(b"three\n", 8), whole=False)),
    )
    process = px.popen("logs", "a", "-f", "-n", "10")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    asked = [request.arguments for request in daemon.seen]
    assert asked[0] == {"follow": "1", "lines": "10"}
    assert [one.get("cursor") for one in asked] == [None, "4", "4", "4", "8"]


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "time": "2026-11-21T10:00:00Z", "unit": "tool:a", "event": "ready", "reason": None} | more


def test_events_are_one_line_each(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(EVENTS, ndjson(event(1, pid=5), {"event": "gap", "missed": 3}, event(9, unit=None, reason="exit")))
    ended = px("events", "-n", "20", "--unit", "a")
    assert ended.lines == ["2026-11-21T10:00:00Z  tool:a  ready  pid=5", "2026-11-21T10:00:00Z  pxd  ready  (exit)"]
    assert "3 events were missed" in ended.err
    assert daemon.seen[0].arguments == {"follow": "0", "unit": "a", "limit": "20"}
    assert px("events", "-q").lines == ["1", "9"]


def test_a_control_plane_that_is_back_between_its_deaths_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_AWAY_SECONDS", 0.3)
    patience = streams.Patience()
    for _ in range(3):
        patience.bear(Interrupted("it was closed"))
    with pytest.raises(Unreachable):
        for _ in range(3):
            patience.bear(Unreachable("/x", "nobody"))
