"""`pxctl exec` against a stand-in: what it asks, what it shows where, how it ends. Real kernels: tests/e2e."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, ndjson, reply
from cli.px import Px

ROUTE = "POST /api/kernels/default/execute"
CELL = "0123456789abcdef"
KERNEL = "default-3fa9c1"


def started(index: int = 0, **members: Any) -> dict[str, Any]:
    return {"event": "cell_started", "index": index, "id": CELL, "title": None, "kernel": KERNEL, **members}


def out(text: str, stream: str = "stdout") -> dict[str, Any]:
    return {"event": "output", "id": CELL, "stream": stream, "offset": 0, "text": text}


def cell(status: str = "ok", **members: Any) -> dict[str, Any]:
    return {"id": CELL, "status": status, "duration_seconds": 0.12, "error": None, "notices": [], **members}


def ended(status: str = "ok", **members: Any) -> dict[str, Any]:
    return {"event": "cell_done", "cell": cell(status, **members)}


def done(status: str = "ok", message: str | None = None, **members: Any) -> dict[str, Any]:
    result = {"schema": "px.exec/1", "kernel": KERNEL, "variables": "kept", "status": status, "message": message}
    return {"event": "done", "result": {**result, "notices": [], "cells": [cell(status)], **members}}


FINE = ndjson(started(), ended(), done())


# -- what is asked ----------------------------------------------------------------------------------------------------


def test_code_is_sent_with_the_folder_and_what_decides_the_interpreter(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(ROUTE, FINE)
    assert px("exec", "x = 1", VIRTUAL_ENV="/v", CONDA_PREFIX="/c", OTHER="s").code == 0
    request = daemon.asked(ROUTE)[0]
    assert request.json() == {
        "code": "x = 1",
        "cwd": str(px.folder),
        "environ": {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c", "PATH": "/usr/bin:/bin"},
    }
    assert request.headers["accept"] == "application/x-ndjson"
    assert "x-px-instance" not in request.headers


def test_options_become_members_of_the_request(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("POST /api/kernels/work/execute", FINE)
    options = ["--timeout", "-5", "--reset", "--per-call", "--interpreter", "py", "--backend", "direct"]
    asked = [*options, "--kernelspec", "ir", "--kernel", "kernel:work", "--cwd", "sub"]
    assert px("exec", "ls", *asked, PX_INSTANCE="a.b").code == 0
    request = daemon.asked("POST /api/kernels/work/execute")[0]
    body = request.json()
    assert request.headers["x-px-instance"] == "a.b"
    assert body.pop("environ") == {"PATH": "/usr/bin:/bin"}
    assert body == {
        "code": "ls", "cwd": str(px.folder / "sub"), "timeout": -5.0, "reset": True, "per_call": True,
        "interpreter": "py", "kernelspec": "ir", "backend": "direct",
    }  # fmt: skip
    assert px("exec", "ls", "--bash", "--kernel", "work").code == 0
    assert daemon.asked("POST /api/kernels/work/execute")[1].json()["language"] == "bash"


@pytest.mark.parametrize(
    ("name", "content", "member"),
    [
        ("x.py", "# %% a\n1\n", "script"),
        ("x.ipynb", "{}", "notebook"),
        ("x.sh", "ls\n", "code"),
        ("x.R", "1\n", "code"),
        ("noending", "1\n", "script"),
    ],
)
def test_a_file_is_sent_as_what_it_is(px: Px, daemon: FakeDaemon, name: str, content: str, member: str) -> None:
    daemon.on(ROUTE, FINE)
    (px.folder / name).write_text(content)
    assert px("exec", "-f", name).code == 0
    body = daemon.asked(ROUTE)[0].json()
    assert body[member] == content
    assert body.get("language") == ("bash" if name == "x.sh" else None)


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        ([], b"", "stdin is empty"),
        (["1", "-f", "x.py"], None, "exclude each other"),
        (["-f", "missing.py"], None, "cannot read missing.py"),
        (["-"], b"\xff\xfe", "cannot read stdin"),
        (["1", "-o", "x.ipynb"], None, "none is run"),
        (["1", "--kernel", "tool:x"], None, "does not name a kernel"),
        (["ls", "--bash", "--interpreter", "py"], None, "name what runs Python"),
        (["ls", "--bash", "--kernelspec", "ir"], None, "name what runs Python"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(
    px: Px, daemon: FakeDaemon, arguments: list[str], given: bytes | None, words: str
) -> None:
    ended = px("exec", *arguments, given=given)
    assert ended.code == 2
    assert words in ended.err
    assert "hint: " in ended.err
    assert daemon.seen == []


# -- on a pipe --------------------------------------------------------------------------------------------------------


def test_a_traceback_goes_to_stderr_with_colours_only_where_they_are_wanted(px: Px, daemon: FakeDaemon) -> None:
    error = {"event": "error", "id": CELL, "name": "E", "value": "v", "traceback": ["\x1b[31mE\x1b[0m", "v\x07"]}
    raised = {"name": "E", "value": "v", "traceback": ["x"]}
    daemon.on(ROUTE, ndjson(started(), error, ended("error", error=raised), done("error", "The cell failed (E).")))
    assert px("exec", "1").err == "E\nv�\n", "and the error is told once"
    assert px("exec", "1", "--color", "always").err == "\x1b[31mE\x1b[0m\nv�\n"


def test_notices_are_told_once(px: Px, daemon: FakeDaemon) -> None:
    text = "The kernel was replaced: variables are gone."
    notice = {"event": "notice", "text": text}
    daemon.on(
        ROUTE, ndjson(notice, started(), ended(notices=[text]), done(notices=[text], message="exit() was called."))
    )
    ended_call = px("exec", "1")
    assert ended_call.code == 0
    assert ended_call.err == f"pxctl: {text}\npxctl: exit() was called.\n"
    assert px("exec", "1", "-q").err == ""


# -- nothing is lost --------------------------------------------------------------------------------------------------


def test_what_the_stream_left_out_is_read_from_the_file(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(ROUTE, ndjson(started(), out("one "), out("E", "stderr"), ended(total_bytes=16), done()))
    daemon.on(f"GET /api/kernels/{KERNEL}/cells/{CELL}/output", page_of(stdout=b"one two three", stderr=b"ERR"))
    ended_call = px("exec", "1")
    assert (ended_call.out, ended_call.err) == (b"one two three", "ERR")


def page_of(**streams: bytes) -> Any:
    def answer(request: Request, connection: socket.socket) -> None:
        rest = streams[request.arguments["stream"]][int(request.arguments["offset"]) :]
        connection.sendall(reply(rest, content_type="application/octet-stream"))

    return answer
