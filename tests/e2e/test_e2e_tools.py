"""Warm tools, seen from outside: starts, reuse, eviction, pins, limits, stops, failures."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from e2e.house import DEADLINE, House, alive, house, server, until, written_pid
from rounds import DEEP

ECHO = server("return {'pid': os.getpid(), **body}")
SLOW = server("time.sleep(body.get('seconds', 0)); return {'pid': os.getpid()}")
UNTIL_GO = server("""
    while body.get('waits') and not os.path.exists('go'): time.sleep(0.01)
    return {'pid': os.getpid()}
""")
SECRETS = {"SECRET_TOKEN_OF_MINE": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden"}
SMALL_LOGS = {"PX_LOGS__SEGMENT_BYTES": str(1 << 20), "PX_LOGS__TOTAL_BYTES": str(4 << 20)}


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """One daemon for all whose faults are their tools'; each test has tools of its own, `good` and `echo` are whole."""
    with house({**SECRETS, **SMALL_LOGS, "PX_TOOLS__WARM_KEEP_MAX": "50"}) as made:
        made.tool("good", ECHO)
        made.tool("echo", ECHO)
        made.measured = True
        made.start()
        yield made
        assert made.run("good").status == 200, "other tools are unaffected"


def test_two_requests_to_a_cold_tool_start_it_once(shared: House) -> None:
    shared.tool("wanted", ECHO)
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: shared.run("wanted"), range(30)))
    assert {a.status for a in answers} == {200}
    assert len({a.json()["pid"] for a in answers}) == 1
    assert any("x-px-cold-start" in a.headers for a in answers)
    assert "x-px-cold-start" not in shared.run("wanted").headers


@pytest.mark.parametrize("mode", ["handover", "port"])
def test_ready_is_what_healthz_says(shared: House, mode: str) -> None:
    """503 (and 500) mean not yet, 200 means ready; a tool without the path (404), or GET (501), when it accepts."""
    name = f"says-{mode}"
    loading = ECHO.replace(
        "    def do_GET(self):",
        "    def do_GET(self):\n"
        "        if self.path == '/healthz' and not os.path.exists('loaded'):\n"
        "            open('asked', 'a').write('x')\n"
        "            return self.answer({'loading': True}, 500 if os.path.getsize('asked') % 2 else 503)",
    )
    folder = shared.tool(name, loading, listen=mode)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(shared.run, name, {"n": 1})
        until(lambda: (folder / "asked").exists() and (folder / "asked").stat().st_size > 3, "it is asked again")
        assert shared.status(name)["state"] == "starting"
        assert not answer.done()
        (folder / "loaded").touch()
        assert answer.result(DEADLINE).json()["n"] == 1
    for number, without in enumerate((("/healthz", "/elsewhere"), ("def do_GET(", "def do_HEAD("))):
        shared.tool(f"{name}-without-{number}", ECHO.replace(*without), listen=mode)
        assert shared.run(f"{name}-without-{number}", {"n": 2}).json()["n"] == 2
    shared.tool(f"{name}-never", loading, listen=mode, start_timeout_seconds=0.5)
    assert shared.run(f"{name}-never").json()["reason"] == "readiness_timeout"


def test_input_is_checked_before_anything_is_spawned(shared: House) -> None:
    shared.tool(
        "typed",
        ECHO,
        input={
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "deep": {"type": "object", "properties": {"x": {"type": "number"}}},
            },
            "required": ["n"],
            "additionalProperties": False,
        },
    )
    answer = shared.run("typed", {"n": "x", "deep": {"x": "y"}, "other": 1})
    assert answer.status == 422
    problem = answer.json()
    assert {e["pointer"] for e in problem["errors"]} >= {"/n", "/deep/x"}
    assert shared.status("typed")["state"] == "cold"
    done = shared.pxctl("run", "typed", "n=word")
    assert done.returncode == 2
    assert "/n" in done.stderr


def test_ttl_counts_from_the_end_of_the_last_request(shared: House) -> None:
    shared.tool("brief", server("time.sleep(1.5); return {'ended': time.time()}"), warm_keep_seconds=1)
    ended = shared.run("brief").json()["ended"]
    until(lambda: shared.status("brief")["state"] == "cold", "it was evicted by age")
    assert shared.status("brief")["reason"] == "evicted_ttl"
    told = [json.loads(line) for line in shared.pxctl("events", "--unit", "brief", "--json").stdout.splitlines()]
    (evicted,) = (each for each in told if (each["event"], each["reason"]) == ("stopping", "evicted_ttl"))
    assert datetime.fromisoformat(evicted["time"]).timestamp() >= ended + 0.9, "age counts from the end"


