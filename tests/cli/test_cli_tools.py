"""`pxctl tools …`, `doctor`: the catalog and the checks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cli.fake_daemon import FakeDaemon, document

if TYPE_CHECKING:
    from cli.px import Px

TOOLS = {
    "schema": "px.tools/1",
    "tools": [
        {
            "name": "a",
            "title": "a",
            "version": "1",
            "description": "does a",
            "dialect": "plain",
            "state": "ready",
            "pinned": True,
            "config_error": None,
            "warnings": ["odd schema"],
        },
        {
            "name": "b",
            "title": "The B",
            "version": None,
            "description": None,
            "dialect": None,
            "state": "cold",
            "pinned": False,
            "config_error": "tool.json:3: unknown key",
            "warnings": [],
        },
    ],
}


def test_the_list_shows_broken_tools_with_their_error(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/tools", document(TOOLS))
    ended = px("tools", "list")
    assert ended.lines[1].split() == ["a", "ready", "1", "plain", "pinned", "does", "a"]
    assert ended.lines[2].split() == ["b", "broken", "tool.json:3:", "unknown", "key"]
    assert ended.err == "warning: a: odd schema\n"
    assert px("tools", "list", "-q").lines == ["a", "b"]
    assert px("tools", "list", "--json").json() == TOOLS


def test_one_tool_is_shown_with_its_inputs(px: Px, daemon: FakeDaemon) -> None:
    schema = {
        "required": ["n"],
        "properties": {
            "n": {"type": "integer", "description": "how many"},
            "xs": {"type": "array", "items": {"type": "number"}, "default": [1]},
            "k": {"enum": ["p", 1]},
            "m": {"anyOf": [{"type": "string"}, {"type": ["null", "number"]}]},
            "any": True,
        },
    }
    tool = TOOLS["tools"][0] | {
        "schema": "px.tool/1",
        "input_schema": schema,
        "limits": {"max_memory_mb": 512, "cpu_seconds": None},
    }  # type: ignore[index]
    daemon.on("GET /api/tools/a", document(tool))
    text = px("tools", "show", "tool:a").text
    for words in (
        "max_memory_mb",
        "integer",
        "required",
        "how many",
        "array of number",
        "[1]",
        "p | 1",
        "string | null | number",
        "any",
    ):
        assert words in text
    assert "cpu_seconds" not in text
    assert px("tools", "show", "a", "--json").json() == tool
    assert px("tools", "show", "a", "-q").text == "a\n"
    daemon.on("GET /api/tools/b", document(TOOLS["tools"][1]))
    assert "tool.json:3" in px("tools", "show", "b").text


def validation(overall: str) -> bytes:
    checks = [
        {"name": "one", "status": "pass", "message": "fine", "details": {"x": 1}},
        {"name": "two", "status": "skip", "message": "none", "details": None},
        {"name": "three", "status": overall, "message": "hm", "details": ["because", "of that"]},
        {"name": "four", "status": overall, "message": "hm", "details": {"key": "value"}},
        {"name": "five", "status": overall, "message": None, "details": "a\nb"},
    ]
    return document({"schema": "px.validation/1", "tool_id": "a", "overall": overall, "checks": checks})


@pytest.mark.parametrize(("overall", "code"), [("pass", 0), ("warn", 0), ("fail", 1)])
def test_validation_exits_with_its_verdict(px: Px, daemon: FakeDaemon, overall: str, code: int) -> None:
    daemon.on("POST /api/tools/a/validate", validation(overall))
    ended = px("tools", "validate", "a")
    assert ended.code == code
    assert ended.lines[-1] == f"a: {overall}"
    assert ("because" in ended.text) is (overall != "pass")
    assert px("tools", "validate", "a", "-q").text == f"{overall}\n"
    assert px("tools", "validate", "a", "--json").code == code


def test_debugging_shows_what_was_found_and_the_next_step(px: Px, daemon: FakeDaemon) -> None:
    cases = [
        {"case": "never_ready", "found": True, "evidence": ["it said", "boom\x1b[2J"], "next_step": "mend main.py"},
        {"case": "memory_limit", "found": True, "evidence": {"rss": 5}, "next_step": None},
        {"case": "early", "found": True, "evidence": "one\ntwo", "next_step": None},
        {"case": "silent", "found": True, "evidence": None, "next_step": None},
        {"case": "drift", "found": False, "evidence": None, "next_step": None},
    ]
    daemon.on(
        "POST /api/tools/a/debug", document({"schema": "px.debug/1", "cases": cases, "verdict": "it never came up"})
    )
    text = px("tools", "debug", "a").text
    for words in (
        "FOUND  never_ready",
        "boom�",
        "next: mend main.py",
        "rss: 5",
        "two",
        "no     drift",
        "verdict: it never came up",
    ):
        assert words in text
    assert px("tools", "debug", "a", "-q").lines == ["never_ready", "memory_limit", "early", "silent"]
    assert px("tools", "debug", "a", "--json").json()["cases"] == cases


def test_new_and_add_name_what_they_made(px: Px, daemon: FakeDaemon) -> None:
    made = document({"schema": "px.tool/1", "name": "a", "folder": "/t/a", "warnings": ["hm"]})
    daemon.on("POST /api/tools/new", made).on("POST /api/tools/add", made)
    assert px("tools", "new", "a").text == "tool:a written to /t/a\n"
    assert px("tools", "new", "tool:a", "--template", "x", "-q").text == "a\n"
    assert px("tools", "new", "a", "--json").json()["folder"] == "/t/a"
    assert px("tools", "add", "example:a").text == "tool:a added in /t/a\n"
    ended = px("tools", "add", "some/where", "--name", "a")
    assert "warning: hm" in ended.err
    assert "tools sync" not in ended.err
    assert px("tools", "add", "example:a", "-q").text == "a\n"
    assert px("tools", "add", "example:a", "--json").json()["name"] == "a"
    bodies = [request.json() for request in daemon.seen]
    assert bodies[:2] == [{"name": "a"}, {"name": "a", "template": "x"}]
    assert bodies[3:5] == [
        {"source": "example:a"},
        {"source": f"{os.path.realpath(px.folder)}/some/where", "name": "a"},
    ]


CHECKS = [
    {"name": "disk", "status": "ok", "detail": "much is free", "repair": None},
    {"name": "uv", "status": "warn", "detail": "is not there", "repair": "pip install uv"},
]


def test_doctor_puts_both_sides_together(px: Px, daemon: FakeDaemon, short_bin: str) -> None:
    daemon.on("GET /api/doctor", document({"schema": "px.doctor/1", "checks": CHECKS}))
    os.chmod(px.socket, 0o600)
    ended = px("doctor", PATH=f"{short_bin}:/usr/bin:/bin")
    assert ended.code == 0, ended.text
    assert "ok    disk: much is free" in ended.lines
    assert "      repair: pip install uv" in ended.lines
    names = [check["name"] for check in px("doctor", "--json", PATH=short_bin).json()["checks"]]
    assert {"pxd", "daemon", "disk"} <= set(names)
    assert px("doctor", "-q", PATH=short_bin).lines == ["uv"]


def test_doctor_works_without_a_daemon(px: Px, short_bin: str) -> None:
    ended = px("doctor", PATH=short_bin)
    assert ended.code == 1
    assert "fail  daemon: no daemon answers" in ended.text
    assert "pxctl daemon start" in ended.text
    long = px("doctor", PX_SOCKET="/tmp/" + "x" * 120, PATH=short_bin)
    assert "the platform allows" in long.text
    assert "fail  daemon: --system means" in px("doctor", "--system", PX_SOCKET="").text


@pytest.fixture
def short_bin(px: Px) -> str:
    """A directory with a `pxd` in it, which nobody starts."""
    folder = px.folder / "bin"
    folder.mkdir()
    (folder / "pxd").write_text("#!/bin/sh\nexit 1\n")
    (folder / "pxd").chmod(0o755)
    return str(folder)
