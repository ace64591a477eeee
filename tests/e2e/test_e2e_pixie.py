"""Tools for Pixie run unchanged (CONTRACT §5); and what `pxctl tools debug` finds in faulty ones
(CONTRACT §8).
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from e2e.house import SERVER, SSE, House, Later, house, of_module, server, until

SOURCE = f"""{SERVER}
import signal
from urllib.parse import parse_qs, urlsplit
SEEN, CANCELLED = {{}}, threading.Event()

class Tool(Tool):
    def do_GET(self):
        url = urlsplit(self.path)
        if url.path != "/stream": return super().do_GET()
        seen = SEEN[parse_qs(url.query)["run_id"][0]]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for n in range(3):
            item = {{"output_key": "log", "value": f"{{seen['inputs']['word']}} {{n}}", "done": n == 2}}
            self.wfile.write(b"data: " + json.dumps(item).encode() + b"\\n\\n")
            self.wfile.flush()
    def do_POST(self):
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path == "/cancel":
            open("cancelled", "w").write(parse_qs(url.query)["run_id"][0])
            CANCELLED.set()
            return self.answer({{"ok": True}})
        if self.headers["Content-Type"].startswith("multipart/"):
            return self.answer({{"log": {{"value": raw.decode("latin-1")}}}})
        body = json.loads(raw)
        SEEN[body["run_id"]] = body
        there = self.headers["X-Pixie-Artefacts-Dir"]
        if os.path.isdir(there): open(os.path.join(there, "made.txt"), "w").write("x")
        CANCELLED.wait(body["inputs"].get("seconds") or 0)
        env = {{k: v for k, v in os.environ.items() if k.startswith(("PIXIE_", "API_", "PYTHONUNBUFFERED"))}}
        told = {{"body": body, "headers": dict(self.headers), "env": env, "there": os.path.isdir(there)}}
        self.answer({{"log": told}})

if __name__ == "__main__":
    if os.environ["PIXIE_TOOL_ID"] == "soft":  # it is not torn out of the answer to a cancel that has been sent
        end = lambda: CANCELLED.wait() and os._exit(0)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())
    serve()