def test_of_two_places_the_least_recently_used_is_given_away_never_a_pinned_or_busy_one(home: House) -> None:
    """All busy: who comes waits in line, and is told when to come again once the time of its request is over."""
    home.settings = {"PX_TOOLS__WARM_KEEP_MAX": "2"}
    home.start()
    assert home.get("/api/launcher/state") == {}
    folder = home.tool("a", UNTIL_GO)
    for name in ("b", "c"):
        home.tool(name, SLOW)
    home.run("a")
    home.run("b")
    assert home.pxctl("pin", "a").returncode == 0
    home.run("c")
    until(lambda: home.status("b")["state"] == "cold", "b was evicted")
    assert (home.status("a")["state"], home.status("a")["pinned"]) == ("ready", True)
    assert home.status("b")["reason"] == "evicted_lru"
    home.stop()
    home.start()
    assert home.status("a")["pinned"] is True, "pins survive restarts"
    assert home.pxctl("unpin", "a").returncode == 0
    assert home.status("a")["pinned"] is False
    home.tool("other", UNTIL_GO)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        long = [pool.submit(home.run, name, {"waits": True}) for name in ("a", "other")]
        try:
            until(lambda: {home.status(name)["in_flight"] for name in ("a", "other")} == {1}, "both places are taken")
            refused = home.request("POST", "/api/tools/b/run?timeout=0.5", {})
            assert refused.status == 429
            assert int(refused.headers["retry-after"]) >= 1
            waiting = pool.submit(home.request, "POST", "/api/tools/b/run?timeout=50", {})
            until(lambda: home.status("b")["waiting"] == 1, "another waits in line")
        finally:
            (folder / "go").touch()
            (folder.parent / "other" / "go").touch()
        assert waiting.result().status == 200
        assert [each.result().status for each in long] == [200, 200], "a busy tool is never evicted"


def test_memory_limit_is_named_and_the_next_run_works(shared: House) -> None:
    shared.tool(
        "hog",
        server("""
            print('about to eat', file=sys.stderr, flush=True)
            block = [bytearray(4 << 20) for _ in range(body.get('blocks', 0))]
            if len(block) > 1: time.sleep(1000)  # over its limit until somebody looks
            return {'blocks': len(block)}
        """),
        max_memory_mb=128,
    )
    answer = shared.run("hog", {"blocks": 100})
    problem = answer.json()
    assert "ResourceLimitExceeded: memory" in json.dumps(problem)
    assert "about to eat" in json.dumps(problem)
    assert shared.pxctl("run", "hog", "blocks:=100").returncode == 9
    until(lambda: shared.status("hog")["reason"] == "memory_limit", "all of it is gone, and its end has a name")
    assert shared.run("hog", {"blocks": 1}).json() == {"blocks": 1}


def test_runtime_limit_is_named_and_the_tree_is_gone(shared: House) -> None:
    shared.tool("late", SLOW, max_runtime_seconds=1)
    answer = shared.run("late", {"seconds": 300})
    assert "ResourceLimitExceeded: runtime" in json.dumps(answer.json())
    assert shared.status("late")["reason"] == "runtime_limit"
    assert shared.pxctl("run", "late", "seconds:=300").returncode == 9
    until(lambda: shared.run("late", {"seconds": 0}).status == 200, "a run that is quicker than its second works")


ESCAPE = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("grandchild", "w").write(str(os.getpid()))
        while True: time.sleep(100)
    os._exit(0)
