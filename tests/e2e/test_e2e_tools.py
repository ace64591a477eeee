"""Tools by their contract (CONTRACT §5): starts, what they inherit, how they are kept warm,
limited, stopped, made.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.house import (
    DEADLINE,
    ESCAPES,
    NDJSON,
    SSE,
    House,
    Later,
    alive,
    house,
    server,
    until,
    written_pid,
)
from rounds import DEEP

CHILDREN = Path(__file__).parent.parent / "tools" / "children"
SHOW = server(
    "return {'pid': os.getpid(), 'env': dict(os.environ), 'exe': sys.executable, 'cwd': "
    "os.getcwd(), **body}"
)
SLOW = server("""
    time.sleep(body.get('seconds', 0))
    while body.get('waits') and not os.path.exists('go'): time.sleep(0.01)
    return {'pid': os.getpid(), 'ended': time.time()}
""")
SHAPES = (CHILDREN / "shapes" / "main.py").read_text()
SECRETS = {"SECRET_TOKEN_OF_MINE": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden"}
SMALL_LOGS = {"PX_LOGS__SEGMENT_BYTES": str(1 << 20), "PX_LOGS__TOTAL_BYTES": str(4 << 20)}


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """One daemon for all whose faults are their tools'; each test has tools of its own, `good`
    is whole.
    """
    with house(
        {**SECRETS, **SMALL_LOGS, "PX_TOOLS__WARM_KEEP_MAX": "50"}, start=True, measured=True
    ) as made:
        made.tool("good", SHOW)
        made.tool("shapes", SHAPES)
        yield made
        assert made.run("good").status == 200, "other tools are unaffected"


# -- starts ----------------------------------------------------------------------------------------


def test_two_requests_to_a_cold_tool_start_it_once(shared: House) -> None:
    shared.tool("wanted", SHOW)
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: shared.run("wanted"), range(30)))
    assert {a.status for a in answers} == {200}
    assert len({a.json()["pid"] for a in answers}) == 1
    assert any(int(a.headers.get("x-px-cold-start", 0)) > 0 for a in answers)
    assert "x-px-cold-start" not in shared.run("wanted").headers


@pytest.mark.parametrize("listen", ["handover", "port", "fd"])
def test_ways_to_listen(shared: House, listen: str) -> None:
    shared.tool(f"listens-{listen}", SHAPES, listen=listen)
    said = shared.run(f"listens-{listen}").json()
    assert shared.get(f"/api/tools/listens-{listen}")["listen"] == listen
    announced = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "http", "LISTEN_PID": str(said["pid"])}
    assert said["listen"] == (announced if listen == "fd" else {})


def test_a_tool_in_another_language_listens_by_itself(
    shared: House, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("node"), "needs node")
    shutil.copytree(CHILDREN / "node-port", shared.home / "tools" / "node-port")
    assert shared.run("node-port").status == 200
    assert shared.get("/api/tools/node-port")["listen"] == "port"


LOADING = SHOW.replace(
    "    def do_GET(self):",
    """    def do_GET(self):
        if self.path == '/healthz' and not os.path.exists('loaded'):
            open('asked', 'a').write('x')
            return self.answer({'loading': True}, 500 if os.path.getsize('asked') % 2 else 503)""",
)


@pytest.mark.parametrize("mode", ["handover", "port"])
def test_ready_is_what_healthz_says(shared: House, mode: str) -> None:
    """503 (and 500) mean not yet, 200 means ready; a tool without the path (404), or GET (501),
    when it accepts.
    """
    name = f"says-{mode}"
    folder = shared.tool(name, LOADING, listen=mode)
    answer = Later(lambda: shared.run(name, {"n": 1}))
    until(
        lambda: (folder / "asked").exists() and (folder / "asked").stat().st_size > 3,
        "it is asked again",
    )
    assert (shared.status(name)["state"], answer.done()) == ("starting", False)
    (folder / "loaded").touch()
    assert answer.result().json()["n"] == 1
    for number, without in enumerate((("/healthz", "/elsewhere"), ("def do_GET(", "def do_HEAD("))):
        shared.tool(f"{name}-without-{number}", SHOW.replace(*without), listen=mode)
        assert shared.run(f"{name}-without-{number}", {"n": 2}).json()["n"] == 2
    shared.tool(f"{name}-never", LOADING, listen=mode, start_timeout_seconds=0.5)
    assert shared.run(f"{name}-never").json()["reason"] == "readiness_timeout"


def test_nothing_of_the_daemons_environment_leaks(shared: House) -> None:
    folder = shared.tool("surrounded", SHOW)
    (folder / ".env").write_text("ONLY_DOTENV='two words'\n")
    seen = shared.run("surrounded").json()
    env, own = seen["env"], {name for name in seen["env"] if name.startswith("PX_")}
    assert own <= {"PX_INSTANCE", "PX_UNIT", "PX_PORT"} and not SECRETS.keys() & env.keys()
    assert (env["ONLY_DOTENV"], bool(env["PATH"]), seen["cwd"]) == ("two words", True, str(folder))


def test_the_port_is_stable_is_nobody_elses_and_a_connection_to_it_starts_the_tool(
    shared: House,
) -> None:
    shared.tool("direct", SHOW)
    pid, warm = shared.run("direct").json()["pid"], shared.get("/api/launcher/state")["direct"]
    port = shared.status("direct")["port"]
    assert (warm.keys() >= {"last_used", "pinned", "in_flight"}, warm["pid"], warm["port"]) == (
        True,
        pid,
        port,
    )
    assert shared.pxctl("restart", "direct").returncode == 0
    again, why = shared.status("direct"), shared.json("why", "direct")
    assert (again["port"], again["pid"] != pid) == (port, True)
    assert (why["state"], why["chain"][-1]["instance"]) == ("ready", again["instance"]), (
        "of the life it has now"
    )
    shared.run("direct")
    assert shared.json("why", "direct")["chain"] == why["chain"], "a run led to nothing"
    shared.pxctl("stop", "direct")
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", port))
    assert shared.status("direct")["state"] == "cold", "what was left in its backlog starts nothing"
    assert "direct" not in shared.get("/api/launcher/state")

    def ask() -> int:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        ) as connection:
            connection.request("POST", "/run", b"{}", {"Content-Type": "application/json"})
            return int(json.loads(connection.getresponse().read())["pid"])

    first, second = ask(), ask()  # it may answer before the daemon has heard of its start
    until(lambda: shared.status("direct")["state"] == "ready", "it is known to be ready")
    assert first == second == shared.status("direct")["pid"] != again["pid"]
    shared.tool("direct", "raise SystemExit('broken')")
    shared.pxctl("stop", "direct")
    with pytest.raises((http.client.HTTPException, OSError)):
        ask()  # refused, and not left waiting


def test_schema_drift_is_a_warning_never_fatal_and_none_of_a_tool_that_dies_under_the_question(
    shared: House,
) -> None:
    shared.tool("drifts", SHAPES, env={"FAULT": "drift"})
    eats = server("return len(bytearray(b'x' * (300 << 20)))")
    shared.tool(
        "dies", eats.replace('json.load(open("tool.json"))', "time.sleep(60)"), max_memory_mb=80
    )
    for _ in range(2):
        assert shared.run("drifts").status == 200
        assert shared.run("dies").status >= 500
        until(
            lambda: "schema" in json.dumps(shared.get("/api/tools/drifts")["warnings"]),
            "the drift is a warning",
        )
    assert shared.status("drifts")["warnings"]
    assert shared.get("/api/tools/dies")["warnings"] == []


# -- runs ------------------------------------------------------------------------------------------


def test_a_stream_comes_as_it_is_asked_for_whatever_the_tool_speaks(shared: House) -> None:
    kinds = {SSE: b"data: 0\n\ndata: 1\n\ndata: 2\n\n", NDJSON: b"0\n1\n2\n"}
    for shape, (kind, wanted) in itertools.product(("events", "lines"), kinds.items()):
        body, path = {"do": shape, "number": 3}, "/api/tools/shapes/stream"
        answer = shared.request("POST", path, body, headers={"Accept": kind})
        assert (answer.headers["content-type"], answer.body) == (kind, wanted)
    done = shared.pxctl("run", "shapes", "--stream", "do=events", "number:=3")
    assert done.stdout.splitlines() == ["0", "1", "2"]


def test_a_run_goes_through_with_its_headers_and_a_slow_reader_loses_nothing(shared: House) -> None:
    sent = {"X-Request-Id": "r1", "Authorization": "Bearer secret", "Cookie": "a=b"}
    answer = shared.run("shapes", {"number": 1}, headers=sent)
    said = answer.json()
    assert (answer.status, said["echo"], said["headers"]["X-Request-Id"]) == (
        200,
        {"number": 1},
        "r1",
    )
    assert (
        answer.headers["x-px-run-id"] and not {"Authorization", "Cookie"} & said["headers"].keys()
    )
    assert shared.run("shapes", b"").json()["echo"] == {}
    with shared.asking("POST", "/api/tools/shapes/run", {"do": "big", "number": 30 << 20}) as reply:
        first = reply.read(1 << 16)
        assert shared.status("shapes")["state"] == "busy"
        assert len(first) + len(reply.read()) == 30 << 20


def test_a_bad_answer_is_a_clear_error_and_one_that_breaks_off_is_never_said_to_have_ended_well(
    shared: House,
) -> None:
    """A small one is held back until it is whole, and becomes a problem document."""
    pid = shared.run("shapes").json()["pid"]
    for shape in ("half", "nonsense", "notjson", "status"):
        answer = shared.run("shapes", {"do": shape, "number": 500})
        problem = answer.json()
        assert (500 <= answer.status < 600, bool(problem["detail"]), problem["kind"]) == (
            True,
            True,
            "tool_failed",
        )
    for broken in (
        {"do": "half", "number": 900_000},
        {"do": "events", "number": 3, "breaks": True},
    ):
        with shared.asking("POST", "/api/tools/shapes/run", broken) as reply:
            assert reply.status == 200
            with pytest.raises((OSError, http.client.HTTPException)):
                reply.read()
        run = reply.headers["x-px-run-id"]
        (ended,) = until(
            lambda run=run: [it for it in shared.events("tool:shapes", "run") if it["run"] == run],
            run,
        )
        assert (ended["outcome"], ended["error_kind"]) == ("failed", "tool_failed")
    assert shared.run("shapes").json()["pid"] == pid, "the same instance still answers"


def test_a_request_that_kills_its_tool_is_not_given_to_the_next_instance(shared: House) -> None:
    code = """
        open('requests', 'a').write(body['word'] + ' ')
        if body['word'] == 'die': os._exit(3)
        print('said', body['word'], file=sys.stderr, flush=True)
        return {}
    """
    folder = shared.tool("fragile", server(code))
    answers = {word: shared.run("fragile", {"word": word}) for word in ("one", "two")}
    until(
        lambda: "said two" in shared.pxctl("logs", "fragile", "--stderr").stdout, "both are logged"
    )
    answers |= {word: shared.run("fragile", {"word": word}) for word in ("die", "three")}
    assert [answer.status < 300 for answer in answers.values()] == [True, True, False, True]
    problem = answers["die"].json()
    assert ("3" in problem["detail"], problem["stderr_tail"]) == (True, ""), (
        "what an earlier run said is no evidence"
    )
    starting, spawned = (
        shared.events("tool:fragile", "starting")[0],
        shared.events("tool:fragile", "spawned")[0],
    )
    assert ("start_method" in starting, "start_method" in spawned) == (False, True), (
        "it is told once it is known"
    )
    assert (folder / "requests").read_text().split() == list(answers)


def test_a_flood_of_output_harms_nobody_and_is_kept_within_its_bounds(shared: House) -> None:
    code = """
        chunk = b'x' * 65535 + b'\\n'
        for _ in range(body["chunks"]): os.write(1, chunk)
        os.write(2, b'\\xff\\xfe invalid \\x80\\n')
        return {'done': True}
    """
    shared.tool("flood", server(code), max_runtime_seconds=600)
    flood = Later(lambda: shared.run("flood", {"chunks": 1600 if DEEP else 200}, seconds=110))
    for _ in range(10):
        assert shared.run("good").status == 200
    assert flood.result(110).status == 200
    # of what is not rotated away meanwhile
    size = ["du", "-sb", shared.home / "state" / "logs" / "tool" / "flood"]
    told = partial(subprocess.run, size, capture_output=True, check=False)
    until(lambda: int(told().stdout.split()[0]) < 7 << 20, "rotation keeps the total")
    ask = ("logs", "flood", "-n", "1", "--stderr")
    until(
        lambda: "invalid" in shared.pxctl(*ask).stdout,
        "the other stream is logged as soon as somebody reads it",
    )


# -- the pool --------------------------------------------------------------------------------------


def test_ttl_counts_from_the_end_of_the_last_request(shared: House) -> None:
    shared.tool("brief", SLOW, warm_keep_seconds=1)
    ended = shared.run("brief", {"seconds": 1.5}).json()["ended"]
    until(lambda: shared.status("brief")["state"] == "cold", "it was evicted by age")
    assert shared.status("brief")["reason"] == "evicted_ttl"
    (evicted,) = (
        event
        for event in shared.events("tool:brief", "stopping")
        if event["reason"] == "evicted_ttl"
    )
    assert datetime.fromisoformat(evicted["time"]).timestamp() >= ended + 0.9, (
        "age counts from the end"
    )


def test_pins_and_keep_alive(shared: House) -> None:
    shared.tool("short", SLOW, warm_keep_seconds=0.3)
    shared.tool("witness", SLOW, warm_keep_seconds=0.9)
    shared.tool("tomorrow", SLOW, pinned=True)

    def pid_a_while_later() -> int:
        shared.run("witness")
        until(lambda: shared.status("witness")["state"] == "cold", "more than its time has gone by")
        return int(shared.status("short")["pid"] or 0)

    assert (
        shared.pxctl("pin", "--forever", "short").returncode,
        shared.status("tomorrow")["pinned"],
    ) == (0, True)
    pid = shared.run("short").json()["pid"]
    assert pid_a_while_later() == pid, "pinned for ever is exempt from age as well"
    assert shared.post("/api/tools/short/run?keep_alive=0", {})["pid"] == pid, "never against a pin"
    assert shared.pxctl("unpin", "short").returncode == 0
    until(lambda: shared.status("short")["state"] == "cold", "without the pin age counts again")
    assert shared.pxctl("run", "short", "--keep-alive", "600").returncode == 0
    assert pid_a_while_later(), "kept alive by its request"
    shared.post("/api/tools/short/run?keep_alive=0", {})
    until(lambda: shared.status("short")["state"] == "cold", "0 means now")


def test_of_two_places_the_least_recently_used_is_given_away_never_a_pinned_or_busy_one(
    home: House,
) -> None:
    """All busy: who comes waits in line, and is told when to come again once the time of its
    request is over.
    """
    home.settings = {"PX_TOOLS__WARM_KEEP_MAX": "2"}
    folders = [home.tool(name, SLOW) for name in ("a", "b", "c")]
    home.start()
    assert home.get("/api/launcher/state") == {}
    home.run("a")
    home.run("b")
    assert home.pxctl("pin", "a").returncode == 0
    home.run("c")
    until(lambda: home.status("b")["state"] == "cold", "b was evicted")
    assert (home.status("a")["state"], home.status("b")["reason"]) == ("ready", "evicted_lru")
    home.stop()
    home.start()
    assert home.status("a")["pinned"] is True, "pins survive restarts"
    assert home.pxctl("unpin", "a").returncode == 0
    assert home.status("a")["pinned"] is False
    long = [Later(lambda name=name: home.run(name, {"waits": True})) for name in ("a", "c")]
    until(
        lambda: {home.status(name)["in_flight"] for name in ("a", "c")} == {1},
        "both places are taken",
    )
    refused = home.request("POST", "/api/tools/b/run?timeout=0.5", {})
    assert (refused.status, int(refused.headers["retry-after"]) >= 1) == (429, True)
    waiting = Later(lambda: home.request("POST", "/api/tools/b/run?timeout=50", {}))
    until(lambda: home.status("b")["waiting"] == 1, "another waits in line")
    for folder in folders:
        (folder / "go").touch()
    assert [each.result().status for each in (waiting, *long)] == [200] * 3, (
        "a busy tool is never evicted"
    )


# -- limits and stops ------------------------------------------------------------------------------


def test_limits_reach_the_process(shared: House) -> None:
    limits = {"open_files": 77, "processes": 4000, "address_space_mb": 3000}
    names = (
        "return [resource.getrlimit(getattr(resource, 'RLIMIT_' + n))[0] for n in ('NOFILE', "
        "'NPROC', 'AS')]"
    )
    shared.tool("limited", server(f"import resource\n{names}"), limits=limits)
    assert shared.run("limited").json() == [77, 4000, 3000 << 20]
    assert shared.get("/api/tools/limited")["limits"].items() >= limits.items()


HOG = """
if 'blocks' in body: print('about to eat', file=sys.stderr, flush=True)
block = [bytearray(4 << 20) for _ in range(body.get('blocks', 0))]
if block: time.sleep(1000)  # over its limit until somebody looks
while body.get('burn'): pass
time.sleep(body.get('seconds', 0))
return {}
"""


@pytest.mark.parametrize(
    ("word", "limit", "asked"),
    [
        ("memory", {"max_memory_mb": 128}, {"blocks": 100}),
        ("runtime", {"max_runtime_seconds": 1}, {"seconds": 300}),
        ("cpu", {"limits": {"cpu_seconds": 1}}, {"burn": True}),
    ],
)
def test_a_limit_is_named_and_the_next_run_works(
    shared: House, word: str, limit: Any, asked: Any
) -> None:
    name = f"over-{word}"
    shared.tool(name, server(HOG), **limit)
    problem = json.dumps(shared.json("run", name, "--input", json.dumps(asked), code=9))
    said = f"ResourceLimitExceeded: {word}" in problem, "about to eat" in problem
    assert said == (True, "blocks" in asked), problem
    until(
        lambda: shared.status(name)["reason"] == f"{word}_limit",
        "all of it is gone, and its end has a name",
    )
    until(lambda: shared.run(name).status == 200, "a run within its limits works")


def test_a_stop_leaves_no_double_forked_deaf_grandchild_and_says_that_it_had_to_kill(
    shared: House,
) -> None:
    """And a tool that ended at SIGTERM was not killed."""
    folder = shared.tool(
        "deaf", server("return {'pid': os.getpid()}", ESCAPES), stop_timeout_seconds=0.5
    )
    shared.tool("hearing", SHOW, stop_timeout_seconds=30)
    for name, killed in (("deaf", True), ("hearing", False)):
        pids = [shared.run(name).json()["pid"]] + (
            [written_pid(folder / "grandchild")] if killed else []
        )
        words = ", killed: it did not end within its grace after SIGTERM" if killed else ""
        assert shared.pxctl("stop", name).stdout == f"tool:{name} stopped{words}\n"
        assert not any(map(alive, pids))
        assert shared.status(name)["state"] == "cold"
        assert shared.run(name).status == 200
        assert shared.json("stop", name)["killed"] == [f"tool:{name}"] * killed


def test_too_few_descriptors_are_a_clear_error(home: House) -> None:
    home.tool("echo", SHOW)
    home.start()
    pids = home.pids()
    highest = max(int(name) for name in os.listdir(f"/proc/{pids[1]}/fd"))
    before = resource.prlimit(pids[1], resource.RLIMIT_NOFILE)
    resource.prlimit(pids[1], resource.RLIMIT_NOFILE, (highest + 3, before[1]))
    answer = home.run("echo")
    resource.prlimit(pids[1], resource.RLIMIT_NOFILE, before)
    said = answer.json()
    assert (said["status"], said["kind"]) in {(429, "overloaded"), (503, "start_failed")}, (
        "where it was short"
    )
    assert ("file descriptors" in said["detail"], "LimitNOFILE" in said["hint"]) == (True, True)
    until(lambda: home.run("echo").status == 200, "it recovers by itself")
    assert home.pids() == pids


# -- the catalog -----------------------------------------------------------------------------------


def test_broken_tool_json_is_listed_with_its_place_and_harms_no_other(shared: House) -> None:
    folder = shared.tool("broken", SHOW)
    (folder / "tool.json").write_text('{\n  "name": "broken",\n  "warm_keep_secnds": 3\n}')
    entries = {t["name"]: t["config_error"] for t in shared.json("tools", "list")["tools"]}
    error = json.dumps(entries["broken"])
    assert ("tool.json, line 3" in error, "warm_keep_seconds" in error, entries["good"]) == (
        True,
        True,
        None,
    )
    done = shared.pxctl("run", "broken")
    assert (done.returncode != 0, "warm_keep_seconds" in done.stderr) == (True, True)


def test_new_tool_works_at_once_and_can_be_removed(shared: House) -> None:
    px, folder = shared.pxctl, shared.home / "tools" / "fresh"
    assert shared.json("tools", "new", "fresh")["schema"] == "px.tool/1"
    shared.json("run", "fresh", "--input", (folder / "test-request.json").read_text())
    streamed = px("run", "fresh", "--stream", "text=ab", "times=2")
    assert [json.loads(line)["result"] for line in streamed.stdout.splitlines()] == [
        "ab",
        "abab",
    ], streamed.stderr
    assert px("logs", "fresh").stdout.strip() == "", "nothing is said of probes"
    assert [px("tools", "new", name).returncode for name in ("fresh", "No Name")] == [8, 2]
    checks = shared.json("tools", "validate", "fresh")
    found = {each["name"]: each["status"] for each in checks["checks"]}
    assert (checks["schema"], len(found), found["streaming_check"]) == (
        "px.validation/1",
        12,
        "pass",
    )
    assert (set(found.values()) <= {"pass", "skip"}, checks["spawn_log"]) == (True, None), (
        "nothing is said of probes"
    )
    pid = shared.status("fresh")["pid"]
    for code, options in ((2, ()), (8, ("--yes",)), (0, ("--yes", "--force"))):
        assert px("tools", "remove", "fresh", *options).returncode == code, (
            "it runs, and this is no terminal"
        )
    assert (folder.exists(), alive(pid), px("tools", "show", "fresh").returncode) == (
        False,
        False,
        4,
    )


def test_sync_builds_the_environment_and_compiles_it(shared: House) -> None:
    folder = shared.tool("built", SHOW)
    python, wanted = folder / ".venv" / "bin" / "python", folder / "requirements.txt"
    wanted.write_text("# nothing to fetch\n")
    assert shared.pxctl("tools", "sync", "built", timeout=110).returncode == 0
    assert shared.run("built").json()["exe"] == str(python)
    wanted.write_text("no-such-distribution @ file:///nonexistent/x.whl\n")
    assert shared.pxctl("tools", "sync", "built", timeout=110).returncode == 1
    assert python.exists(), "a failed build leaves the old one"
