"""`pxctl tools debug` finds each row of the failure table in a tool that has the fault (CONTRACT §8)."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.house import House, house, server, until
from rounds import mostly_deep

ECHO = server("return body")
NUMBERED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """One daemon; each fault has its own tool."""
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50"}) as made:
        made.measured = True
        made.start()
        yield made


def diagnosed(home: House, tool: str) -> dict[str, dict[str, Any]]:
    """Return what debug found, by case; every finding has its evidence and its next step."""
    done = home.pxctl("tools", "debug", tool, "--json", seconds=110)
    document = json.loads(done.stdout)
    assert document.get("schema") == "px.debug/1", document
    assert document["unit"] == f"tool:{tool}"
    assert len(document["cases"]) == 8
    found = {each["case"]: each for each in document["cases"] if each["found"]}
    assert all(each["evidence"] and each["next_step"] for each in found.values())
    assert all(case in document["verdict"] for case in found)
    return found


STARTS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "raises": ("raise RuntimeError('boom at import')", {}, "never_ready", "boom at import"),
    "elsewhere": (
        ECHO.replace('port = int(sys.argv[sys.argv.index("--port") + 1])', "port = 0"),
        {"start_timeout_seconds": 1},
        "never_ready",
        "listens",
    ),
    "silent": ("import time\ntime.sleep(1000)", {"start_timeout_seconds": 1}, "never_ready", "1 s"),
    "never-served": ("def serve(): pass", {}, "exits_zero", "0"),
    "forks": ("import os, sys, time\nos.fork() and sys.exit(0)\ntime.sleep(100)", {}, "exits_zero", "0"),
    "no-module": ("import no_such_module_at_all", {}, "missing_interpreter_or_module", "no_such_module_at_all"),
    "no-python": ("", {"python": "/nonexistent/python"}, "missing_interpreter_or_module", "/nonexistent/python"),
    "no-program": ("", {"command": ["/nonexistent/prog"]}, "missing_interpreter_or_module", "/nonexistent/prog"),
    # What it took it keeps: where looks are far apart, a limit is found to be broken at one of them all the same.
    "hungry": (
        "import time\nblock = [bytearray(1 << 22) for _ in range(100)]\ntime.sleep(1000)",
        {"max_memory_mb": 100},
        "memory_limit",
        "memory",
    ),
    "bad-shape": (ECHO.replace("self.answer(run(body))", "self.answer({}, 500)"), {}, "bad_answer", "500"),
    "drifts": (
        ECHO.replace('json.load(open("tool.json"))', '{"name": "something-else"}'),
        {},
        "schema_drift",
        "name",
    ),
    "refuses": (
        ECHO.replace("self.answer(run(body))", "self.answer({'detail': 'no'}, 422)"),
        {},
        "invalid_input",
        "422",
    ),
}


EACH_CASE = ("raises", "elsewhere", "never-served", "no-module", "hungry", "bad-shape", "drifts", "refuses")


@pytest.mark.parametrize("tool", mostly_deep(sorted(STARTS), *EACH_CASE))
def test_a_fault_is_found_by_a_fresh_look_and_after_a_run_which_says_why_and_is_not_sticky(
    home: House, tool: str
) -> None:
    code, manifest, case, evidence = STARTS[tool]
    home.tool(tool, code, **manifest)
    assert evidence in diagnosed(home, tool)[case]["evidence"], "nobody ran it before: debug tries it itself"
    answer = home.run(tool)
    if case != "schema_drift":
        assert answer.status >= 400
        assert evidence in json.dumps(answer.json())
        assert answer.json()["hint"]
        assert evidence in diagnosed(home, tool)[case]["evidence"]
    if tool == "raises":
        done = home.pxctl("run", tool)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr.partition("hint:")[2]
        assert "hint:" in done.stderr
    home.tool(tool, ECHO)
    until(lambda: home.run(tool).status == 200, "a mended tool runs again")


def only(found: dict[str, dict[str, Any]], case: str) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in found.items() if name == case}


def test_memory_that_runs_out_during_a_run(home: House) -> None:
    home.tool(
        "grows",
        server("""
            block = [bytearray(1 << 22) for _ in range(body.get('blocks', 0))]
            if block: time.sleep(1000)
            return {}
        """),
        max_memory_mb=128,
    )
    assert home.pxctl("run", "grows", "blocks:=100").returncode == 9
    assert "memory_limit" in diagnosed(home, "grows")


def test_input_that_does_not_fit(home: House) -> None:
    home.tool("strict", ECHO, input=NUMBERED)
    assert home.run("strict", {"n": 1}).status == 200
    assert home.run("strict", {"n": "one"}).status == 422
    found = until(lambda: diagnosed(home, "strict"), "the refused run is in the ledger: a run never waits for that")
    assert found.keys() == {"invalid_input"}
    assert "422" in found["invalid_input"]["evidence"]


def test_stopped_under_a_long_run(home: House) -> None:
    home.tool("long", server("time.sleep(body.get('seconds', 0)); return {}"), max_runtime_seconds=600)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(home.run, "long", {"seconds": 300}, seconds=110)
        until(lambda: home.status("long")["in_flight"] == 1, "it runs")
        assert home.pxctl("stop", "long").returncode == 0
        assert running.result().status >= 400
    found = until(lambda: only(diagnosed(home, "long"), "evicted_during_run"), "the row of the run says how it ended")
    assert "stopped" in found["evicted_during_run"]["evidence"]


def test_a_run_that_said_why_it_failed_is_no_bad_answer_to_a_later_process(home: House) -> None:
    fails = server("print('because', file=sys.stderr, flush=True) if body else None; return body")
    home.tool("talks", fails.replace("self.answer(run(body))", "self.answer(run(body), 500 if body else 200)"))
    assert home.run("talks", {"n": 1}).status == 500
    assert home.pxctl("restart", "talks").returncode == 0
    assert home.run("talks").status == 200, "its row comes behind that of the run which failed"
    assert diagnosed(home, "talks") == {}


def test_a_sound_tool_has_no_fault(home: House) -> None:
    home.tool("sound", ECHO)
    assert home.run("sound").status == 200
    done = home.pxctl("tools", "debug", "sound")
    assert done.returncode == 0
    assert "no fault found" in done.stdout
    assert diagnosed(home, "sound") == {}
