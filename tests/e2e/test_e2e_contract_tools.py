"""Tools by their contract: how they listen, what they inherit, how they are limited, made, built (CONTRACT §5)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import House, alive, house, server, until

CHILDREN = Path(__file__).parent.parent / "tools" / "children"
SHOW = server("return {'pid': os.getpid(), 'env': dict(os.environ), 'exe': sys.executable, 'cwd': os.getcwd(), **body}")
SLOW = server("time.sleep(body.get('seconds', 0)); return {'pid': os.getpid()}")
STREAMER = SHOW.replace(
    'if self.path == "/run":',
    """if self.path == "/stream":
            self.send_response(200)
            kind = "text/event-stream" if body.get("sse") else "application/x-ndjson"
            self.send_header("Content-Type", kind)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            for n in range(3):
                line = json.dumps({"item": n}).encode()
                self.wfile.write(b"data: " + line + b"\\n\\n" if body.get("sse") else line + b"\\n")
                self.wfile.flush()
        elif self.path == "/run":""",
)
FASTAPI = """
import argparse, json
import numpy, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/healthz")
def healthz(): return {"ok": True}
@app.get("/schema")
def schema(): return json.load(open("tool.json"))
@app.post("/run")
def run(body: dict): return {"eigen": sorted(numpy.linalg.eigvals(numpy.array(body["m"])).real.tolist())}
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")
"""


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """One daemon; each test has its own tools. A secret of the daemon's environment is in it."""
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50", "DAEMONS_OWN_SECRET": "s3cret"}) as made:
        made.measured = True
        made.start()
        yield made


def copied(home: House, child: str) -> None:
    shutil.copytree(CHILDREN / child, home.home / "tools" / child)


def test_fastapi_with_numpy_runs_as_it_is(home: House) -> None:
    patient = {"start_timeout_seconds": 100, "warm_keep_seconds": 300}
    home.tool("eigen", FASTAPI, python=sys.executable, max_memory_mb=0, **patient)
    answer = home.run("eigen", {"m": [[2, 0], [0, 3]]}, seconds=110)
    assert answer.json() == {"eigen": [2.0, 3.0]}
    assert int(answer.headers["x-px-cold-start"]) > 0
    done = home.pxctl("run", "eigen", "m:=[[1,0],[0,5]]")
    assert json.loads(done.stdout) == {"eigen": [1.0, 5.0]}


def test_the_port_is_stable_and_answers_while_the_tool_is_cold(home: House) -> None:
    home.tool("stable", SHOW)
    pid = home.run("stable").json()["pid"]
    port = home.status("stable")["port"]
    assert home.pxctl("restart", "stable").returncode == 0
    assert home.status("stable")["port"] == port
    assert home.status("stable")["pid"] != pid
    assert home.pxctl("stop", "stable").returncode == 0
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("child", "listen"), [("fd-server", "fd"), ("stubborn-port", "port"), ("http-server", "handover")]
)
def test_three_ways_to_listen(home: House, child: str, listen: str) -> None:
    copied(home, child)
    answer = home.run(child)
    assert answer.status == 200, answer.body
    assert home.get(f"/api/tools/{child}")["listen"] == listen
    if listen == "fd":
        said = answer.json()
        assert said["listen"]["LISTEN_FDS"] == "1"
        assert said["listen"]["LISTEN_PID"] == str(said["pid"])


def test_a_stream_comes_as_it_is_asked_for_whatever_the_tool_speaks(home: House) -> None:
    home.tool("streamer", STREAMER)
    items = [json.dumps({"item": n}) for n in range(3)]
    kinds = {
        "text/event-stream": [f"data: {each}\n\n" for each in items],
        "application/x-ndjson": [f"{each}\n" for each in items],
    }
    for speaks_sse in (True, False):
        for kind, wanted in kinds.items():
            headers = {"Accept": kind}
            answer = home.request("POST", "/api/tools/streamer/stream", {"sse": speaks_sse}, headers=headers)
            assert (answer.headers["content-type"], answer.body.decode()) == (kind, "".join(wanted))
    assert home.pxctl("run", "streamer", "--stream", "sse:=true").stdout.splitlines() == items


