"""Logs and events: streams that go on, and on over a restart of the daemon; and the times that people say."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, ndjson, problem, problem_of, reply, silent
from cli.px import Px
from pxctl import streams
from pxctl.client import Client, Failure, Interrupted, Unreachable

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
def test_an_answer_whose_rest_cannot_be_had_is_a_failure(px: Px, daemon: FakeDaemon, command: tuple[str, ...]) -> None:
    def stops(asked: Request, connection: socket.socket) -> None:
        first = piece(b"one\n", 0) if asked.path.endswith("/logs") else event(1)
        connection.sendall(ndjson(first, whole=False))
        os.unlink(daemon.path)

    daemon.on(LOGS, stops).on(EVENTS, stops)
    ended = px(*command, "--json")
    Path(daemon.path).touch()  # which the fixture removes
    first, last = map(json.loads, ended.lines)
    assert (ended.code, first.get("kind"), last["kind"], last["exit_code"]) == (1, None, "interrupted", 1)
    assert "before its answer was complete" in last["detail"]


def test_pages_of_output_are_asked_for_again(monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon) -> None:
    more = "X-Total-Bytes: 6\r\nX-Complete: "
    whole = [reply(b"one", more=f"{more}false\r\n"), b"", reply(b"two", more=f"{more}true\r\n")]
    daemon.on("GET /x", whole[0], *whole[1:])
    found = [page[0] for page in streams.pages(Client(daemon.path), "/x", "stdout")]
    assert found == [b"one", b"two"]
    assert [request.arguments["offset"] for request in daemon.seen] == ["0", "3", "3"]


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
