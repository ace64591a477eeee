"""The daemon by its contract: places, modes, routes, status codes, problem documents, streams (CONTRACT §1, 2, 4)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.house import House, UnixConnection, house, server, until
from ports import free_port

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
PROBLEM = {"type", "title", "status", "kind", "detail", "hint", "unit"}
DAEMON = {"version", "socket", "keeper", "control", "kill_rung", "memory_rung"}
UNIT = {
    *("unit", "kind", "name", "state", "reason", "pid", "started_at", "uptime_seconds", "rss_bytes", "cpu_percent"),
    *("last_used", "in_flight", "pinned", "start_method", "restarts", "next_run", "config_error"),
}
TOOL = {"name", "title", "version", "description", "dialect", "state", "pinned", "config_error", "warnings"}
EVENT = {"id", "time", "unit", "event", "reason", "instance", "cause"}

COUNTING = server("""
    if body.get('say'): print(body['say'], flush=True)
    if body.get('cry'): print(body['cry'], file=sys.stderr, flush=True)
    time.sleep(body.get('seconds', 0))
    while body.get('waits') and not os.path.exists('go'): time.sleep(0.01)
    with open('calls', 'a') as calls: calls.write('x')
    return {'calls': os.path.getsize('calls'), 'pid': os.getpid()}
