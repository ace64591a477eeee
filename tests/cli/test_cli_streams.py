"""Logs and events: streams that go on, and on over a restart of the daemon; and the times that people say."""

from __future__ import annotations

import base64
import datetime as dt
import signal
import time
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, ndjson, problem, silent
from cli.px import Px
from pxctl import streams
from pxctl.client import Failure, Interrupted, Unreachable

LOGS, EVENTS = "GET /api/units/a/logs", "GET /api/events"


def piece(data: bytes, position: int) -> dict[str, Any]:
    at = {"time": f"2026-11-21T10:00:{position:02d}Z", "position": position, "next_position": position + len(data)}
    return {**at, "stream": "stdout", "base64": base64.b64encode(data).decode()}


def test_timestamps_begin_lines_not_pieces_and_what_was_lost_is_told_on_stderr(px: Px, daemon: FakeDaemon) -> None:
    gap = {"gap_bytes": 512, "position": 20, "next_position": 532}
    daemon.on(LOGS, ndjson(piece(b"on", 0), piece(b"e\ntwo\rstill two\n", 2), gap, piece(b"end", 32)))
    ended = px("logs", "a", "--timestamps")
    assert ended.out.split(b"\n") == [
        b"2026-11-21T10:00:00Z one", b"2026-11-21T10:00:02Z two\rstill two", b"2026-11-21T10:00:32Z end"
    ]  # fmt: skip
    assert ended.err == "pxctl: 512 bytes of output were lost here\n"


SAID = {
    "1h30m": "1h30m", "2 hours ago": "2h", "3 days": "3d", "2026-01-31T12:00:00Z": "2026-01-31T12:00:00Z",
    "2026-01-31 12:00": "2026-01-31T03:00:00Z", "0:00": "today", "today": "today", "yesterday": "yesterday",
}  # fmt: skip


def test_since_is_understood_as_people_say_it_and_nonsense_is_answered_with_all_forms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    midnight = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=9)).replace(hour=0) - dt.timedelta(hours=9)
    days = {"today": f"{midnight:%Y-%m-%d}T15:00:00Z", "yesterday": f"{midnight - dt.timedelta(1):%Y-%m-%d}T15:00:00Z"}
    try:
        found = {words: streams.since_when(words) for words in SAID}
        with pytest.raises(Failure, match="25:00") as caught:
            streams.since_when("25:00")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == {words: days.get(meant, meant) for words, meant in SAID.items()}
    assert "it takes 10m, '2 hours ago', 16:00, today" in str(caught.value.hint)


def test_following_goes_on_where_it_was_cut_off(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        LOGS,
        ndjson(piece(b"one\n", 0), whole=False),
        problem(503, "shutdown", 1),
        b"",
        ndjson(piece(b"two\n", 4)),
        lambda asked, to: to.sendall(ndjson(piece(b"three\n", 8), whole=False)) or silent(asked, to),
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
