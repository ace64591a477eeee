"""Logs, events, building: streams that go on, and on over a restart of the daemon."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import signal
import socket
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, chunked, problem, problem_of, until_client_leaves
from cli.px import Px

LOGS, EVENTS, SYNC = "GET /api/units/a/logs", "GET /api/events", "POST /api/tools/a/sync"
NDJSON = "application/x-ndjson"


def piece(data: bytes, position: int) -> dict[str, Any]:
    at = {"time": f"2026-11-21T10:00:{position:02d}Z", "position": position, "next_position": position + len(data)}
    return {**at, "stream": "stdout", "base64": base64.b64encode(data).decode()}


def ndjson(*values: Any, ended: bool = True) -> bytes:
    return chunked(*[json.dumps(value).encode() + b"\n" for value in values], content_type=NDJSON, ended=ended)


def then_wait(raw: bytes) -> Any:
    def answer(request: Request, connection: socket.socket) -> None:
        connection.sendall(raw)
        until_client_leaves(connection)

    return answer


def test_what_was_lost_is_told_on_stderr(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        LOGS, ndjson(piece(b"a\n", 0), {"gap_bytes": 512, "position": 2, "next_position": 514}, piece(b"b\n", 14))
    )
    ended = px("logs", "a")
    assert (ended.out, ended.err) == (b"a\nb\n", "pxctl: 512 bytes of output were lost here\n")


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ("10m", "10m"), ("2 hours ago", "2h"), ("3 days", "3d"), ("1.5h", "1.5h"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"), ("1h30m", "1h30m"),
        ("today", r"20..-..-..T..:00:00Z"), ("0:00", r"20..-.*:00Z"),
    ],
)  # fmt: skip
def test_since_is_understood_as_people_say_it(px: Px, daemon: FakeDaemon, words: str, pattern: str) -> None:
    daemon.on(LOGS, ndjson())
    assert px("logs", "a", "--since", words).code == 0
    assert re.fullmatch(pattern, daemon.seen[0].arguments["since"])


def test_today_began_at_midnight_here_and_yesterday_a_day_before(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(LOGS, ndjson())
    for words in ("today", "yesterday"):
        px("logs", "a", "--since", words, TZ="Asia/Tokyo")
    today, yesterday = (dt.datetime.fromisoformat(one.arguments["since"]) for one in daemon.seen)
    assert (today.hour, today - yesterday) == (15, dt.timedelta(days=1))
    assert dt.timedelta() <= dt.datetime.now(dt.UTC) - today < dt.timedelta(days=1)
    px("logs", "a", "--since", "2026-01-31 12:00", TZ="Asia/Tokyo")
    assert daemon.seen[-1].arguments["since"] == "2026-01-31T03:00:00Z"
    for nonsense in ("25:00", "gibberish"):
        ended = px("logs", "a", "--since", nonsense)
        assert (ended.code, "hint: it takes 10m, '2 hours ago', 16:00, today" in ended.err) == (2, True)


def test_timestamps_begin_lines_not_pieces(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(LOGS, ndjson(piece(b"on", 0), piece(b"e\ntwo\rstill two\n", 2), piece(b"end", 20)))
    assert px("logs", "a", "--timestamps").lines[0] == "2026-11-21T10:00:00Z one"
    out = px("logs", "a", "--timestamps").out.split(b"\n")
    assert out[1:] == [b"2026-11-21T10:00:02Z two\rstill two", b"2026-11-21T10:00:20Z end"]


def test_following_goes_on_where_it_was_cut_off(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        LOGS,
        ndjson(piece(b"one\n", 0), ended=False),
        problem(503, "shutdown", 1),
        b"",
        ndjson(piece(b"two\n", 4)),
        then_wait(ndjson(piece(b"three\n", 8), ended=False)),
    )
    process = px.popen("logs", "a", "-f", "-n", "10")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    arguments = [request.arguments for request in daemon.seen]
    assert arguments[0] == {"follow": "1", "lines": "10"}
    assert [one.get("cursor") for one in arguments] == [None, "4", "4", "4", "8"]
    assert all("lines" not in one for one in arguments[1:])


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "time": "2026-11-21T10:00:00Z", "unit": "tool:a", "event": "ready", "reason": None} | more


def test_events_are_one_line_each(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(EVENTS, ndjson(event(1, pid=5), {"event": "gap", "missed": 3}, event(9, unit=None, reason="exit")))
    ended = px("events", "-n", "20", "--unit", "a")
    assert ended.lines == ["2026-11-21T10:00:00Z  tool:a  ready  pid=5", "2026-11-21T10:00:00Z  pxd  ready  (exit)"]
    assert "3 events were missed" in ended.err
    assert daemon.seen[0].arguments == {"follow": "0", "unit": "a", "limit": "20"}
    assert px("events", "-q").lines == ["1", "9"]
    assert [json.loads(line).get("id") for line in px("events", "--json").lines] == [1, None, 9]


def test_a_build_shows_its_progress_and_ends_well(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(SYNC, ndjson({"progress": "creating .venv"}, {"progress": "in\x1b[2Jstalling"}, {"done": True}))
    ended = px("tools", "sync", "a")
    assert (ended.code, ended.text) == (0, "tool:a synced\n")
    assert ended.err == "creating .venv\nin�[2Jstalling\n"
    assert [json.loads(line) for line in px("tools", "sync", "a", "--json").lines][-1] == {"done": True}


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (ndjson({"progress": "x"}, problem_of(500, "sync_failed", 1, detail="no such package")), 1, "no such package"),
        (ndjson({"progress": "x"}), 1, "before the build was done"),
        (problem(404, "unknown_unit", 4), 4, "unknown_unit"),
    ],
)
def test_how_a_build_can_end(px: Px, daemon: FakeDaemon, raw: bytes, code: int, words: str) -> None:
    daemon.on(SYNC, raw)
    ended = px("tools", "sync", "a")
    assert ended.code == code
    assert words in ended.err + ended.text
    assert px("tools", "sync", "a", "--json").code == code


def test_events_are_followed_after_the_last_one_seen(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(EVENTS, ndjson(event(1), event(2), ended=False), then_wait(ndjson(event(3), ended=False)))
    process = px.popen("events", "-f", "-n", "2", "--json")
    assert process.stdout is not None
    assert [json.loads(process.stdout.readline())["id"] for _ in range(3)] == [1, 2, 3]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert [request.arguments for request in daemon.seen] == [
        {"follow": "1", "limit": "2"},
        {"follow": "1", "after": "2"},
    ]