"""
MODES = [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]
INPUTS = [
    {"key": "word", "label": "Word", "type": "text", "default": "hello"},
    {"key": "n", "label": "N", "type": "number", "required": False},
    {"key": "seconds", "label": "Wait", "type": "number", "required": False},
    {"key": "mode", "label": "Mode", "type": "select", "required": False, "options": MODES},
]
OUTPUTS = [{"key": "log", "label": "Log", "type": "log", "streaming": True}]
# each test has its own tool
home = of_module(house, {"PX_TOOLS__WARM_KEEP_MAX": "50"}, start=True, measured=True)


def pixie(home: House, name: str, *, dotenv: str = "", **keys: Any) -> Path:
    folder = home.home / "tools" / name
    folder.mkdir()
    (folder / "main.py").write_text(SOURCE)
    if dotenv:
        (folder / ".env").write_text(dotenv)
    manifest = {
        "id": name,
        "name": "A Title",
        "description": "d",
        "version": "1.2.0",
        "schema_version": "1.0",
    }
    manifest |= {
        "category": "a/b",
        "icon": "x",
        "layout": "form",
        "tags": ["t"],
        "inputs": INPUTS,
        "outputs": OUTPUTS,
    }
    (folder / "tool.json").write_text(json.dumps({**manifest, **keys}))
    return folder


def test_body_headers_and_environment(home: House) -> None:
    pixie(home, "asked")
    # its own body is taken, too
    answer = home.run("asked", {"run_id": "mine", "inputs": {"word": "hi", "n": 3}})
    assert answer.status == 200, answer.body
    seen = answer.json()["log"]
    body, headers, env = (
        seen["body"],
        {k.lower(): v for k, v in seen["headers"].items()},
        seen["env"],
    )
    assert (body["word"], body["n"], body["inputs"]) == ("hi", 3, {"word": "hi", "n": 3}), (
        "each again at the top"
    )
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", body["run_id"])
    assert headers["x-pixie-run-id"] == body["run_id"] == body["_pixie"]["run_id"]
    assert headers["x-pixie-artefacts-dir"] == body["_pixie"]["artefacts_dir"]
    assert seen["there"], "the run's directory for artefacts is there"
    assert (env["PIXIE_TOOL_ID"], bool(env["PIXIE_ARTEFACTS_ROOT"]), env["PYTHONUNBUFFERED"]) == (
        "asked",
        True,
        "1",
    )
    assert "PIXIE_VALIDATE" not in env


def test_defaults_are_filled_in_and_values_coerced_and_checked(home: House) -> None:
    pixie(home, "typed")
    inputs = home.json("run", "typed", "n=2.5", "mode=b")["log"]["body"]["inputs"]
    assert (inputs["word"], inputs["n"], inputs["mode"]) == ("hello", 2.5, "b")
    refused = home.run("typed", {"n": "x", "mode": "c"})
    assert (refused.status, {e["pointer"] for e in refused.json()["errors"]}) == (
        422,
        {"/n", "/mode"},
    )


def test_streams_are_asked_for_by_run_id(home: House) -> None:
    pixie(home, "streams")
    answer = home.request(
        "POST", "/api/tools/streams/stream", {"word": "ho"}, headers={"Accept": SSE}
    )
    items = [
        json.loads(line[6:])
        for line in answer.body.decode().splitlines()
        if line.startswith("data: ")
    ]
    assert ([item["value"] for item in items], items[-1]["done"]) == (
        ["ho 0", "ho 1", "ho 2"],
        True,
    )
    done = home.pxctl("run", "streams", "--stream", "word=hu")
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == [
        "hu 0",
        "hu 1",
        "hu 2",
    ], done.stderr


def test_secrets_come_from_dotenv_and_a_missing_one_is_named(home: House) -> None:
    secrets = [{"key": "API_KEY", "required": True}, {"key": "API_EXTRA"}]
    pixie(home, "secretive", secrets=secrets, dotenv="API_KEY=s3cret\n")
    assert home.run("secretive").json()["log"]["env"]["API_KEY"] == "s3cret"
    assert "s3cret" not in home.pxctl("tools", "show", "secretive", "--json").stdout
    pixie(home, "keyless", secrets=secrets)
    refused = home.run("keyless")
    detail = refused.json()["detail"]
    assert (refused.status >= 400, "API_KEY" in detail, "API_EXTRA" in detail) == (
        True,
        True,
        False,
    )
    assert b".env" in refused.body


@pytest.mark.parametrize("transport", ["json", "multipart"])
def test_a_file_is_given_to_an_input_of_type_file(home: House, transport: str) -> None:
    paper = {"key": "paper", "label": "Paper", "type": "file", "required": False}
    papers = {**paper, "key": "papers", "multiple": True}
    name = f"reads-{transport}"
    pixie(home, name, input_transport=transport, inputs=[*INPUTS, paper, papers])
    data, text = home.home / "d.csv", home.home / "word.txt"
    data.write_bytes(b"a,b\n1,\xff\n")
    text.write_text("spoken")
    log = home.json("run", name, f"paper=@{data}", f"papers=@{data}", f"word=@{text}")["log"]
    if transport == "json":
        inputs = log["body"]["inputs"]
        url = "data:text/csv;base64," + base64.b64encode(data.read_bytes()).decode()
        assert (inputs["paper"], inputs["papers"], inputs["word"]) == (url, [url], "spoken")
    else:
        assert 'name="paper"; filename="paper-0.csv"\r\n\r\na,b\n1,\xff\n' in log["value"]
        assert "Content-Type: text/csv" in log["value"]
        assert 'name="word"\r\n\r\nspoken' in log["value"]
    missing = home.pxctl("run", name, f"paper=@{data}.gone")
    assert (missing.returncode, "d.csv.gone" in missing.stderr) == (2, True)


def test_a_run_over_its_time_is_asked_to_cancel_before_its_tool_is_stopped(home: House) -> None:
    folder = pixie(home, "soft", max_runtime_seconds=1)
    late = home.run("soft", {"seconds": 300})
    assert b"ResourceLimitExceeded: runtime" in late.body, late
    assert re.fullmatch("[0-9a-f-]{36}", (folder / "cancelled").read_text())


def test_only_the_last_runs_keep_their_artefacts(home: House) -> None:
    pixie(home, "retained", retain_runs=2)
    for _ in range(4):
        folder = home.run("retained").json()["log"]["body"]["_pixie"]["artefacts_dir"]
    parent = (home.home / folder).parent
    until(lambda: len(list(parent.iterdir())) == 2, "older runs are put away")
    assert (home.home / folder / "made.txt").exists()


def test_the_twelve_checks_on_a_pixie_tool(home: House) -> None:
    cases: list[tuple[Any, int, dict[str, str]]] = [
        # There is no pyproject.toml; a log is {lines: [...]}, or {value: ...}.
        (
            OUTPUTS,
            1,
            {"folder_structure": "warn", "schemas_coherent": "pass", "output_conforms": "fail"},
        ),
        (
            [{**OUTPUTS[0], "key": "later"}],
            0,
            {"streaming_check": "pass", "output_conforms": "warn"},
        ),
        ([], 1, {"schemas_coherent": "fail"}),
    ]
    for number, (outputs, code, wanted) in enumerate(cases):
        pixie(home, f"checked-{number}", outputs=outputs)
        report = home.json("tools", "validate", f"checked-{number}", code=code)
        named = {check["name"]: check["status"] for check in report["checks"]}
        assert wanted.items() <= named.items(), report
        assert (len(named), report["overall"]) == (12, "fail" if code else "warn")


# -- debug: each row of the failure table, in a tool that has the fault ----------------------------


ECHO = server("return body")
SLOW = server("time.sleep(body.get('seconds', 0)); return {}")
NUMBERED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def diagnosed(home: House, tool: str) -> dict[str, str]:
    """Return the evidence of what debug found, by case; every finding has its next step."""
    document = home.json("tools", "debug", tool, code=None)
    assert (document["schema"], document["unit"]) == ("px.debug/1", f"tool:{tool}"), document
    found = {each["case"]: each for each in document["cases"] if each["found"]}
    assert all(
        each["evidence"] and each["next_step"] and case in document["verdict"]
        for case, each in found.items()
    )
    assert "tools debug" not in json.dumps(document), "who asks debug is not sent to debug"
    return {case: each["evidence"] for case, each in found.items()}


MISSING = "missing_interpreter_or_module"
LATE = {"start_timeout_seconds": 1}
HUNGRY = "import time\nblock = [bytearray(1 << 22) for _ in range(100)]\ntime.sleep(1000)"
FAULTS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "raises": ("raise RuntimeError('boom at import')", {}, "never_ready", "boom at import"),
    "elsewhere": (
        ECHO.replace('int(sys.argv[sys.argv.index("--port") + 1])', "0"),
        LATE,
        "never_ready",
        "listens",
    ),
    "never-served": ("def serve(): pass", {}, "exits_zero", "0"),
    "no-module": ("import no_such_module_at_all", {}, MISSING, "no_such_module_at_all"),
    "no-program": ("", {"command": ["/nonexistent/prog"]}, MISSING, "/nonexistent/prog"),
    # What it took it keeps: where looks are far apart, a limit is found to be broken at one of them
    # all the same.
    "hungry": (HUNGRY, {"max_memory_mb": 100}, "memory_limit", "memory"),
    "bad-shape": (
        ECHO.replace("self.answer(run(body))", "self.answer({}, 500)"),
        {},
        "bad_answer",
        "500",
    ),
    "drifts": (
        ECHO.replace('json.load(open("tool.json"))', '{"name": "else"}'),
        {},
        "schema_drift",
        "name",
    ),
    "refuses": (
        ECHO.replace("self.answer(run(body))", "self.answer({}, 422)"),
        {},
        "invalid_input",
        "422",
    ),
}


@pytest.mark.parametrize("tool", sorted(FAULTS))
def test_a_fault_is_found_by_a_fresh_look_and_after_a_run_and_is_not_sticky(
    home: House, tool: str
) -> None:
    code, manifest, case, evidence = FAULTS[tool]
    home.tool(tool, code, **manifest)
    said = diagnosed(home, tool)[case]
    assert evidence in said, "nobody ran it before: debug tries it itself"
    assert (said.count("boom at import") < 2, said.endswith("?.")) == (True, False), (
        "each thing is said once"
    )
    answer = home.run(tool)
    if case != "schema_drift":
        assert (
            answer.status >= 400,
            evidence in answer.body.decode(),
            bool(answer.json()["hint"]),
        ) == (True,) * 3
        assert evidence in diagnosed(home, tool)[case]
    home.tool(tool, ECHO)
    until(lambda: home.run(tool).status == 200, "a mended tool runs again")


def test_input_that_does_not_fit(home: House) -> None:
    home.tool("strict", ECHO, input=NUMBERED)
    refused = home.run("strict", {"n": "one"}).status
    assert (refused, home.status("strict")["state"]) == (422, "cold"), (
        "it is checked before anything is spawned"
    )
    assert [home.run("strict", {"n": n}).status for n in (1, "one")] == [200, 422]
    found = until(
        lambda: diagnosed(home, "strict"),
        "the refused run is in the ledger: a run never waits for that",
    )
    assert (list(found), "422" in found["invalid_input"]) == (["invalid_input"], True)


def test_a_run_that_took_too_long_and_a_tool_that_ignores_sigterm_and_one_that_is_killed(
    home: House,
) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLOW
    home.tool("slow", code, max_runtime_seconds=0.5, stop_timeout_seconds=0.3)
    home.tool("killed", server("os.kill(os.getpid(), 9)"))
    assert home.pxctl("run", "slow", "seconds=60").returncode == 9
    assert home.run("killed").status >= 500
    until(
        lambda: home.status("slow")["pid"] is home.status("killed")["pid"] is None, "they are gone"
    )
    assert diagnosed(home, "slow").keys() >= {"runtime_limit", "ignores_sigterm"}
    assert "bad_answer" not in diagnosed(home, "killed"), "what ended gave none"


def test_stopped_under_a_long_run(home: House) -> None:
    home.tool("long", SLOW, max_runtime_seconds=600)
    running = Later(lambda: home.run("long", {"seconds": 300}))
    until(lambda: home.status("long")["in_flight"] == 1, "it runs")
    assert home.pxctl("stop", "long").returncode == 0
    assert running.result().status >= 400
    found = until(
        lambda: diagnosed(home, "long").get("evicted_during_run"),
        "the row of the run says how it ended",
    )
    assert "stopped" in found


def test_a_run_that_said_why_it_failed_is_no_bad_answer_and_a_sound_tool_has_no_fault(
    home: House,
) -> None:
    fails = server("print('because', file=sys.stderr, flush=True) if body else None; return body")
    home.tool(
        "talks",
        fails.replace("self.answer(run(body))", "self.answer(run(body), 500 if body else 200)"),
    )
    assert home.run("talks", {"n": 1}).status == 500
    assert home.pxctl("restart", "talks").returncode == 0
    assert home.run("talks").status == 200, "its row comes behind that of the run which failed"
    assert diagnosed(home, "talks") == {}
    done = home.pxctl("tools", "debug", "talks")
    assert (done.returncode, "no fault found" in done.stdout) == (0, True)