os.wait()
"""


def test_stop_leaves_no_double_forked_deaf_grandchild(shared: House) -> None:
    code = ECHO.replace("def serve():", "def serve():\n" + "".join(f"    {line}\n" for line in ESCAPE.splitlines()))
    folder = shared.tool("escape", code, stop_timeout_seconds=0.5)
    assert shared.run("escape").status == 200
    leader = shared.status("escape")["pid"]
    grandchild = written_pid(folder / "grandchild")
    assert alive(grandchild)
    assert shared.pxctl("stop", "escape").returncode == 0
    assert not alive(leader)
    assert not alive(grandchild)
    assert shared.status("escape")["state"] == "cold"


def test_a_stop_that_had_to_kill_says_so(shared: House) -> None:
    """And a tool that ended at SIGTERM was not killed."""
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    shared.tool("deaf", deaf + ECHO, stop_timeout_seconds=0.3)
    shared.tool("hearing", ECHO, stop_timeout_seconds=30)
    for name, killed in (("deaf", True), ("hearing", False)):
        assert shared.run(name).status == 200
        words = ", killed: it did not end within its grace after SIGTERM" if killed else ""
        assert shared.pxctl("stop", name).stdout == f"tool:{name} stopped{words}\n"
        assert shared.run(name).status == 200
        assert json.loads(shared.pxctl("stop", name, "--json").stdout)["killed"] == [f"tool:{name}"] * killed


HANG_UP = "self.connection.shutdown(2); self.close_connection = True"
ANSWERS = {
    "closes": "self.wfile.write(b'HTTP/1.1 200 OK\\r\\nContent-Length: 100\\r\\n\\r\\n{\"a\"'); HANG_UP",
    "nonsense": "self.wfile.write(b'\\x00\\x01 what is this\\r\\n\\r\\n'); HANG_UP",
    "notjson": "self.answer(b'{not json')",
    "fails": "self.answer({'detail': 'no good'}, 500)",
}


@pytest.mark.parametrize("fault", sorted(ANSWERS))
def test_a_bad_answer_is_a_clear_error(shared: House, fault: str) -> None:
    code = ECHO.replace("if self.path == '/run': self.answer(run(body))", "").replace(
        'if self.path == "/run": self.answer(run(body))',
        f'if self.path == "/run" and "ok" not in body: {ANSWERS[fault]}\n'
        '        elif self.path == "/run": self.answer(run(body))',
    )
    shared.tool(fault, code)
    answer = shared.run(fault)
    assert 500 <= answer.status < 600
    problem = answer.json()
    assert problem["detail"]
    assert problem["kind"] == "tool_failed"
    assert shared.run(fault, {"ok": 1}).status == 200, "the same instance still answers"


def test_a_request_that_kills_its_tool_is_not_given_to_the_next_instance(shared: House) -> None:
    folder = shared.tool(
        "fragile",
        server("""
            with open('requests', 'a') as book: book.write(body['word'] + ' ')
            if body['word'] == 'die': os._exit(3)
            return {}
        """),
    )
    for word in ("one", "two"):
        assert shared.run("fragile", {"word": word}).status == 200
    died = shared.run("fragile", {"word": "die"})
    assert died.status >= 500
    assert "3" in died.json()["detail"]
    assert shared.run("fragile", {"word": "three"}).status == 200
    assert (folder / "requests").read_text().split() == ["one", "two", "die", "three"]


def test_a_flood_of_output_harms_nobody_and_is_kept_within_its_bounds(shared: House) -> None:
    home = shared
    home.tool(
        "flood",
        server("""
        chunk = b'x' * 65535 + b'\\n'
        for _ in range(body["chunks"]): os.write(1, chunk)
        os.write(2, b'\\xff\\xfe invalid \\x80\\n')
        return {'done': True}
    """),
        max_runtime_seconds=600,
    )
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flood = pool.submit(home.run, "flood", {"chunks": 1600 if DEEP else 200}, seconds=110)
        for _ in range(10):
            assert home.run("good").status == 200
        assert flood.result().status == 200
    folder = home.home / "state" / "logs" / "tool" / "flood"
    until(lambda: size_of(folder) < 7 << 20, "rotation keeps the total")
    ask = ("logs", "flood", "-n", "1", "--stderr")
    until(lambda: "invalid" in home.pxctl(*ask).stdout, "the other stream is logged as soon as somebody reads it")
    assert home.pxctl(*ask).returncode == 0


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder; one may be rotated away while it is looked at."""
    total = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def test_bad_json_and_huge_bodies_are_refused(shared: House) -> None:
    assert shared.request("POST", "/api/tools/echo/run", b"{nope").status == 400
    huge = b'{"x": "' + b"y" * 100_000_000 + b'"}'
    try:
        answer = shared.run("echo", huge)
    except OSError:
        answer = None  # it may hang up before we have said it all; the next answer tells
    if answer is not None:
        assert answer.status == 413
        assert "max_body_bytes" in answer.body.decode()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(DEADLINE)
        raw.connect(shared.socket)
        raw.sendall(
            b"POST /api/tools/echo/run HTTP/1.1\r\nHost: px\r\nContent-Length: 100000000\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        assert b" 413 " in raw.recv(65536)
    assert shared.run("echo", {"after": 1}).json()["after"] == 1


def test_broken_tool_json_is_listed_with_its_place_and_harms_no_other(shared: House) -> None:
    folder = shared.tool("broken", ECHO)
    (folder / "tool.json").write_text('{\n  "name": "broken",\n  "warm_keep_secnds": 3\n}')
    entries = {t["name"]: t for t in shared.get("/api/tools")["tools"]}
    error = json.dumps(entries["broken"]["config_error"])
    assert "tool.json" in error
    assert "3" in error
    assert "warm_keep_seconds" in error
    assert entries["good"]["config_error"] is None
    assert shared.run("good").status == 200
    done = shared.pxctl("run", "broken")
    assert done.returncode != 0
    assert "warm_keep_seconds" in done.stderr
    assert shared.pxctl("tools", "list").returncode == 0


@pytest.mark.deep
def test_a_full_disk_harms_nobody_and_is_said(require_root: None) -> None:
    """The log directory is a tiny tmpfs; a flooding tool fills it, everything goes on, and space ends it."""
    with house() as home:
        logs = home.home / "state" / "logs"
        logs.mkdir(parents=True, mode=0o700)
        os.chmod(home.home / "state", 0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "px", logs], check=True)
        try:
            home.start()
            home.tool(
                "flood",
                server("""
                for _ in range(body.get('n', 0)): os.write(1, b'z' * 65536)
                return {'done': True}
            """),
            )
            home.tool("good", ECHO)
            assert home.run("flood", {"n": 100}).status == 200
            assert home.run("good").status == 200
            said = until(
                lambda: [e for e in home.pxctl("events", "--json").stdout.splitlines() if "log_degraded" in e],
                "the full disk is an event",
            )
            assert "tool:flood" in said[0]
            subprocess.run(["mount", "-o", "remount,size=64m", logs], check=True)
            until(
                lambda: [e for e in home.pxctl("events", "--json").stdout.splitlines() if "log_recovered" in e],
                "it recovers when space returns",
            )
            assert home.stop() == 0
        finally:
            home.tear_down()
            subprocess.run(["umount", "-l", logs], check=False)  # even where somebody just looks into it


