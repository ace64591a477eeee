"""`pxctl exec` on a terminal: headers, pictures, and a terminal that is left as it was."""

from __future__ import annotations

import base64
import os
import re
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cli.fake_daemon import FakeDaemon, ndjson
from cli.px import Px, without_spinner
from pxctl.invocation import Invocation
from pxctl.shown import Outlet

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


def test_a_picture_is_saved_in_a_private_folder_and_named(px: Px, daemon: FakeDaemon) -> None:
    folder = px.folder / "px" / "pictures"
    folder.mkdir(parents=True, mode=0o700)
    week_old = time.time() - 8 * 86400
    for name in ("ffffffffffffffff-1.png", "holiday.png"):
        (folder / name).touch()
        os.utime(folder / name, (week_old, week_old))
    picture = display("image/png", base64.b64encode(PICTURE).decode())
    seen = shown(px, daemon, started(), out("before"), picture, ended(), done())
    path = folder / f"{CELL}-1.png"
    assert seen == f"before\npxctl: image/png (28B) saved: {path}\n"
    assert path.read_bytes() == PICTURE
    assert sorted(os.listdir(folder)) == [path.name, "holiday.png"], "old ones of ours go"


def test_a_display_that_is_updated_is_shown_as_it_is_at_last(px: Px, daemon: FakeDaemon) -> None:
    first = display("text/plain", "0 %", display_id="d")
    updates = [display("text/plain", f"{at} %", display_id="d", update=True) for at in (50, 100)]
    assert shown(px, daemon, started(), first, *updates, ended(), done()) == "0 %\n100 %\n"


def test_helpers_and_the_ladder_are_told_on_lines_of_their_own(px: Px, daemon: FakeDaemon) -> None:
    status = {"event": "status", "id": CELL, "status": {"op": "read", "path": "a\nb", "lines": 3}}
    rung = {"event": "rung", "id": CELL, "action": "sigint", "after_seconds": 0.0, "detail": None}
    events = [started(), out("x"), status, rung, ended("cancelled"), done("cancelled", "It was cancelled.")]
    seen = shown(px, daemon, *events, NO_COLOR="1").splitlines()
    assert seen[:3] == ["x", "· read path=a b lines=3", "pxctl: ending the cell: sigint"]


TEXTS = st.lists(
    st.sampled_from(
        ["a", "\n", "\r", "\t", "\x1b", "\x1b[", "\x1b[31m", "\x1b[0m", "\x1b[2J", "\x1b]0;t\x07", "\x1b]8;;x\x1b\\",
         "\x1bP1;q", "\x1b(B", "m", "[", "1;3", "日本", "\x07", "\x9b", "\u202e", "\x7f"]
    )
).map("".join)  # fmt: skip


class Captured(Outlet):
    """An outlet whose terminal is a list."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__(Invocation({}), "stdout")
        self.shown: list[str] = []
        self.is_terminal, self._colour, self._write = True, colour, self.shown.append  # type: ignore[assignment]


@given(st.text() | TEXTS, st.integers(1, 7), st.booleans())
def test_nothing_that_is_shown_steers_the_terminal_however_it_is_cut(text: str, size: int, colour: bool) -> None:
    content, outlet = text.encode("utf-8", "replace"), Captured(colour=colour)
    for at in range(0, len(content), size):
        outlet.put(content[at : at + size])
    outlet.close_line()
    seen = "".join(outlet.shown)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", seen)
    assert not re.search(r"\x1b(?!\[[0-9;:]*m)", seen)
    assert colour or "\x1b" not in seen
    assert seen.removesuffix("\x1b[0m") == "" or re.search(r"\n(\x1b\[[0-9;:]*m)*\Z", seen)