def test_another_language_by_command(home: House, require_node: None) -> None:
    copied(home, "node-port")
    assert home.run("node-port").status == 200
    assert home.pxctl("tools", "add", "example:text-stats").returncode == 0
    assert json.loads(home.pxctl("run", "text-stats", "text=a b c").stdout)["words"] == 3


def test_the_environment_is_an_allow_list_then_dotenv_then_env(home: House) -> None:
    folder = home.tool("surrounded", SHOW, env={"BOTH": "env", "ONLY_ENV": "1"})
    (folder / ".env").write_text("BOTH=dotenv\nONLY_DOTENV='two words'\n")
    seen = home.run("surrounded").json()
    env = seen["env"]
    assert (env["BOTH"], env["ONLY_ENV"], env["ONLY_DOTENV"]) == ("env", "1", "two words")
    assert env["PATH"]
    assert "DAEMONS_OWN_SECRET" not in env
    own = {k for k in env if k.startswith("PX_")}
    assert own <= {"PX_INSTANCE", "PX_UNIT", "PX_PORT"}, "nothing of the daemon's settings"
    assert seen["cwd"] == str(folder)


def test_a_virtual_environment_beside_the_tool_is_taken(home: House) -> None:
    folder = home.tool("inhabited", SHOW)
    os.makedirs(folder / ".venv" / "bin")
    os.symlink(os.path.realpath(sys.executable), folder / ".venv" / "bin" / "python")
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    assert home.run("inhabited").json()["exe"] == str(folder / ".venv" / "bin" / "python")


def test_limits_reach_the_process(home: House) -> None:
    limits = {"open_files": 77, "processes": 4000, "address_space_mb": 3000}
    home.tool(
        "limited",
        server("""
        import resource
        names = ('NOFILE', 'NPROC', 'AS')
        return {n: resource.getrlimit(getattr(resource, 'RLIMIT_' + n))[0] for n in names}
    """),
        limits=limits,
    )
    assert home.run("limited").json() == {"NOFILE": 77, "NPROC": 4000, "AS": 3000 << 20}
    assert home.get("/api/tools/limited")["limits"].items() >= limits.items()


def test_cpu_seconds_are_a_limit_with_a_name(home: House) -> None:
    home.tool("burner", server("while body.get('burn'): pass\nreturn {}"), limits={"cpu_seconds": 1})
    done = home.pxctl("run", "burner", "burn:=true", "--json")
    assert done.returncode == 9, done.stdout + done.stderr
    assert "cpu" in json.loads(done.stdout)["detail"]
    until(lambda: home.status("burner")["reason"] == "cpu_limit", "its end is told")


def test_schema_drift_is_a_warning_never_fatal(home: House) -> None:
    drifting = SHOW.replace('json.load(open("tool.json"))', '{"name": "other", "input": {"type": "string"}}')
    home.tool("drifts", drifting)
    assert home.run("drifts").status == 200
    until(lambda: home.get("/api/tools/drifts")["warnings"], "the drift is a warning")
    assert "schema" in json.dumps(home.get("/api/tools/drifts")["warnings"])
    assert home.status("drifts")["warnings"]
    assert home.run("drifts").status == 200


def test_pins_and_keep_alive(home: House) -> None:
    home.tool("short", SLOW, warm_keep_seconds=0.3)
    pid = home.run("short").json()["pid"]
    until(lambda: home.status("short")["state"] == "cold", "its time is over")
    assert home.status("short")["reason"] == "evicted_ttl"
    assert home.pxctl("pin", "--forever", "short").returncode == 0
    pid = home.run("short").json()["pid"]
    home.tool("witness", SLOW, warm_keep_seconds=0.9)
    home.run("witness")
    until(lambda: home.status("witness")["state"] == "cold", "more than the time of the other is over")
    assert home.status("short")["pid"] == pid, "pinned for ever is exempt from age as well"
    assert home.request("POST", "/api/tools/short/run?keep_alive=0", {}).json()["pid"] == pid, "never against a pin"
    assert home.pxctl("unpin", "short").returncode == 0
    until(lambda: home.status("short")["state"] == "cold", "without the pin age counts again")
    assert home.pxctl("run", "short", "--keep-alive", "600").returncode == 0
    home.run("witness")
    until(lambda: home.status("witness")["state"] == "cold", "a while is over")
    assert home.status("short")["state"] == "ready", "kept alive by its request"
    assert home.request("POST", "/api/tools/short/run?keep_alive=0", {}).status == 200
    until(lambda: home.status("short")["state"] == "cold", "0 means now")
    home.tool("tomorrow", SLOW, pinned=True)
    assert home.status("tomorrow")["pinned"] is True