""")


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """One daemon for the whole module; every test has its own tool where state matters."""
    listen = {"PX_API__LISTEN": f"127.0.0.1:{free_port()}"}
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50", "PX_API__STREAM_HEARTBEAT_SECONDS": "50", **listen}) as made:
        made.measured = True
        made.start()
        made.tool("echo", COUNTING)
        yield made


def curl(home: House, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["curl", "-sS", "-m", "60", "--unix-socket", home.socket, *args], capture_output=True, text=True, check=False
    )


def problem(answer: Any, status: int, kind: str) -> dict[str, Any]:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"].split(";")[0] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found.keys() >= PROBLEM
    assert found["status"] == status
    assert found["kind"] == kind
    assert found["detail"]
    return found


def test_curl_with_its_default_content_type_runs_a_tool(home: House) -> None:
    done = curl(home, "-d", '{"say": "by curl"}', "http://px/api/tools/echo/run")
    assert json.loads(done.stdout)["pid"]
    assert json.loads(curl(home, "http://px/api/status").stdout)["schema"] == "px.status/1"


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("health", "px.health/1"),
        ("status", "px.status/1"),
        ("doctor", "px.doctor/1"),
        ("config", "px.config/1"),
        ("daemon", "px.daemon/1"),
        ("units", "px.units/1"),
        ("tools", "px.tools/1"),
        ("tools/echo", "px.tool/1"),
        ("units/tool:echo/why", "px.why/1"),
    ],
)
def test_every_document_names_its_schema(home: House, path: str, schema: str) -> None:
    assert home.get(f"/api/{path}")["schema"] == schema


def test_status_has_every_promised_key(home: House) -> None:
    home.run("echo")
    document = home.get("/api/status")
    assert document["daemon"].keys() >= DAEMON
    assert document["daemon"]["keeper"].keys() >= {"pid", "started_at", "uptime_seconds", "rss_bytes"}
    assert document["daemon"]["control"].keys() >= {"pid", "started_at", "uptime_seconds", "restarts", "rss_bytes"}
    assert document["daemon"]["socket"] == home.socket
    unit = home.status("echo")
    assert unit.keys() >= UNIT
    for time in (unit["started_at"], unit["last_used"], document["daemon"]["keeper"]["started_at"]):
        assert RFC3339.fullmatch(time)
    assert isinstance(unit["uptime_seconds"], (int, float))
    assert unit["rss_bytes"] > 1 << 20
    assert unit["state"] == "ready"
    assert (unit["reason"], unit["next_run"], unit["config_error"]) == (None, None, None)


def test_tools_have_every_promised_key(home: House) -> None:
    listed = home.get("/api/tools")["tools"]
    assert all(tool.keys() >= TOOL for tool in listed)
    assert home.get("/api/tools/echo").keys() >= {*TOOL, "manifest", "input_schema", "limits"}


def test_the_warm_set_is_what_runs(home: House) -> None:
    home.tool("warmed", COUNTING)
    assert "warmed" not in home.get("/api/launcher/state")
    pid = home.run("warmed").json()["pid"]
    warm = home.get("/api/launcher/state")["warmed"]
    assert warm.keys() >= {"pid", "port", "last_used", "pinned", "in_flight"}
    assert warm["pid"] == pid
    assert home.request("POST", "/api/tools/warmed/stop").json()["schema"] == "px.stop/1"
    assert "warmed" not in home.get("/api/launcher/state")


def test_the_description_knows_every_promised_route(home: House) -> None:
    described = home.get("/api/openapi.json")
    assert described["openapi"].startswith("3.")
    routes = {f"{method.upper()} {re.sub('{.*?}', '{}', p)}" for p, m in described["paths"].items() for method in m}
    assert routes >= {
        *("GET /api/health", "GET /api/status", "GET /api/events", "GET /api/metrics", "GET /api/launcher/state"),
        *("GET /api/tools", "GET /api/tools/{}", "POST /api/tools/{}/run", "POST /api/tools/{}/stream"),
        *("PUT /api/tools/{}/pin", "DELETE /api/tools/{}/pin", "POST /api/tools/{}/start", "POST /api/tools/{}/stop"),
        *("GET /api/tools/{}/lease", "GET /api/units/{}/logs", "GET /api/openapi.json"),
        *("POST /api/daemon/reload", "POST /api/daemon/restart", "POST /api/daemon/stop"),
    }


def test_metrics_are_prometheus_text(home: House) -> None:
    answer = home.request("GET", "/api/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in answer.body.decode().splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{.*\})? ([-+0-9.e]+|[+-]Inf|NaN)", line), line


def test_errors_are_problem_documents_with_true_codes(home: House) -> None:
    problem(home.request("GET", "/api/nothing"), 404, "unknown_route")
    problem(home.request("POST", "/api/status"), 405, "method_not_allowed")
    assert "echo" in problem(home.request("GET", "/api/tools/ecko"), 404, "unknown_unit")["hint"]
    problem(home.request("POST", "/api/tools/ecko/run", {}), 404, "unknown_unit")
    problem(home.run("echo", b"{nope"), 400, "bad_request")
    problem(home.run("echo", b"\xff\xfe"), 400, "bad_request")
    assert problem(home.run("echo", [1]), 422, "invalid_input")["errors"][0]["pointer"] == ""
    problem(home.request("GET", "/api/events?limit=many"), 400, "bad_request")
    home.run("echo")
    problem(home.request("GET", "/api/units/echo/wait?for=stopped&timeout=0.1"), 504, "timed_out")
    problem(home.request("POST", "/api/tools/echo/run?timeout=0.3", {"seconds": 20}), 504, "timed_out")


def test_request_ids_are_echoed_or_made(home: House) -> None:
    answer = home.request("GET", "/api/health", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    made = {home.request("GET", "/api/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    refused = home.request("GET", "/api/nothing", headers={"X-Request-Id": "mine-2"})
    assert refused.headers["x-request-id"] == "mine-2"


def test_a_repeated_idempotency_key_runs_once(home: House) -> None:
    home.tool("once", COUNTING)
    key = {"Idempotency-Key": "k-1"}
    first = home.run("once", {"say": "a"}, headers=key)
    again = home.run("once", {"say": "a"}, headers=key)
    assert (first.status, again.status) == (200, 200)
    assert first.json()["calls"] == again.json()["calls"] == 1
    assert 400 <= home.run("once", {"say": "b"}, headers=key).status < 500, "one key, two requests"
    assert home.run("once", {"say": "a"}).json()["calls"] == 2


def test_events_as_lines_and_as_server_sent_events(home: House) -> None:
    home.run("echo")
    lines = home.request("GET", "/api/events?limit=3")
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    events = [json.loads(line) for line in lines.body.splitlines()]
    assert len(events) == 3
    assert all(event.keys() >= EVENT and RFC3339.fullmatch(event["time"]) for event in events)
    sse = {"Accept": "text/event-stream"}
    stream = home.request("GET", "/api/events?limit=3", headers=sse)
    assert stream.headers["content-type"].startswith("text/event-stream")
    last_seen = {**sse, "Last-Event-ID": str(events[1]["id"])}

    def after_it() -> list[int]:
        lines = home.request("GET", "/api/events", headers=last_seen).body.decode().splitlines()
        return [int(line[4:]) for line in lines if line.startswith("id: ")]

    ids = until(after_it, "the newest event is written down: telling it never waits for that")
    assert ids[0] == events[2]["id"], "it goes on right after the last one seen"


def test_following_events_delivers_what_happens_meanwhile(home: House) -> None:
    connection = UnixConnection(home.socket)
    connection.request("GET", "/api/events?follow=1&unit=echo&limit=1", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    assert home.request("PUT", "/api/tools/echo/pin").json()["pinned"] is True
    assert any(answer.readline() == b"event: pinned\n" for _ in range(60))
    assert home.request("DELETE", "/api/tools/echo/pin").json()["pinned"] is False
    answer.close()
    connection.close()


def test_logs_by_accept_and_resumed_by_position(home: House) -> None:
    home.tool("talks", COUNTING)
    for n in range(3):
        home.run("talks", {"say": f"line {n}", "cry": f"alas {n}"})
    # Two streams are two pipes, and a print is several writes: the end of one says nothing of the other.
    said, cried = (f"/api/units/talks/logs?stream={stream}" for stream in ("stdout", "stderr"))
    until(lambda: home.request("GET", said).body == b"line 0\nline 1\nline 2\n", "all of stdout was written")
    until(lambda: home.request("GET", cried).body == b"alas 0\nalas 1\nalas 2\n", "all of stderr was written")
    raw = home.request("GET", said)
    assert raw.headers["content-type"] == "application/octet-stream"
    lines = home.request("GET", "/api/units/talks/logs", headers={"Accept": "application/x-ndjson"})
    pieces = [json.loads(line) for line in lines.body.splitlines()]
    assert {p["stream"] for p in pieces} == {"stdout", "stderr"}
    assert all(RFC3339.fullmatch(p["time"]) and p.keys() >= {"text", "position", "instance"} for p in pieces)
    assert home.request("GET", "/api/units/talks/logs?stream=stderr&lines=1").body == b"alas 2\n"
    sse = {"Accept": "text/event-stream"}
    whole = home.request("GET", "/api/units/talks/logs", headers=sse).body.decode()
    ids = [line[4:] for line in whole.splitlines() if line.startswith("id: ")]
    rest = home.request("GET", "/api/units/talks/logs", headers={**sse, "Last-Event-ID": ids[0]}).body.decode()
    assert [line[4:] for line in rest.splitlines() if line.startswith("id: ")] == ids[1:]


def test_a_wait_ends_with_what_it_waits_for_not_with_the_next_heartbeat(home: House) -> None:
    home.tool("held", COUNTING)
    for _ in range(3):
        home.run("held")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            connection = UnixConnection(home.socket)
            connection.request("GET", "/api/units/held/wait?for=stopped&timeout=20")
            stopping = pool.submit(home.request, "POST", "/api/tools/held/stop")
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["ok"]) == (200, True)
            connection.close()
            assert stopping.result().status == 200


def test_a_lease_holds_the_instance_for_as_long_as_the_connection(home: House) -> None:
    home.tool("leased", COUNTING)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(home.socket)
        raw.sendall(b"GET /api/tools/leased/lease HTTP/1.1\r\nHost: px\r\n\r\n")
        got = b""
        while b"\n" not in got.partition(b"\r\n\r\n")[2].partition(b"\r\n")[2]:
            got += raw.recv(65536)
        assert b" 200 " in got
        line = json.loads(got[got.index(b"{") : got.rindex(b"}") + 1])
        assert line["pid"] == home.status("leased")["pid"]
        assert home.status("leased")["in_flight"] == 1
        with socket.create_connection((line["address"], line["port"]), 60) as direct:
            direct.sendall(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            assert b"200" in direct.recv(65536)
    until(lambda: home.status("leased")["in_flight"] == 0, "the lease ends with its connection")


@pytest.mark.parametrize("umask", [0o000, 0o777], ids=oct)
def test_modes_from_the_first_instant_whatever_the_umask(umask: int) -> None:
    with house() as home:
        (home.home / "pxd.stderr").touch()  # it is the test's, not the daemon's
        old = os.umask(umask)
        try:
            home.start()
        finally:
            os.umask(old)
        home.tool("echo", COUNTING)
        home.run("echo", {"say": "something"})
        assert stat.S_IMODE(os.stat(home.socket).st_mode) == 0o600
        loose = []
        for top in ("run", "state"):
            for path in (home.home / top, *(home.home / top).rglob("*")):
                with contextlib.suppress(FileNotFoundError):  # removed since it was found
                    mode = path.lstat().st_mode
                    loose += [(str(path), oct(mode))] if stat.S_IMODE(mode) & 0o077 else []
        assert loose == []
        assert stat.S_IMODE((home.home / "state").stat().st_mode) == 0o700
        assert stat.S_IMODE((home.home / "state" / "pxd.db").stat().st_mode) == 0o600


ASKS_THE_API = """\
import os, re, sys, urllib.request
told = re.search(r"^API: (\\S+) \\(bearer token in the file \\$(\\w+)\\)$", sys.stdin.read(), re.M)
address, variable = told.groups()
token = open(os.environ[variable]).read().strip()
assert not any(token in text for text in [*os.environ.values(), *sys.argv])
asked = urllib.request.Request(address + "/api/status", headers={"Authorization": "Bearer " + token})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).status)
"""


def test_the_tcp_listener_wants_its_token_and_knows_its_host(home: House) -> None:
    (token_file,) = home.home.rglob("api.token")
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    told = home.pxctl("daemon", "status").stdout
    assert home.settings["PX_API__LISTEN"] in told
    assert str(token_file) in told
    token = token_file.read_text().strip()
    url = f"http://{home.settings['PX_API__LISTEN']}/api/health"

    def code(*headers: str) -> str:
        words = [word for header in headers for word in ("-H", header)]
        asked = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", *words, url]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    bearer = f"Authorization: Bearer {token}"
    assert code(bearer) == "200"
    assert code() in {"401", "403"}
    assert code("Authorization: Bearer no") in {"401", "403"}
    assert code(bearer, "Host: evil.example") in {"400", "403", "421"}
    assert code(bearer, "Origin: http://evil.example") == "403"
    folder = home.home / "pipes" / "asks"
    folder.mkdir(parents=True)
    (folder / "ask.py").write_text(ASKS_THE_API)
    (folder / "pipe.md").write_text(f"---\nagent: command\ncommand: [{sys.executable}, ask.py]\n---\nGo\n")
    agent = home.request("POST", "/api/pipes/asks/run?wait=1").json()
    assert (agent["status"], agent["stdout"]) == ("completed", "200\n"), agent["stderr"]
    assert token not in agent["rendered_prompt"]
    assert token not in home.said()
