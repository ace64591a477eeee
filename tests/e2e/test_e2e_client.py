"""The client by its contract: flags, exit codes, JSON on stdout, words on stderr, names, places
(CONTRACT §1-3).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.px import Px
from e2e.house import DEADLINE, PROBLEM, RFC3339, House, gone, house, server, until
from e2e.pipe_house import PipeHouse
from rounds import mostly_deep

PROPERTIES = {"n": {"type": "integer"}, "word": {"type": "string"}, "seconds": {"type": "number"}}
TYPED = {"type": "object", "properties": PROPERTIES, "additionalProperties": False}
ECHO = server(
    "time.sleep(body.get('seconds', 0)); print('said', body.get('word'), flush=True); return body"
)


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """One daemon with `echo`, `twin-a`, `twin-b`."""
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50"}, start=True, measured=True) as made:
        for name in ("echo", "twin-a", "twin-b"):
            made.tool(name, ECHO, input=TYPED)
        yield made


# -- documents -------------------------------------------------------------------------------------

TOOL = (
    "name title version description dialect state pinned config_error warnings manifest "
    "input_schema limits"
)
DOCUMENTS = {
    "status": ("px.status/1", "daemon units"), "tools list": ("px.tools/1", "tools"),
    "tools show echo": ("px.tool/1", TOOL), "why echo": ("px.why/1", ""),
    "doctor": ("px.doctor/1", "checks"),
    "daemon status": ("px.daemon/1", "version socket keeper control kill_rung memory_rung"),
    "config show": ("px.config/1", "settings"), "version": ("px.version/1", ""),
    "start echo": ("px.start/1", ""),
    "wait echo": ("px.wait/1", ""), "restart echo": ("px.start/1", ""),
    "pin echo": ("px.pin/1", ""),
    "unpin echo": ("px.pin/1", ""), "stop echo": ("px.stop/1", ""),
}  # fmt: skip
UNIT = (
    "unit kind name state reason pid started_at uptime_seconds rss_bytes cpu_percent last_used "
    "in_flight pinned"
)
UNIT += " start_method restarts next_run config_error"


@pytest.mark.parametrize("command", DOCUMENTS)
def test_json_is_one_document_that_names_its_schema_and_has_the_keys_of_the_contract(
    shared: House, command: str
) -> None:
    schema, keys = DOCUMENTS[command]
    shared.run("echo")
    document = shared.json(*command.split())
    assert (document["schema"], set(keys.split()) - document.keys()) == (schema, set())


def test_status_has_every_promised_key(shared: House) -> None:
    shared.run("echo")
    daemon, unit = (
        json.loads(shared.pxctl("--json", "status").stdout)["daemon"],
        shared.status("echo"),
    )
    assert daemon["keeper"].keys() >= {"pid", "started_at", "rss_bytes"}
    assert daemon["control"].keys() >= {"pid", "started_at", "restarts", "rss_bytes"}
    assert (daemon["socket"], set(UNIT.split()) - unit.keys()) == (shared.socket, set())
    assert all(
        map(
            RFC3339.fullmatch,
            (unit["started_at"], unit["last_used"], daemon["keeper"]["started_at"]),
        )
    )
    assert (unit["uptime_seconds"] >= 0, unit["rss_bytes"] > 1 << 20, unit["state"]) == (
        True,
        True,
        "ready",
    )
    assert (unit["reason"], unit["next_run"], unit["config_error"]) == (None, None, None)


def test_input_comes_from_a_file_or_from_standard_input(shared: House) -> None:
    (shared.home / "request.json").write_text('{"n": 2}')
    assert shared.pxctl("run", "echo", "--input", "@request.json").stdout == '{"n": 2}\n'
    assert shared.pxctl("run", "echo", "--input", "-", input='{"n": 3}').stdout == '{"n": 3}\n'


# -- exit codes ------------------------------------------------------------------------------------

BROKEN: list[tuple[str, int, str]] = [
    ("run echo n=five", 2, "/n"),
    ("run echo --input {oops", 2, "JSON"),
    ("run echo --input @/nonexistent", 2, "/nonexistent"),
    ("run echo word", 2, "word"),
    ("run nothing", 4, "nothing"),
    ("run lorenz-ode-solver", 4, "hint: pxctl tools add example:lorenz-ode-solver"),
    ("run echo seconds=30 --timeout 0.5", 7, "0.5"),
    ("wait echo --for stopped --timeout 0.3", 7, "not stopped"),
    ("status nothing", 4, "nothing"),
    ("status 3", 4, "pxctl pipe runs"),
    ("logs 3", 4, "pxctl pipe runs"),
    ("why twin-*", 2, "twin-a"),
    ("why nothing", 4, "nothing"),
    ("nothing", 2, "nothing"),
    ("status --nothing", 2, "--nothing"),
    ("events --unit nothing", 4, "nothing"),
    ("logs echo --since yesteryear", 2, "yesteryear"),
]


@pytest.mark.parametrize(
    ("command", "code", "word"), BROKEN, ids=[command for command, _, _ in BROKEN]
)
def test_failures_have_their_exit_code_words_and_a_problem_document(
    shared: House, command: str, code: int, word: str
) -> None:
    shared.run("echo")
    done = shared.pxctl(*command.split())
    assert (done.returncode, done.stdout, done.stderr[:7]) == (code, "", "pxctl: "), done.stderr
    assert ("\nhint: " in done.stderr, word in done.stderr) == (True, True), done.stderr
    document = shared.json(*command.split(), code=code)
    assert (document.keys() >= PROBLEM, document["exit_code"]) == (True, code)


def test_without_a_daemon_reads_exit_5_and_do_not_start_one(home: House) -> None:
    known = {
        "tools list": 5,
        "events": 5,
        "run x --no-autostart": 5,
        "daemon status": 3,
        "version": 0,
    }
    assert {words: home.pxctl(*words.split()).returncode for words in known} == known
    assert home.pxctl("run", "x", env={"PX_AUTOSTART": "0"}).returncode == 5
    assert home.json("status", code=5)["exit_code"] == 5
    assert not Path(home.socket).exists()


@pytest.mark.parametrize("command", mostly_deep(["run", "exec", "kernel start", "pipe run"], "run"))
def test_what_runs_something_starts_the_daemon_that_is_not_there_and_daemon_stop_ends_it(
    command: str,
) -> None:
    words = {
        "run": ["echo", "n:=1"],
        "exec": ["1 + 1"],
        "kernel start": ["mine"],
        "pipe run": ["early"],
    }[command]
    said = {"run": '{"n": 1}\n', "exec": "2\n", "kernel start": "idle (pid ", "pipe run": "here\n"}[
        command
    ]
    with house(kind=PipeHouse, measured=True) as home:
        home.tool("echo", ECHO)
        home.shell("early", "echo here")
        done = home.pxctl(*command.split(), *words)
        assert (done.returncode, said in done.stdout) == (0, True), done
        keeper, _ = home.pids()
        assert home.pxctl("daemon", "stop").returncode == 0
        gone(keeper)
        assert home.pxctl("daemon", "start").returncode == 0
        assert home.answers(), "daemon start returns when the socket answers"
        assert home.pxctl("daemon", "stop").returncode == 0


def test_names_globs_and_quiet(shared: House) -> None:
    twins, px = ["tool:twin-a", "tool:twin-b"], shared.pxctl
    assert px("-q", "status", "twin-*").stdout.split() == twins
    assert {"echo", "twin-a", "twin-b"} <= set(px("-q", "tools", "list").stdout.split())
    assert px("-q", "start", "tool:twin-*").stdout.split() == twins
    codes = {
        words: px(*words.split()).returncode
        for words in ("status twin-*", "stop twin-*", "status twin-b")
    }
    assert list(codes.values()) == [0, 0, 3]
    assert px("stop", "twin-b").returncode == 0, "stopping what does not run is fine"
    assert px("pipe", "new", "daily").returncode == 0
    assert "hint: pipe:daily is a pipe: pxctl pipe run daily" in px("run", "daily").stderr
    assert px("pipe", "remove", "daily", "--yes").returncode == 0, (
        "its agent may not be here, which doctor would tell"
    )


# -- terminals, signals ----------------------------------------------------------------------------


def test_a_terminal_sees_that_it_waits_and_a_pipe_does_not(shared: House) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    folder = shared.tool("late", wait + ECHO, input=TYPED, start_timeout_seconds=100)
    with Px(shared.home, shared.socket).terminal("run", "late", "n=1") as screen:
        screen.see("starting (cold)")
        (folder / "go").touch()
        assert screen.end() == 0
    shared.pxctl("stop", "late")
    done = shared.pxctl("run", "late", "n=1")
    assert (done.stderr, json.loads(done.stdout)) == ("", {"n": 1})


def test_ctrl_c_cancels_a_run_and_only_detaches_from_a_wait(shared: House) -> None:
    shared.tool("cancelled", ECHO, input=TYPED)
    shared.run("cancelled")
    shared.run("echo")
    running = shared.pxctl_later("run", "cancelled", "seconds=100")
    waiting = shared.pxctl_later("wait", "echo", "--for", "stopped")
    until(lambda: shared.status("cancelled")["in_flight"] == 1, "it is in flight")
    until(lambda: connected(waiting.pid), "it is connected")
    for client, word in ((running, ""), (waiting, "echo")):
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=DEADLINE)
        assert (client.returncode != 0, word in errors, "Traceback" in errors) == (
            True,
            True,
            False,
        )
    until(lambda: shared.status("cancelled")["in_flight"] == 0, "the run was cancelled")
    assert shared.status("echo")["state"] == "ready"


def connected(pid: int) -> bool:
    """Say whether a process holds a socket."""
    with contextlib.suppress(OSError):
        return any(
            os.readlink(fd).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False


# -- logs, events, completion, settings ------------------------------------------------------------


def test_logs_since_lines_and_streams(shared: House) -> None:
    def logs(*options: str) -> str:
        return str(shared.pxctl("logs", "talks", *options).stdout)

    shared.tool(
        "talks",
        server("print(body['w'], flush=True); print('!', file=sys.stderr, flush=True); return {}"),
    )
    for word in ("one", "two", "three"):
        shared.run("talks", {"w": word})
    # Two streams are two pipes, and a print is several writes: the end of one says nothing of the
    # other.
    until(lambda: logs("--stdout") == "one\ntwo\nthree\n", "all of stdout is written")
    until(lambda: logs("--stderr") == "!\n" * 3, "all of stderr is written")
    assert logs("--stdout", "-n", "1") == "three\n"
    assert logs("--since", "1h", "--stdout").split() == ["one", "two", "three"]
    following = shared.pxctl_later("logs", "-f", "talks", "--stdout")
    assert [following.stdout.readline() for _ in range(3)] == ["one\n", "two\n", "three\n"]
    assert shared.pxctl("restart", "talks").returncode == 0
    shared.run("talks", {"w": "four"})
    assert following.stdout.readline() == "four\n", "across restarts"
    following.terminate()


def test_events_follow_and_wait_end_when_it_happens(shared: House) -> None:
    shared.run("echo")
    following = shared.pxctl_later("events", "-f", "--json", "--unit", "echo", "-n", "1")
    first = json.loads(following.stdout.readline())
    waiting = shared.pxctl_later("wait", "echo", "--for", "stopped")
    until(lambda: connected(waiting.pid), "it waits")
    shared.pxctl("stop", "echo")
    assert waiting.wait(DEADLINE) == 0
    names = set[str]()
    while "stopped" not in names:
        event = json.loads(following.stdout.readline())
        assert event["id"] > first["id"]
        names.add(event["event"])


def test_completion_scripts_are_valid(shared: House) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = shared.pxctl("completion", shell)
        assert script.returncode == 0
        if interpreter := shutil.which(shell):
            subprocess.run([interpreter, "-n"], input=script.stdout, text=True, check=True)


def test_the_environment_names_more_folders_of_tools_and_the_socket_which_an_option_overrides(
    home: House,
) -> None:
    extra = home.home / "more"
    home.settings = {"PX_TOOLS__PATHS": str(extra), "PX_SOCKET": f"{home.home}/s"}
    extra.mkdir()
    home.tool("away", ECHO).rename(extra / "away")
    home.start()
    (paths,) = (
        each for each in home.json("config", "show")["settings"] if each["key"] == "tools.paths"
    )
    assert (paths["value"], "PX_TOOLS__PATHS" in paths["origin"]) == ([str(extra)], True)
    assert home.pxctl("run", "away").returncode == 0
    assert (
        home.pxctl("--socket", home.socket, "status", env={"PX_SOCKET": "/nowhere"}).returncode == 0
    )


def test_config_check_tells_warnings_and_each_mistake(home: House) -> None:
    good = home.pxctl("config", "check", env={"PX_TOOLS_QUEUE_MAX": "3"})
    assert (good.returncode, good.stderr[:29]) == (0, "pxctl: warning: the variable "), good
    file = home.home / "pxd.toml"
    file.write_text("[tols]\na = 1\n")
    assert home.pxctl("config", "check", env={"PX_B__C": "1"}).stderr.splitlines() == [
        f"pxctl: cannot check the settings: {file}:1: unknown section tols; did you mean tools?",
        "  env PX_B__C: unknown section b",
        "hint: mend what is named above, then: pxctl config check",
    ]
    problem = home.json("config", "check", code=1)
    assert (problem["kind"], problem["exit_code"], problem["errors"][0]["line"]) == (
        "config_error",
        1,
        1,
    )