def test_a_changed_tool_is_replaced_and_a_timed_out_client_gets_7(home: House) -> None:
    home.tool("edited", server("return {'v': 1}"))
    assert home.run("edited").json() == {"v": 1}
    home.tool("edited", server("return {'v': 22}"))
    until(lambda: home.run("edited").json() == {"v": 22}, "the new code answers")
    home.tool("naps", SLOW)
    assert home.pxctl("run", "naps", "seconds:=60", "--timeout", "1").returncode == 7


def test_new_tool_works_at_once_and_can_be_removed(home: House) -> None:
    made = home.pxctl("tools", "new", "fresh", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["schema"] == "px.tool/1"
    folder = home.home / "tools" / "fresh"
    request = next(p for p in folder.rglob("*.json") if p.name != "tool.json")
    text = request.read_text()
    asked = json.loads(text)
    done = home.pxctl("run", "fresh", "--input", json.dumps(asked.get("input", asked)))
    assert done.returncode == 0, done.stderr
    streamed = home.pxctl("run", "fresh", "--stream", "text=ab", "times=2")
    assert [json.loads(line)["result"] for line in streamed.stdout.splitlines()] == ["ab", "abab"], streamed.stderr
    assert home.pxctl("logs", "fresh").stdout.strip() == "", "nothing is said of probes"
    assert home.pxctl("tools", "new", "fresh").returncode == 8
    assert home.pxctl("tools", "new", "No Name").returncode == 2
    report = home.pxctl("tools", "validate", "fresh", "--json")
    assert report.returncode == 0, report.stdout
    checks = json.loads(report.stdout)
    assert checks["schema"] == "px.validation/1"
    assert checks["overall"] in {"pass", "warn"}
    assert len(checks["checks"]) == 12
    assert {c["status"] for c in checks["checks"]} <= {"pass", "warn", "fail", "skip"}
    home.run("fresh", asked.get("input", asked))
    pid = home.status("fresh")["pid"]
    assert home.pxctl("tools", "remove", "fresh").returncode == 2, "elsewhere than on a terminal --yes is needed"
    assert home.pxctl("tools", "remove", "fresh", "--yes").returncode == 8, "it runs"
    assert home.pxctl("tools", "remove", "fresh", "--yes", "--force").returncode == 0
    assert not folder.exists()
    assert not alive(pid)
    assert home.pxctl("tools", "show", "fresh").returncode == 4


def test_sync_builds_the_environment_and_compiles_it(home: House) -> None:
    folder = home.tool("built", SHOW)
    (folder / "requirements.txt").write_text("# nothing to fetch\n")
    done = home.pxctl("tools", "sync", "built", seconds=110)
    assert done.returncode == 0, done.stderr
    assert (folder / ".venv" / "bin" / "python").exists()
    assert home.run("built").json()["exe"] == str(folder / ".venv" / "bin" / "python")
    (folder / "requirements.txt").write_text("no-such-distribution @ file:///nonexistent/x.whl\n")
    failed = home.pxctl("tools", "sync", "built", "--json", seconds=110)
    assert failed.returncode == 1
    assert (folder / ".venv" / "bin" / "python").exists(), "a failed build leaves the old one"


def test_why_of_a_ready_tool_tells_of_the_life_it_has_now(home: House) -> None:
    home.tool("reborn", SHOW)
    home.run("reborn")
    assert home.pxctl("restart", "reborn").returncode == 0
    why = json.loads(home.pxctl("why", "reborn", "--json").stdout)
    assert why["state"] == "ready"
    assert why["chain"][-1]["instance"] == home.status("reborn")["instance"]
