"""`pxctl tools debug` finds each row of the failure table in a tool that has the fault (CONTRACT §8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.house import House, Later, house, server, until

ECHO = server("return body")
SLOW = server("time.sleep(body.get('seconds', 0)); return {}")
NUMBERED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """One daemon; each fault has its own tool."""
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50"}, start=True, measured=True) as made:
        yield made


def diagnosed(home: House, tool: str) -> dict[str, str]:
    """Return the evidence of what debug found, by case; every finding has its next step."""
    document = home.json("tools", "debug", tool, code=None)
    assert (document["schema"], document["unit"]) == ("px.debug/1", f"tool:{tool}"), document
    found = {each["case"]: each for each in document["cases"] if each["found"]}
    assert all(each["evidence"] and each["next_step"] and case in document["verdict"] for case, each in found.items())
    assert "tools debug" not in json.dumps(document), "who asks debug is not sent to debug"
    return {case: each["evidence"] for case, each in found.items()}


MISSING = "missing_interpreter_or_module"
LATE = {"start_timeout_seconds": 1}
HUNGRY = "import time\nblock = [bytearray(1 << 22) for _ in range(100)]\ntime.sleep(1000)"
FAULTS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "raises": ("raise RuntimeError('boom at import')", {}, "never_ready", "boom at import"),
    "elsewhere": (ECHO.replace('int(sys.argv[sys.argv.index("--port") + 1])', "0"), LATE, "never_ready", "listens"),
    "never-served": ("def serve(): pass", {}, "exits_zero", "0"),
    "no-module": ("import no_such_module_at_all", {}, MISSING, "no_such_module_at_all"),
    "no-program": ("", {"command": ["/nonexistent/prog"]}, MISSING, "/nonexistent/prog"),
    # What it took it keeps: where looks are far apart, a limit is found to be broken at one of them all the same.
    "hungry": (HUNGRY, {"max_memory_mb": 100}, "memory_limit", "memory"),
    "bad-shape": (ECHO.replace("self.answer(run(body))", "self.answer({}, 500)"), {}, "bad_answer", "500"),
    "drifts": (ECHO.replace('json.load(open("tool.json"))', '{"name": "else"}'), {}, "schema_drift", "name"),
    "refuses": (ECHO.replace("self.answer(run(body))", "self.answer({}, 422)"), {}, "invalid_input", "422"),
}


@pytest.mark.parametrize("tool", sorted(FAULTS))
def test_a_fault_is_found_by_a_fresh_look_and_after_a_run_and_is_not_sticky(home: House, tool: str) -> None:
    code, manifest, case, evidence = FAULTS[tool]
    home.tool(tool, code, **manifest)
    said = diagnosed(home, tool)[case]
    assert evidence in said, "nobody ran it before: debug tries it itself"
    assert (said.count("boom at import") < 2, said.endswith("?.")) == (True, False), "each thing is said once"
    answer = home.run(tool)
    if case != "schema_drift":
        assert (answer.status >= 400, evidence in answer.body.decode(), bool(answer.json()["hint"])) == (True,) * 3
        assert evidence in diagnosed(home, tool)[case]
    home.tool(tool, ECHO)
    until(lambda: home.run(tool).status == 200, "a mended tool runs again")


def test_input_that_does_not_fit(home: House) -> None:
    home.tool("strict", ECHO, input=NUMBERED)
    assert [home.run("strict", {"n": n}).status for n in (1, "one")] == [200, 422]
    found = until(lambda: diagnosed(home, "strict"), "the refused run is in the ledger: a run never waits for that")
    assert (list(found), "422" in found["invalid_input"]) == (["invalid_input"], True)


def test_a_run_that_took_too_long_and_a_tool_that_ignores_sigterm_and_one_that_is_killed(home: House) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLOW
    home.tool("slow", code, max_runtime_seconds=0.5, stop_timeout_seconds=0.3)
    home.tool("killed", server("os.kill(os.getpid(), 9)"))
    assert home.pxctl("run", "slow", "seconds=60").returncode == 9
    assert home.run("killed").status >= 500
    until(lambda: home.status("slow")["pid"] is home.status("killed")["pid"] is None, "they are gone")
    assert diagnosed(home, "slow").keys() >= {"runtime_limit", "ignores_sigterm"}
    assert "bad_answer" not in diagnosed(home, "killed"), "what ended gave none"


def test_stopped_under_a_long_run(home: House) -> None:
    home.tool("long", SLOW, max_runtime_seconds=600)
    running = Later(lambda: home.run("long", {"seconds": 300}))
    until(lambda: home.status("long")["in_flight"] == 1, "it runs")
    assert home.pxctl("stop", "long").returncode == 0
    assert running.result().status >= 400
    found = until(lambda: diagnosed(home, "long").get("evicted_during_run"), "the row of the run says how it ended")
    assert "stopped" in found


def test_a_run_that_said_why_it_failed_is_no_bad_answer_and_a_sound_tool_has_no_fault(home: House) -> None:
    fails = server("print('because', file=sys.stderr, flush=True) if body else None; return body")
    home.tool("talks", fails.replace("self.answer(run(body))", "self.answer(run(body), 500 if body else 200)"))
    assert home.run("talks", {"n": 1}).status == 500
    assert home.pxctl("restart", "talks").returncode == 0
    assert home.run("talks").status == 200, "its row comes behind that of the run which failed"
    assert diagnosed(home, "talks") == {}
    done = home.pxctl("tools", "debug", "talks")
    assert (done.returncode, "no fault found" in done.stdout) == (0, True)