def test_too_few_descriptors_are_a_clear_error(home: House) -> None:
    home.tool("echo", ECHO)
    home.start()
    keeper, control = home.pids()
    highest = max(int(name) for name in os.listdir(f"/proc/{control}/fd"))
    before = resource.prlimit(control, resource.RLIMIT_NOFILE)
    resource.prlimit(control, resource.RLIMIT_NOFILE, (highest + 3, before[1]))
    try:
        answer = home.run("echo")
    finally:
        resource.prlimit(control, resource.RLIMIT_NOFILE, before)
    assert answer.status == 503
    assert "file descriptors" in answer.json()["detail"]
    assert "LimitNOFILE" in answer.json()["hint"]
    until(lambda: home.run("echo").status == 200, "it recovers by itself")
    assert home.pids() == (keeper, control)


def test_a_connection_to_the_port_of_a_cold_tool_starts_it(shared: House) -> None:
    shared.tool("direct", ECHO)
    before = shared.run("direct").json()["pid"]
    port = shared.get("/api/launcher/state")["direct"]["port"]
    shared.pxctl("stop", "direct")
    assert shared.status("direct")["state"] == "cold", "what was left in its backlog starts nothing"
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        connection.request("POST", "/run", b"{}", {"Content-Type": "application/json"})
        pid = json.loads(connection.getresponse().read())["pid"]
        connection.close()
        assert pid != before
        assert shared.status("direct")["pid"] == pid
    shared.tool("direct", "raise SystemExit('broken')")
    shared.pxctl("stop", "direct")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    with contextlib.closing(connection), pytest.raises((http.client.HTTPException, OSError)):
        connection.request("POST", "/run", b"{}")
        connection.getresponse()  # refused, and not left waiting
