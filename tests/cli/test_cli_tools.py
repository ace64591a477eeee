"""`pxctl run`, `tools …`, `doctor`, `version`: input, answers, streams, files; the catalog and
the checks.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from typing import Any

from cli.fake_daemon import (
    FakeDaemon,
    chunked,
    document,
    ndjson,
    pausing,
    problem,
    problem_of,
    reply,
)
from cli.px import Px

RUN, STREAM, TOOL = (
    "POST /api/tools/lorenz/run",
    "POST /api/tools/lorenz/stream",
    "GET /api/tools/lorenz",
)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def test_the_answer_comes_out_byte_for_byte(px: Px, daemon: FakeDaemon) -> None:
    raw = b'{"b":1.50 ,\n "a":"\xc3\xa9"}'
    daemon.on(RUN, chunked(raw[:7], raw[7:]))
    assert px("run", "lorenz").out == raw + b"\n"
    assert px("run", "tool:lorenz", "--json").out == raw + b"\n"
    assert daemon.seen[0].body == b"{}"
    assert all(one.path.endswith("/run") for one in daemon.seen), (
        "no schema where there is nothing to coerce"
    )
    with px.terminal("run", "lorenz") as screen:
        assert screen.end() == 0
        assert json.loads(screen.text) == {"b": 1.5, "a": "é"}
        assert '  "b": 1.5,' in screen.text


def test_items_come_out_one_a_line_as_they_come_and_a_problem_at_the_end_is_the_failure(
    px: Px, daemon: FakeDaemon
) -> None:
    go_on, problem = threading.Event(), problem_of(503, "limit_exceeded", 9, detail="memory")
    daemon.on(STREAM, pausing(go_on, [{"n": 1}], [{"n": 2}, problem]))
    process = px.popen("run", "lorenz", "--stream")
    assert process.stdout is not None
    assert process.stdout.readline() == b'{"n": 1}\n'
    go_on.set()
    rest, err = process.communicate(timeout=60)
    assert (process.returncode, rest, b"memory" in err) == (9, b'{"n": 2}\n', True)
    assert daemon.seen[0].headers["accept"] == "application/x-ndjson"


def test_an_image_is_saved_wherever_it_is_and_no_terminal_gets_binary(
    px: Px, daemon: FakeDaemon
) -> None:
    encoded = base64.b64encode(PNG).decode()
    raw = reply(PNG, content_type="image/png")
    for answer in (
        raw,
        document({"a": [1, {"x/y": encoded}]}),
        document({"plot": f"data:image/png;base64,{encoded}"}),
    ):
        daemon.on(RUN, answer)
        ended = px("run", "lorenz", "-o", "out.png")
        assert (ended.out, ended.err) == (b"", "saved out.png (264B)\n")
        assert (px.folder / "out.png").read_bytes() == PNG
        (px.folder / "out.png").unlink()
    with px.terminal("run", "lorenz") as screen:
        assert screen.end() == 0, "JSON is shown"
    daemon.on(RUN, raw)
    with px.terminal("run", "lorenz") as screen:
        assert (screen.end(), "PNG" in screen.text, "-o FILE" in screen.text) == (2, False, True)


def test_a_file_is_there_whole_or_not_at_all_its_place_is_looked_at_before_and_a_pipe_is_written_to(
    px: Px, daemon: FakeDaemon
) -> None:
    ended = px("run", "lorenz", "-o", f"{px.folder}/nowhere/x")
    assert (ended.code, ended.out, daemon.seen, "no such folder" in ended.err) == (1, b"", [], True)
    assert ended.err.endswith(f"hint: ls -ld {px.folder}/nowhere\n")
    (px.folder / "out").write_bytes(b"old")
    daemon.on(
        RUN,
        chunked(b"new", content_type="application/octet-stream", ended=False),
        document({"a": 1}),
    )
    assert px("run", "lorenz", "-o", "out").code == 1
    assert (px.folder / "out").read_bytes() == b"old"
    assert [name for name in os.listdir(px.folder) if "part" in name] == []
    os.mkfifo(px.folder / "fifo")
    reader = os.open(px.folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    assert px("run", "lorenz", "-o", "fifo").code == 0
    assert (json.loads(os.read(reader, 100)), (px.folder / "fifo").is_fifo()) == ({"a": 1}, True)
    os.close(reader)


def test_a_unit_of_another_kind_is_answered_with_its_command(px: Px) -> None:
    ended = px("run", "kernel:x")
    assert (ended.code, ended.err.splitlines()[-1]) == (2, "hint: pxctl exec --kernel x")


def test_the_tool_is_asked_for_and_run_on_one_connection(px: Px, daemon: FakeDaemon) -> None:
    schema = {"properties": {"n": {"type": "integer"}}}
    daemon.on(TOOL, document({"state": "ready", "input_schema": schema})).on(
        RUN, document({"ok": True})
    )
    assert px("run", "lorenz", "n=5", "--timeout", "30", "--keep-alive=-1").json() == {"ok": True}
    asked = [(one.method, one.headers["connection"]) for one in daemon.seen]
    assert asked == [("GET", "keep-alive"), ("POST", "close")]
    assert (daemon.seen[1].json(), daemon.seen[1].arguments) == (
        {"n": 5},
        {"timeout": "30.0", "keep_alive": "-1.0"},
    )
    assert len(daemon.connections) == 1
    for odd in ("nan", "inf", "-1"):
        assert px("run", "lorenz", "--timeout", odd).code == 2
    assert len(daemon.connections) == 1


# -- the catalog and the checks --------------------------------------------------------------------


def test_tools_are_listed_and_shown_with_their_inputs(px: Px, daemon: FakeDaemon) -> None:
    good: dict[str, Any] = {
        "name": "a", "version": "1", "description": "does a", "dialect": "plain", "state": "ready",
        "pinned": True,
        "config_error": None, "warnings": ["odd schema"],
    }  # fmt: skip
    broken = good | {
        "name": "b",
        "pinned": False,
        "config_error": "tool.json:3: no key",
        "warnings": [],
    }
    daemon.on("GET /api/tools", document({"schema": "px.tools/1", "tools": [good, broken]}))
    ended = px("tools", "list")
    assert ended.lines[1].split() == ["a", "ready", "1", "plain", "pinned", "does", "a"]
    assert ended.lines[2].split() == ["b", "broken", "1", "plain", "tool.json:3:", "no", "key"]
    assert ended.err == "warning: a: odd schema\n"
    properties = {
        "n": {"type": "integer", "description": "how many"},
        "xs": {"type": "array", "default": [1]},
        "k": {"enum": ["p", 1]}, "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "free": True,
    }  # fmt: skip
    facts = {
        "input_schema": {"required": ["n"], "properties": properties},
        "limits": {"memory_mb": 5, "seconds": None},
    }
    daemon.on("GET /api/tools/a", document(good | facts))
    words = " ".join(px("tools", "show", "tool:a").text.split())
    shown = [
        "memory_mb 5",
        "n integer required how many",
        "xs array [1]",
        "k p | 1",
        "m string | null",
        "free any",
    ]
    assert [wanted for wanted in shown if wanted not in words] == []


def test_what_the_checks_of_a_tool_find_is_told_with_the_next_step(
    px: Px, daemon: FakeDaemon
) -> None:
    for overall, code in (("warn", 0), ("fail", 1)):
        checks = [
            {"name": "two", "status": overall, "message": "hm", "details": "because\nof that"}
        ]
        found = {"schema": "px.validation/1", "tool_id": "a", "overall": overall, "checks": checks}
        daemon.on("POST /api/tools/a/validate", document(found))
        ended = px("tools", "validate", "a")
        assert (ended.code, ended.lines[1:]) == (
            code,
            ["       because", "       of that", f"a: {overall}"],
        )
    cases = [
        {
            "case": "never_ready",
            "found": True,
            "evidence": "it said\nboom\x1b[2J",
            "next_step": "mend main.py",
        },
        {"case": "drift", "found": False, "evidence": None, "next_step": None},
    ]
    daemon.on("POST /api/tools/a/debug", document({"cases": cases, "verdict": "it never came up"}))
    text = px("tools", "debug", "a").text
    for words in (
        "FOUND  never_ready",
        "boom�",
        "next: mend main.py",
        "no     drift",
        "verdict: it never",
    ):
        assert words in text


def test_a_build_shows_its_progress_and_ends_as_it_did(px: Px, daemon: FakeDaemon) -> None:
    good = ndjson({"progress": "creating .venv"}, {"progress": "in\x1b[2Jstalling"}, {"done": True})
    bad = ndjson(problem_of(500, "sync_failed", detail="no such package"))
    daemon.on("POST /api/tools/a/sync", good, good, bad, ndjson({"progress": "x"}))
    ended = px("tools", "sync", "a")
    assert (ended.code, ended.text, ended.err) == (
        0,
        "tool:a synced\n",
        "creating .venv\nin�[2Jstalling\n",
    )
    assert [json.loads(line) for line in px("tools", "sync", "a", "--json").lines][-1] == {
        "done": True
    }
    for words in ("no such package", "before the build was"):
        ended = px("tools", "sync", "a")
        assert (ended.code, words in ended.err) == (1, True)


def test_doctor_puts_both_sides_together_and_works_without_a_daemon(
    px: Px, daemon: FakeDaemon
) -> None:
    (px.folder / "bin").mkdir()
    (px.folder / "bin" / "pxd").write_text("#!/bin/sh\nexit 1\n")
    (px.folder / "bin" / "pxd").chmod(0o755)
    path = f"{px.folder}/bin:/usr/bin:/bin"
    checks = [
        {"name": "uv", "status": "warn", "detail": "is not there", "repair": "pip install uv"}
    ]
    daemon.on("GET /api/doctor", document({"schema": "px.doctor/1", "checks": checks}))
    ended = px("doctor", PATH=path)
    assert ended.code == 0, ended.text
    daemon.on("GET /api/daemon", document({"version": "0.0.1"}))
    other = px("doctor", "--json", PATH=path).json()["checks"][-1]
    assert (other["status"], other["repair"]) == ("warn", "pxctl daemon restart")
    assert "pxd 0.0.1 runs" in other["detail"]
    assert {"warn   uv: is not there", "       repair: pip install uv"} <= set(ended.lines)
    names = [check["name"] for check in px("doctor", "--json", PATH=path).json()["checks"]]
    assert names == ["pxd", "service_unit", "daemon", "uv", "version"]
    alone = px("doctor", PX_SOCKET="/tmp/" + "x" * 120, PATH=path)
    assert (
        alone.code,
        "the platform allows" in alone.text,
        "pxctl daemon start" in alone.text,
    ) == (1, True, True)


def test_version_names_both_sides(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/daemon", document({"version": "0.0.1"}))
    ended = px("version", "--socket", px.socket, PX_SOCKET="/nowhere")
    assert (ended.lines[1], "differ" in ended.err) == ("pxd 0.0.1", True)


def test_a_build_that_is_silent_is_shown_moving(px: Px, daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    daemon.on(
        "POST /api/tools/a/sync", pausing(go_on, [{"progress": "Installing"}], [{"done": True}])
    )
    with px.terminal("tools", "sync", "a") as screen:
        screen.see("Installing")
        screen.see("tool:a: building its environment… 0.5s")
        go_on.set()
        assert screen.end() == 0
    assert screen.text.endswith("tool:a synced\r\n")


def test_remove_looks_first_and_repeats_what_was_asked_for(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/tools/gre*", document({"name": "greet"}))
    daemon.on("GET /api/tools/nosuch", problem(404, "unknown_unit", 4))
    daemon.on("DELETE /api/tools/greet", document({"unit": "tool:greet", "name": "greet"}))
    ended = px("tools", "remove", "gre*", "--force")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        2,
        "hint: pxctl tools remove greet --yes --force",
    )
    assert px("tools", "remove", "gre*", "--yes").text == "tool:greet removed\n"
    for options in ((), ("--yes",), ("--force",)):
        assert px("tools", "remove", "nosuch", *options).code == 4
    with px.terminal("tools", "remove", "nosuch") as screen:
        assert screen.end() == 4
        assert "[y/N]" not in screen.text
    assert len(daemon.asked("DELETE /api/tools/greet")) == 1
