"""The daemon by its contract: places, modes, routes, status codes, problem documents, streams
(CONTRACT §1, 2, 4).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from beside import free_port
from e2e.house import RFC3339, SSE, Answer, House, house, server, until
from e2e.pipe_house import PipeHouse

EVENT = {"id", "time", "unit", "event", "reason", "instance", "cause"}
ROUTES = """
    GET health status events metrics launcher/state tools tools/{} tools/{}/lease units/{}/logs openapi.json
    GET kernels kernels/{}/cells/{}/output pipes pipes/{} pipes/{}/executions pipes/{}/executions/{}
    GET pipes/{}/executions/{}/output pipes/{}/executions/{}/tail
    POST tools/{}/run tools/{}/stream tools/{}/start tools/{}/stop kernels kernels/{}/execute kernels/{}/interrupt
    POST kernels/{}/restart daemon/reload daemon/restart daemon/stop pipes/{}/run pipes/{}/enable pipes/{}/disable
    POST pipes/{}/config pipes/{}/executions/{}/cancel pipes/{}/executions/{}/retry
    PUT tools/{}/pin
    DELETE tools/{}/pin kernels/{} pipes/{}
"""
COUNTING = server("""
    if body.get('say'): print(body['say'], flush=True)
    if body.get('cry'): print(body['cry'], file=sys.stderr, flush=True)
    time.sleep(body.get('seconds', 0))
    with open('calls', 'a') as calls: calls.write('x')
    return {'calls': os.path.getsize('calls'), 'pid': os.getpid()}
