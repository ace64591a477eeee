"""`pxctl logs` of several units, with a pattern, up to a moment."""

from __future__ import annotations

import base64
import json
import signal
from typing import Any

from cli.fake_daemon import FakeDaemon, document, ndjson, problem, silent
from cli.px import Px


def piece(data: bytes, second: int, stream: str = "stdout", instance: int = 1) -> dict[str, Any]:
    at = {
        "time": f"2026-11-21T10:00:{second:02d}.000Z",
        "position": second,
        "next_position": second + len(data),
    }
    return {**at, "stream": stream, "instance": instance, "base64": base64.b64encode(data).decode()}


def two_units(daemon: FakeDaemon) -> None:
    units = [{"unit": "tool:a"}, {"unit": "tool:bee"}]
    daemon.on("GET /api/units", document({"units": units}))
    daemon.on("GET /api/units/tool:a/logs", ndjson(piece(b"a1\na", 1), piece(b"2\n", 5)))
    daemon.on(
        "GET /api/units/tool:bee/logs", ndjson(piece(b"bad b1\n", 3), piece(b"b2", 4, "stderr"))
    )


def test_lines_of_several_units_have_names_and_are_in_the_order_of_time(
    px: Px, daemon: FakeDaemon
) -> None:
    two_units(daemon)
    whole = ["tool:a   | a1", "tool:bee | bad b1", "tool:bee | b2", "tool:a   | a2"]
    for words in (["tool:*"], ["a", "bee"]):
        assert px("logs", *words).lines == whole
    assert px("logs", "tool:*", "--grep", "bad|2$").lines == whole[1:]
    assert px("logs", "tool:*", "--timestamps").lines[0] == "tool:a   | 2026-11-21T10:00:01.000Z a1"
    assert px("logs", "tool:*", "--until", "2026-11-21T10:00:04Z").lines == [
        "tool:a   | a1",
        "tool:a   | a",
        "tool:bee | bad b1",
    ]
    found = [json.loads(line) for line in px("logs", "tool:*", "--json").lines]
    assert [(one["unit"], one["text"]) for one in found[:2]] == [
        ("tool:a", "a1"),
        ("tool:bee", "bad b1"),
    ]


def test_without_a_unit_the_last_lines_of_all_are_shown(px: Px, daemon: FakeDaemon) -> None:
    two_units(daemon)
    assert len(px("logs").lines) == 4
    asked = [request.arguments for request in daemon.seen]
    assert asked[0] == {"name": "*"}
    assert [one["lines"] for one in asked[1:]] == ["20", "20"]
    daemon.on("GET /api/units", problem(404, "unknown_unit", 4))
    ended = px("logs")
    assert (ended.code, ended.text, "no units yet" in ended.err) == (0, "", True)


def test_the_last_lines_are_counted_among_those_that_match(px: Px, daemon: FakeDaemon) -> None:
    lines = b"".join(b"error %d\nfine\n" % number for number in range(5))
    daemon.on("GET /api/units/a/logs", ndjson(piece(lines, 1)))
    assert px("logs", "a", "--grep", "error", "-n", "2").lines == ["error 3", "error 4"]
    assert px("logs", "a", "--until", "2026-11-21T10:00:59Z", "-n", "1").lines == ["fine"]
    assert px("logs", "a", "--grep", "nothing").lines == []
    assert all("lines" not in request.arguments for request in daemon.seen)


def test_several_units_are_followed_at_once(px: Px, daemon: FakeDaemon) -> None:
    two_units(daemon)
    for name in ("a", "bee"):
        first = ndjson(piece(f"of {name}\n".encode(), 1), whole=False)
        daemon.on(
            f"GET /api/units/tool:{name}/logs",
            lambda asked, to, first=first: to.sendall(first) or silent(asked, to),
        )
    process = px.popen("logs", "-f", "a", "bee")
    assert process.stdout is not None
    found = {process.stdout.readline() for _ in range(2)}
    assert found == {b"tool:a   | of a\n", b"tool:bee | of bee\n"}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_what_cannot_be_meant_is_refused(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/units/3/logs", problem(404, "unknown_unit", 4))
    daemon.on("GET /api/executions/3", document({"id": 3}))
    for words, near in {
        "a --grep (": "--grep",
        "a -f --until 1h": "--until",
        "a --until yesteryear": "--until",
    }.items():
        ended = px("logs", *words.split())
        assert (ended.code, near in ended.err) == (2, True), words
    ended = px("logs", "3")
    assert (ended.code, "pxctl pipe output 3" in ended.err) == (4, True)


def test_a_terminal_sees_where_the_output_of_another_start_begins(
    px: Px, daemon: FakeDaemon
) -> None:
    daemon.on("GET /api/units/a/logs", ndjson(piece(b"one\n", 1), piece(b"two\n", 2, instance=2)))
    with px.terminal("logs", "a") as screen:
        assert screen.end() == 0
        one, mark, two = screen.text.splitlines()
        assert (one, "── output of the next start, " in mark, two) == ("one", True, "two")
    assert px("logs", "a").err == "", "a program reads the output alone"


def test_is_active_prints_states_and_exits_with_them(px: Px, daemon: FakeDaemon) -> None:
    units = [{"unit": "tool:a", "state": "ready"}, {"unit": "tool:b", "state": "cold"}]
    daemon.on("GET /api/status", document({"units": units}))
    ended = px("is-active", "a", "b")
    assert (ended.code, ended.lines) == (3, ["ready", "cold"])
    assert px("is-active", "a", "b", "-q").lines == ["tool:a"]
    assert px("is-active", "a", "b", "--json").json()["units"][1] == {
        "unit": "tool:b",
        "state": "cold",
        "active": False,
    }
    daemon.on("GET /api/status", document({"units": units[:1]}))
    assert px("is-active", "a").code == 0
