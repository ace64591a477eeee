"""`pxctl exec` against a stand-in: what it asks, what it shows where, how it ends.

Real kernels: tests/e2e.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.fake_daemon import FakeDaemon, Request, ndjson, pausing, reply
from cli.px import Px, without_spinner
from pxctl.app import Invocation
from pxctl.commands.exec import drawn
from pxctl.streams import Outlet

ROUTE = "POST /api/kernels/default/execute"
CELL, KERNEL = "0123456789abcdef", "default-3fa9c1"
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(20)


def started(**members: Any) -> dict[str, Any]:
    return {
        "event": "cell_started",
        "index": 0,
        "count": 1,
        "id": CELL,
        "title": None,
        "kernel": KERNEL,
        **members,
    }


def out(text: str, stream: str = "stdout") -> dict[str, Any]:
    return {"event": "output", "id": CELL, "stream": stream, "offset": 0, "text": text}


def display(mime: str, value: Any, **members: Any) -> dict[str, Any]:
    return {"event": "display", "id": CELL, "data": {mime: value}, "metadata": {}, **members}


def ended(status: str = "ok", **members: Any) -> dict[str, Any]:
    return {
        "event": "cell_done",
        "cell": {"id": CELL, "status": status, "duration_seconds": 0.12, **members},
    }


def done(status: str = "ok", message: str | None = None, **members: Any) -> dict[str, Any]:
    return {
        "event": "done",
        "result": {"kernel": KERNEL, "status": status, "message": message, "cells": [], **members},
    }


# -- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        ([], b"", "stdin is empty"), (["1", "-f", "x.py"], None, "exclude each other"),
        (["-"], b"\xff\xfe", "cannot read stdin"), (["1", "-o", "x.ipynb"], None, "none is run"),
        (["1", "--kernel", "kernel: "], None, "does not name a kernel"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_a_hint(
    px: Px, daemon: FakeDaemon, arguments: list[str], given: bytes | None, words: str
) -> None:
    refused = px("exec", *arguments, given=given)
    assert (refused.code, daemon.seen) == (2, [])
    assert words in refused.err
    assert "hint: " in refused.err


# -- on a pipe -------------------------------------------------------------------------------------


def test_a_traceback_goes_to_stderr_with_colours_only_where_they_are_wanted(
    px: Px, daemon: FakeDaemon
) -> None:
    error = {"event": "error", "id": CELL, "traceback": ["\x1b[31mE\x1b[0m", "v\x07"]}
    raised = {"name": "E", "value": "v", "traceback": ["x"]}
    daemon.on(
        ROUTE,
        ndjson(
            started(), error, ended("error", error=raised), done("error", "The cell failed (E).")
        ),
    )
    assert px("exec", "1").err == "E\nv�\n", "and the error is told once"
    assert px("exec", "1", "--color", "always").err == "\x1b[31mE\x1b[0m\nv�\n"


def test_notices_are_told_once(px: Px, daemon: FakeDaemon) -> None:
    text = "The kernel was replaced: variables are gone."
    last = done(notices=[text], message="exit() was called.")
    daemon.on(
        ROUTE, ndjson({"event": "notice", "text": text}, started(), ended(notices=[text]), last)
    )
    assert px("exec", "1").err == f"pxctl: {text}\npxctl: exit() was called.\n"


def test_what_the_stream_left_out_is_read_from_the_file(px: Px, daemon: FakeDaemon) -> None:
    files = {"stdout": b"one two three", "stderr": b"ERR"}

    def page(request: Request, connection: socket.socket) -> None:
        rest = files[request.arguments["stream"]][int(request.arguments["offset"]) :]
        connection.sendall(reply(rest, content_type="application/octet-stream"))

    daemon.on(
        ROUTE, ndjson(started(), out("one "), out("E", "stderr"), ended(total_bytes=16), done())
    )
    daemon.on(f"GET /api/kernels/{KERNEL}/cells/{CELL}/output", page)
    whole = px("exec", "1")
    assert (whole.out, whole.err) == (b"one two three", "ERR")


# -- on a terminal ---------------------------------------------------------------------------------


def shown(px: Px, daemon: FakeDaemon, *events: dict[str, Any], **env: str) -> str:
    """Return what stays on the screen: without what the spinner drew and erased."""
    daemon.on(ROUTE, ndjson(*events, ended(), done()))
    with px.terminal("exec", "1", **env) as screen:
        screen.end()
        return without_spinner(screen.text)


def test_the_spinner_moves_while_ipykernel_is_installed_for_the_first_cell(
    px: Px, daemon: FakeDaemon
) -> None:
    go_on = threading.Event()
    notice = {"event": "notice", "text": "installing ipykernel for /p (once); output: /p.log"}
    preparing = {
        "event": "preparing",
        "text": "installing ipykernel for /p (once), 9 packages so far",
    }
    daemon.on(ROUTE, pausing(go_on, [notice, preparing], [started(), out("42\n"), ended(), done()]))
    with px.terminal("exec", "1", columns=120) as screen:
        screen.see("9 packages so far… 0.5s")
        screen.see("9 packages so far… 0.7s")
        go_on.set()
        assert screen.end() == 0
        assert without_spinner(screen.text) == f"pxctl: {notice['text']}\n42\n"


def test_the_spinner_stays_in_its_row(px: Px, daemon: FakeDaemon) -> None:
    """Of two rows only the last one would be erased."""
    go_on = threading.Event()
    preparing = {"event": "preparing", "text": "installing " + "ipykernel " * 20}
    daemon.on(ROUTE, pausing(go_on, [preparing], [started(), out("42\n"), ended(), done()]))
    with px.terminal("exec", "1", columns=40) as screen:
        screen.see("installing")
        go_on.set()
        assert screen.end() == 0
    drawn_rows = [row for row in screen.text.split("\r\x1b[K") if "installing" in row]
    assert drawn_rows
    assert max(map(len, drawn_rows)) < 40


def test_a_terminal_is_not_steered_and_sees_updates_at_last(px: Px, daemon: FakeDaemon) -> None:
    first = display("text/plain", "0 %", display_id="d")
    updates = [display("text/plain", f"{at} %", display_id="d", update=True) for at in (50, 100)]
    rung = {"event": "rung", "id": CELL, "action": "sigint"}
    seen = shown(
        px,
        daemon,
        started(),
        first,
        *updates,
        out("a\x1b[2J\x1b]0;title\x07\x9b1mb\x07"),
        rung,
        NO_COLOR="1",
    )
    assert seen == "0 %\na�1mb�\npxctl: ending the cell: sigint\n100 %\n"


def test_a_picture_is_saved_in_a_private_folder_named_and_drawn_where_that_can_be(
    px: Px, daemon: FakeDaemon
) -> None:
    folder = px.folder / "px" / "pictures"
    folder.mkdir(parents=True, mode=0o700)
    week_old = time.time() - 8 * 86400
    for name in ("ffffffffffffffff-1.png", "holiday.png"):
        (folder / name).touch()
        os.utime(folder / name, (week_old, week_old))
    encoded = base64.b64encode(PICTURE).decode()
    picture, path = display("image/png", encoded), folder / f"{CELL}-1.png"
    told = f"before\npxctl: image/png (28B) saved: {path}\n"
    assert shown(px, daemon, started(), out("before"), picture) == told
    assert path.read_bytes() == PICTURE
    assert sorted(os.listdir(folder)) == [path.name, "holiday.png"], "old ones of ours go"
    drawing = f"\x1b_Ga=T,f=100,m=0;{encoded}\x1b\\\n"
    assert drawn({"KITTY_WINDOW_ID": "1"}, "image/png", PICTURE) == drawing
    assert (
        drawn({"TERM_PROGRAM": "iTerm.app"}, "image/gif", b"x")
        == "\x1b]1337;File=inline=1;size=1:eA==\x07\n"
    )
    for env in ({"KITTY_WINDOW_ID": "1"}, {"TERM_PROGRAM": "iTerm.app"}):
        assert drawn(env, "image/png", b"") == "", (
            "kitty would take what comes later for the rest of it"
        )
    large = drawn({"KITTY_WINDOW_ID": "1"}, "image/png", bytes(6000))
    assert (large.count("m=1;"), large.count("m=0;")) == (1, 1), "in pieces of 4096"


TEXTS = st.lists(
    st.sampled_from(
        [
            "a",
            "\n",
            "\r",
            "\t",
            "\x1b",
            "\x1b[",
            "\x1b[31m",
            "\x1b[0m",
            "\x1b[2J",
            "\x1b]0;t\x07",
            "\x1b]8;;x\x1b\\",
            "\x1bP1;q",
            "\x1b(B",
            "m",
            "[",
            "1;3",
            "日本",
            "\x07",
            "\x9b",
            "\u202e",
            "\x7f",
        ]
    )
).map("".join)


class Captured(Outlet):
    """An outlet whose terminal is a list."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__(Invocation({}), "stdout")
        self.shown: list[str] = []
        self.is_terminal, self._colour, self._write = True, colour, self.shown.append  # type: ignore[assignment]


@given(st.text() | TEXTS, st.integers(1, 7), st.booleans())
def test_nothing_that_is_shown_steers_the_terminal_however_it_is_cut(
    text: str, size: int, colour: bool
) -> None:
    content, outlet = text.encode("utf-8", "replace"), Captured(colour=colour)
    for at in range(0, len(content), size):
        outlet.put(content[at : at + size])
    outlet.close_line()
    seen = "".join(outlet.shown)
    assert not re.search(
        "[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", seen
    )
    assert not re.search(r"\x1b(?!\[[0-9;:]*m)", seen)
    assert colour or "\x1b" not in seen
