"""What a person reads when something went wrong: the true cause, the place in the code, a
command that helps.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from e2e.house import House, house, of_module, server, until

# A server that cannot start logs lines of its own after the traceback, as uvicorn does.
LIFESPAN = """
import logging, sys
logging.basicConfig(format="%(levelname)s:    %(message)s")
try:
    raise RuntimeError("no model")
except RuntimeError:
    logging.exception("startup")
logging.error("Application startup failed. Exiting.")
sys.exit(3)
"""
IPV6_ONLY = """
import socket, sys, time
listening = socket.socket(socket.AF_INET6)
listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listening.bind(("::", int(sys.argv[2])))
listening.listen()
time.sleep(1000)
"""
BOOT_LINE = "print('up', file=sys.stderr, flush=True)"
MUTE = server("return body", BOOT_LINE).replace(
    "self.answer(run(body))", "self.answer({'oops': 1}, 500)"
)
FAULTS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "lifespan": (
        LIFESPAN,
        {},
        "exited with code 3 before it was ready: RuntimeError: no model (main.py:5)",
        "main.py:5",
    ),
    "exits": (
        "import sys\nsys.exit('no model here')",
        {},
        "exited with code 1 before it was ready: no model here",
        "logs",
    ),
    "variable": (
        "import os\nos.environ['A_KEY']",
        {},
        "KeyError: 'A_KEY' (main.py:2)",
        "Set A_KEY in",
    ),
    "port": (
        "import sys\nsys.exit('Error: That port is already in use.')",
        {},
        "already in use",
        "bind 127.0.0.1",
    ),
    "ipv6": (
        IPV6_ONLY,
        {"start_timeout_seconds": 1, "listen": "port"},
        "it listens on [::]:",
        "bind 127.0.0.1",
    ),
    "background": (
        "",
        {"command": ["sh", "-c", "sleep 0 & exit 0"]},
        "exited with code 0",
        "foreground",
    ),
    "nowhere": (
        "",
        {"command": ["no-such-program"]},
        "is not on its PATH (",
        "command -v no-such-program",
    ),
    "moved": (
        "",
        {"command": ["./script"]},
        "its `#!` line names /old/venv/bin/python",
        "first line of",
    ),
    "windows": ("", {"command": ["./script"]}, "line endings of Windows", "sed -i"),
    "node": (
        "require('express')",
        {"command": ["node", "main.py"]},
        "Cannot find module 'express'",
        "npm install express",
    ),
}
ONLY_N = {"type": "object", "properties": {"n": {}}, "additionalProperties": False}
SCRIPTS = {"moved": b"#!/old/venv/bin/python\n", "windows": b"#!/bin/sh\r\nexit 0\r\n"}
shared = of_module(house, {"PX_TOOLS__WARM_KEEP_MAX": "50"}, start=True, measured=True)


@pytest.mark.parametrize("name", FAULTS)
def test_a_start_that_fails_names_the_cause_and_the_cure(
    shared: House, name: str, require: Any
) -> None:
    require(name != "node" or shutil.which("node") is not None, "node is not installed")
    code, manifest, detail, hint = FAULTS[name]
    folder = shared.tool(name, code, **manifest)
    if name in SCRIPTS:
        (folder / "script").write_bytes(SCRIPTS[name])
        (folder / "script").chmod(0o755)
    for command in ("run", "start"):
        done = shared.pxctl(command, name)
        first, last = done.stderr.splitlines()[0], done.stderr.splitlines()[-1]
        assert (done.returncode != 0, detail in first) == (True, True), done.stderr
        assert (last.startswith("hint: "), hint in last) == (True, True), done.stderr
        assert "command" not in manifest or "main.py" not in last, "a command has no main.py"


def test_a_program_that_only_the_clients_path_has_is_named_with_its_place(shared: House) -> None:
    mine = shared.home / "mine"
    mine.mkdir()
    (mine / "serve-it").write_text("#!/bin/sh\n")
    (mine / "serve-it").chmod(0o755)
    shared.tool("mine", "", command=["serve-it", "{port}"])
    path = f"{mine}:{shared.environ['PATH']}"
    done = shared.pxctl("run", "mine", env={"PATH": path})
    assert (
        f"serve-it is on your PATH, not on the daemon's: write {mine}/serve-it, or"
        in done.stderr.splitlines()[-1]
    )
    document = json.loads(shared.pxctl("run", "mine", "--json", env={"PATH": path}).stdout)
    assert (document["program"], str(mine) in document["hint"]) == ("serve-it", True)
    shared.tool("by-shell", "", command=["sh", "-c", "serve-it 1"])
    assert f"write {mine}/serve-it" in shared.pxctl("run", "by-shell", env={"PATH": path}).stderr


def test_an_exception_in_the_code_of_a_new_tool_is_told_everywhere(shared: House) -> None:
    assert shared.pxctl("tools", "new", "fresh").returncode == 0
    main = shared.home / "tools" / "fresh" / "main.py"
    sound = main.read_text()
    (line,) = (
        number
        for number, text in enumerate(sound.splitlines(), 1)
        if "result = text * times" in text
    )
    main.write_text(sound.replace("result = text * times", 'result = {}["len"]'))
    place, said = f"{main}:{line}", f"KeyError: 'len' (main.py:{line})"
    done = until(
        lambda: (it := shared.pxctl("run", "fresh", "text=x")).returncode and it,
        "the changed tool answers",
    )
    assert f"tool:fresh answered 500: {said}" in done.stderr
    assert done.stderr.splitlines()[-1] == f"hint: Fix {place} (KeyError)."
    streamed = shared.pxctl("run", "--stream", "fresh", "text=x")
    assert (streamed.returncode, said in streamed.stderr) == (1, True), streamed

    document = until(lambda: (it := shared.json("tools", "debug", "fresh"))["verdict"] != "" and it)
    (case,) = (case for case in document["cases"] if case["found"])
    assert (case["case"], said in case["evidence"], case["next_step"]) == (
        "exception",
        True,
        f"Fix {place} (KeyError).",
    )

    why = shared.json("why", "fresh")
    assert (why["state"], why["next_step"]) == ("ready", f"Fix {place} (KeyError).")
    assert "its last run failed at " in why["summary"]
    assert said in why["summary"]
    assert said in shared.pxctl("why", "fresh").stdout

    report = shared.json("tools", "validate", "fresh", code=1)
    assert said in next(
        check["message"] for check in report["checks"] if check["name"] == "sample_input_run"
    )

    main.write_text(sound)
    until(lambda: shared.run("fresh", {"text": "x"}).status == 200, "the mended tool answers")
    until(
        lambda: "nothing is wrong" in shared.json("why", "fresh")["summary"],
        "its last run is a good one",
    )


def test_a_500_without_a_word_is_found_whatever_the_server_printed_before(shared: House) -> None:
    shared.tool("mute", MUTE)
    failed = shared.pxctl("run", "mute")
    assert (failed.returncode, "stderr: up" in failed.stderr) == (1, False), (
        "what it wrote at its start is not the run's"
    )
    for _ in range(2):
        found = [
            case["case"] for case in shared.json("tools", "debug", "mute")["cases"] if case["found"]
        ]
        assert found == ["bad_answer"]
        assert shared.pxctl("restart", "mute").returncode == 0


def test_a_tool_that_refuses_a_run_by_4xx_is_found_and_told_of(shared: House) -> None:
    shared.tool("refuses", MUTE.replace("500", "404"))
    for _ in range(2):
        assert "answered 404" in shared.pxctl("run", "refuses").stderr
        until(lambda: "answered 404" in shared.json("why", "refuses")["summary"], "why tells of it")
        (case,) = (
            case for case in shared.json("tools", "debug", "refuses")["cases"] if case["found"]
        )
        assert (case["case"], "404" in case["evidence"]) == ("bad_answer", True)
        assert case["next_step"].startswith("Serve POST /run without credentials")
        shared.pxctl("stop", "refuses")
    assert not shared.events("tool:refuses", "run_failed"), (
        "that may be right: it is no failure of the tool's"
    )


def test_a_sync_that_builds_nothing_does_not_say_that_it_did(shared: House) -> None:
    folder = shared.tool("bare", server("return body"))
    done = shared.pxctl("tools", "sync", "bare")
    assert (done.returncode, done.stdout) == (0, "tool:bare has nothing to build\n")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to("/nowhere/python3")
    for command in (["tools", "sync", "bare"], ["run", "bare"]):
        failed = until(
            lambda command=command: (it := shared.pxctl(*command)).returncode and it,
            "it is noticed",
        )
        assert f"hint: python3 -m venv --clear {folder}/.venv" in failed.stderr


def test_the_test_request_that_does_not_fit_is_named(shared: House) -> None:
    folder = shared.tool("strict", server("return body"), input=ONLY_N)
    (folder / "test-request.json").write_text(json.dumps({"times": 2}))
    report = shared.json("tools", "validate", "strict", code=1)
    message = next(
        check["message"] for check in report["checks"] if check["name"] == "sample_input_run"
    )
    assert "test-request.json does not fit the input in tool.json: /times " in message
