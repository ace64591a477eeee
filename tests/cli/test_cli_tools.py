"""`pxctl tools …`, `doctor`, `version`: the catalog and the checks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, document, ndjson, problem_of
from cli.px import Px

SYNC = "POST /api/tools/a/sync"
GOOD: dict[str, Any] = {
    "name": "a", "title": "a", "version": "1", "description": "does a", "dialect": "plain", "state": "ready",
    "pinned": True, "config_error": None, "warnings": ["odd schema"],
}  # fmt: skip
BROKEN = GOOD | {"name": "b", "state": "cold", "pinned": False, "config_error": "tool.json:3: no key", "warnings": []}


def test_the_list_shows_broken_tools_with_their_error(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/tools", document({"schema": "px.tools/1", "tools": [GOOD, BROKEN]}))
    ended = px("tools", "list")
    assert ended.lines[1].split() == ["a", "ready", "1", "plain", "pinned", "does", "a"]
    assert ended.lines[2].split() == ["b", "broken", "1", "plain", "tool.json:3:", "no", "key"]
    assert ended.err == "warning: a: odd schema\n"
    assert px("tools", "list", "-q").lines == ["a", "b"]


def test_one_tool_is_shown_with_its_inputs(px: Px, daemon: FakeDaemon) -> None:
    properties = {
        "n": {"type": "integer", "description": "how many"},
        "xs": {"type": "array", "default": [1]},
        "k": {"enum": ["p", 1]},
        "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "free": True,
    }
    facts = {"input_schema": {"required": ["n"], "properties": properties}, "limits": {"memory_mb": 5, "seconds": None}}
    daemon.on("GET /api/tools/a", document(GOOD | facts))
    words = " ".join(px("tools", "show", "tool:a").text.split())
    for wanted in (
        "memory_mb 5",
        "n integer required how many",
        "xs array [1]",
        "k p | 1",
        "m string | null",
        "free any",
    ):
        assert wanted in words


@pytest.mark.parametrize(("overall", "code"), [("pass", 0), ("warn", 0), ("fail", 1)])
def test_validation_exits_with_its_verdict(px: Px, daemon: FakeDaemon, overall: str, code: int) -> None:
    checks = [{"name": "two", "status": overall, "message": "hm", "details": "because\nof that"}]
    found = {"schema": "px.validation/1", "tool_id": "a", "overall": overall, "checks": checks}
    daemon.on("POST /api/tools/a/validate", document(found))
    ended = px("tools", "validate", "a")
    assert (ended.code, ended.lines[-1]) == (code, f"a: {overall}")
    assert ("because" in ended.text) is (overall != "pass")
    assert px("tools", "validate", "a", "--json").code == code
    assert px("tools", "validate", "a", "-q").text == "a\n"


def test_debugging_shows_what_was_found_and_the_next_step(px: Px, daemon: FakeDaemon) -> None:
    cases = [
        {"case": "never_ready", "found": True, "evidence": "it said\nboom\x1b[2J", "next_step": "mend main.py"},
        {"case": "drift", "found": False, "evidence": None, "next_step": None},
    ]
    daemon.on("POST /api/tools/a/debug", document({"cases": cases, "verdict": "it never came up"}))
    text = px("tools", "debug", "a").text
    for words in ("FOUND  never_ready", "boom�", "next: mend main.py", "no     drift", "verdict: it never"):
        assert words in text
    assert px("tools", "debug", "a", "-q").lines == ["never_ready"]


def test_new_and_add_name_what_they_made_and_the_next_step(px: Px, daemon: FakeDaemon) -> None:
    made = document({"schema": "px.tool/1", "name": "a", "folder": "/t/a", "warnings": ["hm"], "needs_sync": True})
    daemon.on("POST /api/tools/new", made).on("POST /api/tools/add", made)
    assert px("tools", "new", "tool:a").text == "tool:a written to /t/a\n"
    assert px("tools", "new", "a", "-q").text == "a\n"
    ended = px("tools", "add", "some/where", "--name", "a")
    assert (ended.text, ended.err.splitlines()[0]) == ("tool:a added in /t/a\n", "warning: hm")
    assert "pxctl tools sync a" in ended.err
    source = f"{os.path.realpath(px.folder)}/some/where"
    assert [one.json() for one in daemon.seen] == [{"name": "a"}, {"name": "a"}, {"source": source, "name": "a"}]


def test_a_build_shows_its_progress_and_ends_as_it_did(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(SYNC, ndjson({"progress": "creating .venv"}, {"progress": "in\x1b[2Jstalling"}, {"done": True}))
    ended = px("tools", "sync", "a")
    assert (ended.code, ended.text, ended.err) == (0, "tool:a synced\n", "creating .venv\nin�[2Jstalling\n")
    assert [json.loads(line) for line in px("tools", "sync", "a", "--json").lines][-1] == {"done": True}
    assert px("tools", "sync", "a", "-q").text == "a\n"
    failed = problem_of(500, "sync_failed", 1, detail="no such package")
    for events, words in (
        ([{"progress": "x"}, failed], "no such package"),
        ([{"progress": "x"}], "before the build was"),
    ):
        daemon.on(SYNC, ndjson(*events))
        ended = px("tools", "sync", "a")
        assert (ended.code, words in ended.err) == (1, True)


def test_doctor_puts_both_sides_together_and_works_without_a_daemon(px: Px, daemon: FakeDaemon) -> None:
    (px.folder / "bin").mkdir()
    (px.folder / "bin" / "pxd").write_text("#!/bin/sh\nexit 1\n")
    (px.folder / "bin" / "pxd").chmod(0o755)
    path = f"{px.folder}/bin:/usr/bin:/bin"
    checks = [{"name": "uv", "status": "warn", "detail": "is not there", "repair": "pip install uv"}]
    daemon.on("GET /api/doctor", document({"schema": "px.doctor/1", "checks": checks}))
    ended = px("doctor", PATH=path)
    assert ended.code == 0, ended.text
    assert {"warn   uv: is not there", "       repair: pip install uv"} <= set(ended.lines)
    names = [check["name"] for check in px("doctor", "--json", PATH=path).json()["checks"]]
    assert names == ["pxd", "service_unit", "daemon", "uv"]
    alone = px("doctor", PX_SOCKET="/tmp/" + "x" * 120, PATH=path)
    assert (alone.code, "the platform allows" in alone.text, "pxctl daemon start" in alone.text) == (1, True, True)


def test_version_names_both_sides(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/daemon", document({"version": "0.0.1"}))
    ended = px("version", "--socket", px.socket, PX_SOCKET="/nowhere")
    assert (ended.lines[1], "differ" in ended.err) == ("pxd 0.0.1", True)
    ended = px("version", PX_SOCKET="/nowhere")
    assert (ended.code, ended.lines[1]) == (0, "pxd not running")
