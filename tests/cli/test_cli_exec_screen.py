"""`pxctl exec` on a terminal: headers, collapsed output, pictures, and a terminal that is left as it was."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cli.fake_daemon import ndjson, pausing
from cli.px import without_spinner

if TYPE_CHECKING:
    from cli.fake_daemon import FakeDaemon
    from cli.px import Px

ROUTE = "POST /api/kernels/default/execute"
CELL, KERNEL = "0123456789abcdef", "default-3fa9c1"
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(20)


def started(index: int = 0, **members: Any) -> dict[str, Any]:
    return {"event": "cell_started", "index": index, "id": CELL, "title": None, "kernel": KERNEL, **members}


def out(text: str, stream: str = "stdout") -> dict[str, Any]:
    return {"event": "output", "id": CELL, "stream": stream, "offset": 0, "text": text}


def display(mime: str, value: Any, **members: Any) -> dict[str, Any]:
    return {"event": "display", "id": CELL, "data": {mime: value}, "metadata": {}, **members}


def ended(status: str = "ok", **members: Any) -> dict[str, Any]:
    return {"event": "cell_done", "cell": {"id": CELL, "status": status, "duration_seconds": 0.12, **members}}


def done(status: str = "ok", message: str | None = None) -> dict[str, Any]:
    return {"event": "done", "result": {"kernel": KERNEL, "status": status, "message": message, "cells": []}}


def shown(px: Px, daemon: FakeDaemon, *events: dict[str, Any], arguments: tuple[str, ...] = (), **env: str) -> str:
    """Return what stays on the screen: without what the spinner drew and erased."""
    daemon.on(ROUTE, ndjson(*events))
    with px.terminal("exec", "1", *arguments, **env) as screen:
        screen.end()
        return without_spinner(screen.text)


def test_what_would_steer_the_terminal_does_not_reach_it(px: Px, daemon: FakeDaemon) -> None:
    nasty = "a\x1b[2J\x1b]0;title\x07\x9b1mb\x07\n"
    events = [started(), out(nasty), display("text/plain", nasty), ended(), done()]
    assert shown(px, daemon, *events) == "ab�\n".replace("ab", "a�1mb") * 2


@pytest.mark.parametrize(
    ("env", "arguments", "drawing"),
    [
        ({}, (), ""),
        ({"KITTY_WINDOW_ID": "1"}, (), "\x1b_Ga=T,f=100,q=2,m=0;{}\x1b\\\n"),
        ({"TERM_PROGRAM": "iTerm.app"}, (), "\x1b]1337;File=inline=1;size=28;preserveAspectRatio=1:{}\x07\n"),
        ({}, ("--images", "kitty"), "\x1b_Ga=T,f=100,q=2,m=0;{}\x1b\\\n"),
        ({"KITTY_WINDOW_ID": "1"}, ("--images", "never"), ""),
        ({"KITTY_WINDOW_ID": "1", "TMUX": "x"}, (), ""),
    ],
)
def test_a_picture_is_drawn_where_the_terminal_can_and_always_named(
    px: Px, daemon: FakeDaemon, env: dict[str, str], arguments: tuple[str, ...], drawing: str
) -> None:
    encoded = base64.b64encode(PICTURE).decode()
    events = [started(), out("before"), display("image/png", encoded), ended(), done()]
    seen = shown(px, daemon, *events, arguments=arguments, **env)
    path = px.folder / "px" / "pictures" / f"{CELL}-1.png"
    assert seen == f"before\n{drawing.format(encoded)}image/png 28B saved: {path}\n"
    assert path.read_bytes() == PICTURE


def test_a_picture_that_cannot_be_saved_does_not_end_the_call(px: Px, daemon: FakeDaemon) -> None:
    (px.folder / "px").mkdir()
    (px.folder / "px" / "pictures").write_text("in the way")
    picture = display("image/png", base64.b64encode(PICTURE).decode())
    seen = shown(px, daemon, started(), picture, out("goes on\n"), ended(), done())
    assert "cannot write" in seen
    assert seen.endswith("goes on\n")


def test_a_display_that_is_updated_is_shown_as_it_is_at_last(px: Px, daemon: FakeDaemon) -> None:
    first = display("text/plain", "0 %", display_id="d")
    updates = [display("text/plain", f"{at} %", display_id="d", update=True) for at in (50, 100)]
    assert shown(px, daemon, started(), first, *updates, ended(), done()) == "0 %\n100 %\n"


def test_helpers_and_the_ladder_are_told_on_lines_of_their_own(px: Px, daemon: FakeDaemon) -> None:
    status = {"event": "status", "id": CELL, "status": {"op": "read", "path": "a\nb", "lines": 3}}
    rung = {"event": "rung", "id": CELL, "action": "sigint", "after_seconds": 0.0, "detail": None}
    events = [started(), out("x"), status, rung, ended("cancelled"), done("cancelled", "It was cancelled.")]
    seen = shown(px, daemon, *events, NO_COLOR="1").splitlines()
    assert seen[:3] == ["x", "· read path=a", "~ ending the cell: sigint"]


def test_a_traceback_is_whole_and_comes_after_what_was_held_back(px: Px, daemon: FakeDaemon) -> None:
    frames = [f"\x1b[31mframe {at}\x1b[0m" for at in range(40)]
    error = {"event": "error", "id": CELL, "name": "E", "value": "v", "traceback": frames}
    events = [started(), out("y\n" * 30), error, ended("error", error={"name": "E", "value": "v"}), done("error", "no")]
    seen = shown(px, daemon, *events, NO_COLOR="1").splitlines()
    assert "10 lines hidden" in seen[15]
    assert seen[21:61] == [f"frame {at}" for at in range(40)]
    assert "\x1b[31mframe 0\x1b[0m" in shown(px, daemon, *events)


def test_what_is_waited_for_is_told_and_erased(px: Px, daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    starting = {"event": "starting", "kernel": KERNEL, "interpreter": "py"}
    daemon.on(ROUTE, pausing(go_on, [starting], [started(), out("out\n"), ended(), done()]))
    with px.terminal("exec", "1") as screen:
        screen.see("starting the kernel…")
        go_on.set()
        assert screen.end() == 0
        assert without_spinner(screen.text) == "out\n"
