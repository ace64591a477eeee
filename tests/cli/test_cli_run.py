"""`pxctl run`: input, answers, streams, files, failures, cancelling."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, chunked, document, problem_of, reply
from cli.px import Px

RUN, STREAM, TOOL = "POST /api/tools/lorenz/run", "POST /api/tools/lorenz/stream", "GET /api/tools/lorenz"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def test_the_answer_comes_out_byte_for_byte(px: Px, daemon: FakeDaemon) -> None:
    raw = b'{"b":1.50 ,\n "a":"\xc3\xa9"}'
    daemon.on(RUN, chunked(raw[:7], raw[7:]))
    assert px("run", "lorenz").out == raw + b"\n"
    assert px("run", "tool:lorenz", "--json").out == raw + b"\n"
    assert daemon.seen[0].body == b"{}"
    assert all(one.path.endswith("/run") for one in daemon.seen), "no schema where there is nothing to coerce"
    with px.terminal("run", "lorenz") as screen:
        assert screen.end() == 0
        assert json.loads(screen.text) == {"b": 1.5, "a": "é"}
        assert '  "b": 1.5,' in screen.text


def test_a_lost_connection_is_retryable_and_not_retried(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(RUN, b"")
    ended = px("run", "lorenz", "--json")
    assert (ended.code, ended.json()["kind"], ended.json()["retryable"]) == (1, "interrupted", True)
    assert len(daemon.asked(RUN)) == 1


def stepwise(pieces: list[bytes], content_type: str, go: threading.Semaphore) -> Any:
    whole = chunked(*pieces, content_type=content_type)
    ends = [whole.index(piece) + len(piece) + 2 for piece in pieces]

    def answer(request: Request, connection: socket.socket) -> None:
        for begin, end in zip([0, *ends], [*ends, len(whole)], strict=True):
            connection.sendall(whole[begin:end])
            go.acquire(timeout=60)

    return answer


def test_items_come_out_one_a_line_as_they_come(px: Px, daemon: FakeDaemon) -> None:
    go = threading.Semaphore(0)
    daemon.on(STREAM, stepwise([b'{"n": 1}\n', b'\n{"n": 2}\n', b"3\n"], "application/x-ndjson", go))
    process = px.popen("run", "lorenz", "--stream")
    assert process.stdout is not None
    for wanted in (b'{"n": 1}\n', b'{"n": 2}\n', b"3\n"):
        assert process.stdout.readline() == wanted
        go.release()
    go.release()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert daemon.seen[0].headers["accept"] == "application/x-ndjson"


def test_a_stream_that_ends_in_a_problem_fails_with_it(px: Px, daemon: FakeDaemon) -> None:
    problem = json.dumps(problem_of(503, "limit_exceeded", 9, detail="memory"))
    daemon.on(STREAM, chunked(f"1\n{problem}\n".encode(), content_type="application/x-ndjson"))
    ended = px("run", "lorenz", "--stream")
    assert (ended.code, ended.out, "memory" in ended.err) == (9, b"1\n", True)


def test_binary_is_never_dumped_on_a_terminal(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(RUN, reply(PNG, content_type="image/png"))
    with px.terminal("run", "lorenz") as screen:
        assert screen.end() == 2
        assert ("PNG" in screen.text, "-o FILE" in screen.text) == (False, True)


@pytest.mark.parametrize(
    "raw",
    [
        reply(PNG, content_type="image/png"),
        document({"a": [1, {"x/y": base64.b64encode(PNG).decode()}]}),
        document({"plot": "data:image/png;base64," + base64.b64encode(PNG).decode()}),
    ],
)
def test_an_image_is_saved_wherever_it_is(px: Px, daemon: FakeDaemon, raw: bytes) -> None:
    daemon.on(RUN, raw)
    ended = px("run", "lorenz", "-o", "out.png")
    assert (px.folder / "out.png").read_bytes() == PNG
    assert (ended.out, ended.err) == (b"", "saved out.png (264B)\n")


def test_a_file_is_there_whole_or_not_at_all_and_its_place_is_looked_at_before(px: Px, daemon: FakeDaemon) -> None:
    ended = px("run", "lorenz", "-o", f"{px.folder}/nowhere/x")
    assert (ended.code, ended.out, daemon.seen, "no such folder" in ended.err) == (1, b"", [], True)
    (px.folder / "out").write_bytes(b"old")
    daemon.on(RUN, chunked(b"new", content_type="application/octet-stream", ended=False))
    assert px("run", "lorenz", "-o", "out").code == 1
    assert (px.folder / "out").read_bytes() == b"old"
    assert [name for name in os.listdir(px.folder) if "part" in name] == []


@pytest.mark.parametrize(("unit", "command"), [("pipe:x", "pxctl pipe run x"), ("kernel:x", "pxctl exec --kernel x")])
def test_a_unit_of_another_kind_is_answered_with_its_command(px: Px, unit: str, command: str) -> None:
    ended = px("run", unit)
    assert (ended.code, ended.err.splitlines()[-1]) == (2, f"hint: {command}")


def test_the_tool_is_asked_for_and_run_on_one_connection(px: Px, daemon: FakeDaemon) -> None:
    schema = {"properties": {"n": {"type": "integer"}}}
    daemon.on(TOOL, document({"state": "ready", "input_schema": schema})).on(RUN, document({"ok": True}))
    assert px("run", "lorenz", "n=5", "--timeout", "30", "--keep-alive=-1").json() == {"ok": True}
    asked = [(one.method, one.headers["connection"]) for one in daemon.seen]
    assert asked == [("GET", "keep-alive"), ("POST", "close")]
    assert (daemon.seen[1].json(), daemon.seen[1].arguments) == ({"n": 5}, {"timeout": "30", "keep_alive": "-1"})
    assert len(daemon.connections) == 1
