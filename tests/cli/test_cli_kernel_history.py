"""`pxctl kernel cells, output, export, specs` against a stand-in: what a session ran, byte for byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cli.fake_daemon import FakeDaemon, Request, document, reply

if TYPE_CHECKING:
    import socket

    from cli.px import Px

ID = "default-3fa9c1"


def on_kernel(daemon: FakeDaemon) -> FakeDaemon:
    return daemon.on("GET /api/kernels/default", document({"id": ID, "unit": f"kernel:{ID}", "state": "idle"}))


CELLS = [
    {"id": f"c{at}", "title": "t" if at else None, "code": "x = 1\n" * 99, "status": "ok", "execution_count": at,
     "duration_seconds": 0.5, "total_bytes": 3, "started_at": "2026-01-01T00:00:00Z"}
    for at in range(3)
]  # fmt: skip


def test_cells_lists_what_was_run(px: Px, daemon: FakeDaemon) -> None:
    on_kernel(daemon)
    daemon.on(f"GET /api/kernels/{ID}/cells", document({"schema": "px.cells/1", "kernel": ID, "cells": CELLS}))
    lines = px("kernel", "cells", "default").lines
    assert [line.split()[0] for line in lines] == ["CELL", "c0", "c1", "c2"]
    assert "t: x = 1 x = 1" in lines[2]
    assert all(len(line) < 300 for line in lines)
    assert px("kernel", "cells", "default", "-n", "1", "-q").text == "c2\n"
    assert [cell["id"] for cell in px("kernel", "cells", "default", "-n", "2", "--json").json()["cells"]] == [
        "c1",
        "c2",
    ]


def pages(content: bytes, *, complete: bool = True) -> Any:
    def answer(request: Request, connection: socket.socket) -> None:
        offset, limit = int(request.arguments["offset"]), int(request.arguments["limit"])
        page = content[offset : offset + min(limit, 1000)]
        at_end = complete and offset + len(page) >= len(content)
        more = f"X-Offset: {offset}\r\nX-Total-Bytes: {len(content)}\r\nX-Complete: {str(at_end).lower()}\r\n"
        connection.sendall(reply(page, content_type="application/octet-stream", more=more))

    return answer


def test_output_is_every_byte_of_a_cell(px: Px, daemon: FakeDaemon) -> None:
    content = bytes(range(256)) * 10
    on_kernel(daemon).on(f"GET /api/kernels/{ID}/cells", document({"cells": CELLS}))
    daemon.on(f"GET /api/kernels/{ID}/cells/c2/output", pages(content))
    assert px("kernel", "output", "default", "c2").out == content
    assert px("kernel", "output", "default", "last").out == content
    some = px("kernel", "output", "default", "c2", "--offset", "100", "--limit", "1500", "--stream", "stderr")
    assert some.out == content[100:1600]
    assert some.err == "pxctl: 1600 of 2560 bytes so far; go on with --offset 1600\n"
    assert daemon.seen[-1].arguments["stream"] == "stderr"
    assert px("kernel", "output", "default", "c2", "--json").json()["base64"]


def test_output_of_a_running_cell_says_where_to_go_on(px: Px, daemon: FakeDaemon) -> None:
    on_kernel(daemon)
    daemon.on(f"GET /api/kernels/{ID}/cells/c/output", pages(b"so far", complete=False))
    ended = px("kernel", "output", "default", "c")
    assert (ended.out, ended.err) == (b"so far", "pxctl: 6 of 6 bytes so far; go on with --offset 6\n")
    facts = px("kernel", "output", "default", "c", "--json").json()
    assert (facts["text"], facts["complete"], facts["total_bytes"]) == ("so far", False, 6)


def test_output_on_a_terminal_is_harmless(px: Px, daemon: FakeDaemon) -> None:
    on_kernel(daemon)
    daemon.on(f"GET /api/kernels/{ID}/cells/c/output", pages(b"a\x1b[2Jb\x07\n" + b"x\n" * 30))
    with px.terminal("kernel", "output", "default", "c") as screen:
        assert screen.end() == 0
        assert screen.text.replace("\r\n", "\n") == "ab�\n" + "x\n" * 30


def test_a_session_without_cells_has_no_last_one(px: Px, daemon: FakeDaemon) -> None:
    on_kernel(daemon).on(f"GET /api/kernels/{ID}/cells", document({"cells": []}))
    assert px("kernel", "output", "default", "last").code == 4
    assert px("kernel", "cells", "default").err == "it ran nothing yet\n"


def test_export_writes_a_whole_file_or_stdout(px: Px, daemon: FakeDaemon) -> None:
    on_kernel(daemon)
    notebook = reply(b'{"nbformat": 4}', content_type="application/x-ipynb+json")
    daemon.on(f"GET /api/kernels/{ID}/notebook", notebook)
    assert px("kernel", "export", "default").json() == {"nbformat": 4}
    ended = px("kernel", "export", "default", "-o", "s.ipynb")
    assert (ended.out, ended.err) == (b"", "saved s.ipynb (15B)\n")
    assert json.loads((px.folder / "s.ipynb").read_text()) == {"nbformat": 4}
    assert px("kernel", "export", "default", "-o", "s.ipynb", "--json").json()["size_bytes"] == 15
    ended = px("kernel", "export", "default", "-o", "no/folder.ipynb")
    assert (ended.code, "cannot write no/folder.ipynb" in ended.err) == (1, True)


def test_specs_are_listed_with_the_default_one(px: Px, daemon: FakeDaemon) -> None:
    spec = {"argv": ["python", "-m", "ipykernel_launcher"], "language": "python", "display_name": "Python 3"}
    answer = {"default": "python3", "kernelspecs": {"python3": {"name": "python3", "spec": spec}, "ir": {"spec": {}}}}
    daemon.on("GET /api/kernelspecs", document(answer))
    lines = px("kernel", "specs").lines
    assert lines[1].split(None, 3)[:3] == ["python3", "(default)", "python"]
    assert lines[2].split() == ["ir"]
    assert px("kernel", "specs", "-q").text == "python3\nir\n"
    assert px("kernel", "specs", "--json").json() == answer