""")


@pytest.fixture(scope="module")
def home() -> Iterator[PipeHouse]:
    """One daemon for the whole module; every test has its own tool where state matters."""
    listen = {"PX_API__LISTEN": f"127.0.0.1:{free_port()}"}
    with house(
        {"PX_TOOLS__WARM_KEEP_MAX": "50", **listen}, PipeHouse, start=True, measured=True
    ) as made:
        made.tool("echo", COUNTING)
        yield made


def test_the_description_knows_every_promised_route_and_metrics_are_prometheus_text(
    home: House,
) -> None:
    described = home.get("/api/openapi.json")
    assert described["openapi"].startswith("3.")
    routes = {
        f"{method.upper()} {re.sub('{.*?}', '{}', p)}"
        for p, m in described["paths"].items()
        for method in m
    }
    promised = [line.split() for line in ROUTES.strip().splitlines()]
    assert routes >= {f"{method} /api/{path}" for method, *paths in promised for path in paths}
    answer = home.request("GET", "/api/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in answer.body.decode().splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{.*\})? ([-+0-9.e]+|[+-]Inf|NaN)", line), (
            line
        )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "nothing", None, 404, "unknown_route"),
        ("POST", "status", None, 405, "method_not_allowed"),
        ("POST", "tools/echo/run", b"{nope", 400, "bad_request"),
        ("POST", "tools/echo/run", [1], 422, "invalid_input"),
        ("GET", "units/echo/wait?for=stopped&timeout=0.1", None, 504, "timed_out"),
        ("POST", "tools/echo/run?timeout=0.3", {"seconds": 20}, 504, "timed_out"),
    ],
)
def test_errors_are_problem_documents_with_true_codes(
    home: House, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    home.run("echo")
    answer = home.request(method, f"/api/{path}", body, headers={"X-Request-Id": "mine-1"})
    answer.refused(status, kind)
    assert answer.headers["x-request-id"] == "mine-1", "it is echoed, and made where there is none"
    assert answer.headers.get("allow") == ("GET" if status == 405 else None)
    assert len({home.request("GET", "/api/health").headers["x-request-id"] for _ in range(2)}) == 2


def ids(answer: Answer) -> list[str]:
    """Return the ids of server-sent events."""
    return [line[4:] for line in answer.body.decode().splitlines() if line.startswith("id: ")]


def test_events_as_lines_and_as_server_sent_events_past_and_to_come(home: House) -> None:
    home.run("echo")
    lines = home.request("GET", "/api/events?limit=3")
    events = lines.lines()
    assert (lines.headers["content-type"].split(";")[0], len(events)) == ("application/x-ndjson", 3)
    assert all(event.keys() >= EVENT and RFC3339.fullmatch(event["time"]) for event in events)
    headers = {"Accept": SSE, "Last-Event-ID": str(events[1]["id"])}
    rest = until(
        lambda: ids(home.request("GET", "/api/events", headers=headers)),
        "what was told is written down",
    )
    assert rest[0] == str(events[2]["id"]), "it goes on right after the last one seen"
    with home.asking(
        "GET", "/api/events?follow=1&unit=echo&limit=1", headers={"Accept": SSE}
    ) as following:
        assert str(following.headers["Content-Type"]).startswith(SSE)
        assert home.request("PUT", "/api/tools/echo/pin").json()["pinned"] is True
        assert any(following.readline() == b"event: pinned\n" for _ in range(60))
    assert home.request("DELETE", "/api/tools/echo/pin").json()["pinned"] is False


def test_logs_by_accept_and_resumed_by_position(home: House) -> None:
    home.tool("talks", COUNTING)
    for n in range(3):
        home.run("talks", {"say": f"line {n}", "cry": f"alas {n}"})
    path = "/api/units/talks/logs"
    # Two streams are two pipes, and a print is several writes: the end of one says nothing of the
    # other.
    for stream, word in (("stdout", "line"), ("stderr", "alas")):
        said = "".join(f"{word} {n}\n" for n in range(3)).encode()
        until(
            lambda s=stream, said=said: home.request("GET", f"{path}?stream={s}").body == said,
            f"all of {stream}",
        )
    raw = home.request("GET", f"{path}?stream=stderr&lines=1")
    assert (raw.headers["content-type"], raw.body) == ("application/octet-stream", b"alas 2\n")
    pieces = home.request("GET", path, headers={"Accept": "application/x-ndjson"}).lines()
    assert {p["stream"] for p in pieces} == {"stdout", "stderr"}
    assert all(
        RFC3339.fullmatch(p["time"]) and p.keys() >= {"text", "position", "instance"}
        for p in pieces
    )
    whole = ids(home.request("GET", path, headers={"Accept": SSE}))
    assert (
        ids(home.request("GET", path, headers={"Accept": SSE, "Last-Event-ID": whole[0]}))
        == whole[1:]
    )


def test_a_lease_holds_the_instance_for_as_long_as_the_connection(home: House) -> None:
    home.tool("leased", COUNTING)
    with home.asking("GET", "/api/tools/leased/lease") as lease:
        line = json.loads(lease.readline())
        told = home.status("leased")
        assert (lease.status, line["pid"], told["in_flight"]) == (200, told["pid"], 1)
        direct = ["curl", "-s", "-m", "60", f"http://{line['address']}:{line['port']}/healthz"]
        assert subprocess.run(direct, capture_output=True, check=True).stdout == b'{"ok": true}'
    until(lambda: home.status("leased")["in_flight"] == 0, "the lease ends with its connection")


@pytest.mark.parametrize("umask", [0o000, 0o777], ids=oct)
def test_modes_from_the_first_instant_whatever_the_umask(umask: int) -> None:
    with house() as home:
        home.runner = ("sh", "-c", f'umask {umask:o}; exec "$0" "$@"')
        home.start()
        home.tool("echo", COUNTING)
        home.run("echo", {"say": "something"})
        assert home.pxctl("exec", "print('private')").returncode == 0
        find = ["find", home.home / "run", home.home / "state", "-printf", "%y%m %p\n"]
        found = subprocess.run(find, capture_output=True, text=True, check=False).stdout
        modes = {
            path: mode for mode, _, path in (line.partition(" ") for line in found.splitlines())
        }
        # A kernel makes its sockets itself, under the user's umask, in a folder that is private.
        sockets = str(home.home / "run" / "k")
        own = {
            path: mode
            for path, mode in modes.items()
            if mode[0] != "s" or not path.startswith(sockets)
        }
        assert own.keys() != modes.keys()
        odd = {path: mode for path, mode in own.items() if mode not in {"d700", "f600", "s600"}}
        assert (odd, own[home.socket]) == ({}, "s600"), "of a kernel, too"


ASKS_THE_API = """\
import os, re, sys, urllib.request
told = re.search(r"^API: (\\S+) \\(bearer token in the file \\$(\\w+)\\)$", sys.stdin.read(), re.M)
address, variable = told.groups()
token = open(os.environ[variable]).read().strip()
assert not any(token in text for text in [*os.environ.values(), *sys.argv])
asked = urllib.request.Request(address + "/api/status", headers={"Authorization": "Bearer " + token})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).status)
"""


def test_users_and_agents_are_told_of_the_tcp_listener_and_its_token(home: PipeHouse) -> None:
    (token_file,) = home.home.rglob("api.token")
    told = home.pxctl("daemon", "status").stdout
    assert (home.settings["PX_API__LISTEN"] in told, str(token_file) in told) == (True, True)
    folder = home.write("asks", f"agent: command\ncommand: [{sys.executable}, ask.py]")
    (folder / "ask.py").write_text(ASKS_THE_API)
    agent = home.execute("asks")
    assert (agent.status, agent.stdout) == ("completed", "200\n"), agent.stderr
    assert token_file.read_text().strip() not in agent.rendered_prompt + home.said()
