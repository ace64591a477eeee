"""The client by its contract: flags, exit codes, JSON on stdout, words on stderr, names, places (CONTRACT §1-3)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.house import BIN, DEADLINE, House, alive, house, server, until

TYPED = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "ratio": {"type": "number"},
        "yes": {"type": "boolean"},
        "word": {"type": "string"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "deep": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "string"}}},
        "seconds": {"type": "number"},
        "any": {},
    },
    "additionalProperties": False,
}
ECHO = server("time.sleep(body.get('seconds', 0)); print('said', body.get('word'), flush=True); return body")


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """One daemon with `echo`, `twin-a`, `twin-b`."""
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50"}) as made:
        made.measured = True
        made.start()
        for name in ("echo", "twin-a", "twin-b"):
            made.tool(name, ECHO, input=TYPED)
        yield made


def on_terminal(
    home: House, *args: str, env: Mapping[str, str] | None = None, seen: Callable[[bytes], None] = lambda _: None
) -> tuple[int, str]:
    """Run pxctl with a terminal on all three streams; return its exit code and what the terminal got.

    `seen` is told all that it got so far whenever there is more.
    """
    front, back = pty.openpty()
    with subprocess.Popen(
        [BIN / "pxctl", *args],
        env={**home.environ, "TERM": "xterm", **(env or {})},
        stdin=back,
        stdout=back,
        stderr=back,
    ) as client:
        os.close(back)
        got = b""
        try:
            while select.select([front], [], [], DEADLINE)[0] and (piece := os.read(front, 65536)):
                got += piece
                seen(got)
        except OSError:
            pass  # the other end is closed: all was read
        finally:
            os.close(front)
        return client.wait(DEADLINE), got.decode(errors="replace")


@contextlib.contextmanager
def client(home: House, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run pxctl in the background; it is gone afterwards."""
    argv, to = [str(BIN / "pxctl"), *args], subprocess.PIPE
    with subprocess.Popen(argv, env=home.environ, stdin=subprocess.DEVNULL, stdout=to, stderr=to, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("args", "schema"),
    [
        (("status",), "px.status/1"),
        (("tools", "list"), "px.tools/1"),
        (("tools", "show", "echo"), "px.tool/1"),
        (("why", "echo"), "px.why/1"),
        (("doctor",), "px.doctor/1"),
        (("daemon", "status"), "px.daemon/1"),
        (("config", "show"), "px.config/1"),
        (("version",), "px.version/1"),
        (("start", "echo"), "px.start/1"),
        (("wait", "echo"), "px.wait/1"),
        (("restart", "echo"), "px.start/1"),
        (("pin", "echo"), "px.pin/1"),
        (("unpin", "echo"), "px.pin/1"),
        (("stop", "echo"), "px.stop/1"),
    ],
)
def test_json_is_one_document_that_names_its_schema(shared: House, args: tuple[str, ...], schema: str) -> None:
    shared.run("echo")
    done = shared.pxctl(*args, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == schema
    assert shared.pxctl("--json", *args).returncode == 0, "global options may stand in front"


COERCED: list[tuple[list[str], Any]] = [
    (["n=5", "ratio=2", "yes=true"], {"n": 5, "ratio": 2, "yes": True}),
    (["word=5"], {"word": "5"}),
    (["list=1,2,3"], {"list": [1, 2, 3]}),
    (["list:=[4, 5]"], {"list": [4, 5]}),
    (["deep.x=1.5", "deep.y=7"], {"deep": {"x": 1.5, "y": "7"}}),
    (['any:={"a": null}'], {"any": {"a": None}}),
    (["word=a=b"], {"word": "a=b"}),
    (["--input", '{"n": 1, "word": "w"}', "n=2"], {"n": 2, "word": "w"}),
]


@pytest.mark.parametrize(("args", "expected"), COERCED)
def test_values_are_coerced_by_the_input_schema(shared: House, args: list[str], expected: Any) -> None:
    done = shared.pxctl("run", "echo", *args)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_input_from_a_file_and_from_standard_input(shared: House) -> None:
    request = shared.home / "request.json"
    request.write_text('{"word": "from a file"}')
    assert json.loads(shared.pxctl("run", "echo", "--input", f"@{request}").stdout) == {"word": "from a file"}
    assert json.loads(shared.pxctl("run", "echo", "--input", "-", text='{"n": 3}').stdout) == {"n": 3}
    saved = shared.home / "answer.json"
    assert shared.pxctl("run", "echo", "n=9", "-o", str(saved)).returncode == 0
    assert json.loads(saved.read_text()) == {"n": 9}


BROKEN: list[tuple[tuple[str, ...], int, str]] = [
    (("run", "echo", "n=five"), 2, "/n"),
    (("run", "echo", "--input", "{oops"), 2, "JSON"),
    (("run", "echo", "--input", "@/nonexistent"), 2, "/nonexistent"),
    (("run", "echo", "word"), 2, "word"),
    (("run", "echo", "n:=[}"), 2, "n"),
    (("run", "nothing"), 4, "nothing"),
    (("run", "twin-*"), 2, "twin-a"),
    (("run", "echo", "seconds=30", "--timeout", "0.5"), 7, "0.5"),
    (("wait", "echo", "--for", "stopped", "--timeout", "0.3"), 7, "0.3"),
    (("status", "nothing"), 4, "nothing"),
    (("status", "twin-a"), 3, ""),
    (("stop", "nothing"), 4, "nothing"),
    (("logs", "nothing"), 4, "nothing"),
    (("logs", "twin-*"), 2, "twin-a"),
    (("why", "nothing"), 4, "nothing"),
    (("nothing",), 2, "nothing"),
    (("status", "--nothing"), 2, "--nothing"),
    (("--color", "pink", "status"), 2, "pink"),
    (("completion", "tcsh"), 2, "tcsh"),
    (("events", "--unit", "nothing"), 4, "nothing"),
    (("logs", "echo", "--since", "yesteryear"), 2, "yesteryear"),
]


@pytest.mark.parametrize(("args", "code", "word"), BROKEN, ids=[" ".join(args) for args, _, _ in BROKEN])
def test_failures_have_their_exit_code_words_and_a_problem_document(
    shared: House, args: tuple[str, ...], code: int, word: str
) -> None:
    shared.run("echo")
    done = shared.pxctl(*args)
    assert done.returncode == code, done.stderr
    if code == 3:
        return
    assert done.stdout == ""
    assert done.stderr.startswith("pxctl: ")
    assert "\nhint: " in done.stderr
    assert word in done.stderr
    as_json = shared.pxctl(*args, "--json")
    assert as_json.returncode == code
    document = json.loads(as_json.stdout)
    assert document.keys() >= {"type", "title", "status", "kind", "detail", "hint", "unit"}
    assert document["exit_code"] == code


def test_without_a_daemon_reads_exit_5_and_do_not_start_one(home: House) -> None:
    for args in (("status",), ("tools", "list"), ("events",), ("run", "x", "--no-autostart")):
        assert home.pxctl(*args).returncode == 5, args
    assert home.pxctl("run", "x", env={"PX_AUTOSTART": "0"}).returncode == 5
    assert json.loads(home.pxctl("status", "--json").stdout)["exit_code"] == 5
    assert home.pxctl("daemon", "status").returncode == 3
    assert home.pxctl("version").returncode == 0
    assert not Path(home.socket).exists()


def test_run_starts_the_daemon_that_is_not_there_and_daemon_stop_ends_it(home: House) -> None:
    home.tool("echo", ECHO)
    done = home.pxctl("run", "echo", "n:=1")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"n": 1}), done.stderr
    keeper, _ = home.pids()
    assert home.pxctl("daemon", "status").returncode == 0
    assert home.pxctl("daemon", "stop").returncode == 0
    until(lambda: not alive(keeper), "it is gone")
    assert home.pxctl("daemon", "stop").returncode in {0, 3}, "it was gone already"
    assert home.pxctl("daemon", "start").returncode == 0
    assert home.request("GET", "/api/health").status == 200, "daemon start returns when the socket answers"
    assert home.pxctl("daemon", "stop").returncode == 0


def test_names_globs_and_quiet(shared: House) -> None:
    done = shared.pxctl("-q", "status", "twin-*")
    assert done.stdout.split() == ["tool:twin-a", "tool:twin-b"]
    assert {"echo", "twin-a", "twin-b"} <= set(shared.pxctl("-q", "tools", "list").stdout.split())
    assert shared.pxctl("run", "tool:echo", "n=1").returncode == 0
    assert shared.pxctl("-q", "start", "tool:twin-*").stdout.split() == ["tool:twin-a", "tool:twin-b"]
    assert shared.pxctl("status", "twin-*").returncode == 0
    done = shared.pxctl("stop", "twin-*")
    assert done.returncode == 0
    assert shared.pxctl("status", "twin-b").returncode == 3
    assert shared.pxctl("stop", "twin-b").returncode == 0, "stopping what does not run is fine"
    assert shared.pxctl("status", "kernel:echo").returncode == 4


def test_colour_only_where_wanted(shared: House) -> None:
    shared.run("echo")
    assert "\x1b[" not in shared.pxctl("status").stdout
    assert "\x1b[" in shared.pxctl("--color", "always", "status").stdout
    assert "\x1b[" in on_terminal(shared, "status")[1]
    assert "\x1b[" not in on_terminal(shared, "status", env={"NO_COLOR": "1"})[1]
    assert "\x1b[" not in on_terminal(shared, "--color", "never", "status")[1]


def test_a_terminal_sees_that_it_waits_and_a_pipe_does_not(shared: House) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    folder = shared.tool("late", wait + ECHO, input=TYPED, start_timeout_seconds=100)

    def let_it_start(got: bytes) -> None:
        if b"starting (cold)" in got:
            (folder / "go").touch()

    code, seen = on_terminal(shared, "run", "late", "n=1", seen=let_it_start)
    assert code == 0
    assert "starting (cold)" in seen
    assert json.loads(seen[seen.rindex("{") :].replace("\r", "")) == {"n": 1}
    assert shared.pxctl("stop", "late").returncode == 0
    done = shared.pxctl("run", "late", "n=1")
    assert (done.stderr, json.loads(done.stdout)) == ("", {"n": 1})


def test_ctrl_c_cancels_a_run_and_only_detaches_from_a_wait(shared: House) -> None:
    shared.tool("cancelled", ECHO, input=TYPED)
    shared.run("cancelled")
    with client(shared, "run", "cancelled", "seconds=100") as running:
        until(lambda: shared.status("cancelled")["in_flight"] == 1, "it is in flight")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=DEADLINE)
        assert running.returncode != 0
        assert "Traceback" not in errors
    until(lambda: shared.status("cancelled")["in_flight"] == 0, "the run was cancelled")
    shared.run("echo")
    with client(shared, "wait", "echo", "--for", "stopped") as waiting:
        until(lambda: connected(waiting.pid), "it is connected")
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=DEADLINE)
        assert waiting.returncode != 0
        assert "echo" in errors
        assert "Traceback" not in errors
    assert shared.status("echo")["state"] == "ready"


def connected(pid: int) -> bool:
    """Say whether a process holds a socket."""
    with contextlib.suppress(OSError):
        fds = Path(f"/proc/{pid}/fd").iterdir()
        return any(os.readlink(fd).startswith("socket:") for fd in fds)
    return False


def test_logs_since_lines_streams_and_timestamps(shared: House) -> None:
    shared.tool("talks", server("print(body['w'], flush=True); print('!', file=sys.stderr, flush=True); return {}"))
    for word in ("one", "two", "three"):
        shared.run("talks", {"w": word})
    # Two streams are two pipes, and a print is several writes: the end of one says nothing of the other.
    until(lambda: shared.pxctl("logs", "talks", "--stdout").stdout == "one\ntwo\nthree\n", "all of stdout is written")
    until(lambda: shared.pxctl("logs", "talks", "--stderr").stdout == "!\n" * 3, "all of stderr is written")
    assert shared.pxctl("logs", "talks", "--stdout", "-n", "1").stdout == "three\n"
    stamped = shared.pxctl("logs", "talks", "--stdout", "--timestamps").stdout.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z .*(one|two|three)$", line) for line in stamped)
    assert shared.pxctl("logs", "talks", "--since", "1h", "--stdout").stdout.split() == ["one", "two", "three"]
    assert shared.pxctl("logs", "talks", "--since", "2099-01-01T00:00:00Z").stdout == ""
    pieces = [json.loads(line) for line in shared.pxctl("logs", "talks", "--json").stdout.splitlines()]
    assert "".join(p["text"] for p in pieces if p["stream"] == "stdout") == "one\ntwo\nthree\n"


def test_events_follow_and_wait_end_when_it_happens(shared: House) -> None:
    shared.run("echo")
    with (
        client(shared, "events", "-f", "--json", "--unit", "echo", "-n", "1") as following,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        waiting = pool.submit(shared.pxctl, "wait", "echo", "--for", "stopped")
        shared.pxctl("stop", "echo")
        assert waiting.result().returncode == 0
        names = set()
        while "stopped" not in names:
            event = json.loads(following.stdout.readline())
            assert event["id"] > first["id"]
            names.add(event["event"])


def test_completion_scripts_are_valid_and_know_live_names(shared: House) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = shared.pxctl("completion", shell)
        assert script.returncode == 0
        if interpreter := shutil.which(shell):
            subprocess.run([interpreter, "-n"], input=script.stdout, text=True, check=True)
    ask = 'eval "$(pxctl completion bash)"; COMP_WORDS=(pxctl run tw); COMP_CWORD=2; COMP_LINE="pxctl run tw"; '
    ask += 'COMP_POINT=${#COMP_LINE}; f=$(complete -p pxctl | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
    ask += '$f pxctl tw run; echo "${COMPREPLY[@]}"'

    def completed() -> bool:
        done = subprocess.run(["bash", "-c", ask], env=shared.environ, capture_output=True, text=True, check=False)
        return {"twin-a", "twin-b"} <= set(done.stdout.split())

    assert until(completed, "live names are completed")


def test_settings_come_from_files_environment_and_conf_d(home: House) -> None:
    (home.home / "pxd.toml").write_text("[tools]\nwarm_keep_max = 2\nqueue_max = 7\n")
    (home.home / "conf.d").mkdir()
    (home.home / "conf.d" / "10.toml").write_text("[tools]\nqueue_max = 8\n")
    extra = home.home / "more"
    extra.mkdir()
    home.settings = {"PX_TOOLS__WARM_KEEP_MAX": "3", "PX_TOOLS__PATHS": str(extra), "PX_SOCKET": f"{home.home}/s"}
    shutil.copytree(home.tool("away", ECHO), extra / "away")
    shutil.rmtree(home.home / "tools" / "away")
    home.start(wait=False)
    until(lambda: home.pxctl("status").returncode == 0, "it answers at PX_SOCKET")
    shown = json.loads(home.pxctl("config", "show", "--json").stdout)["settings"]
    settings = {s["key"]: s for s in shown}
    assert settings["tools.warm_keep_max"]["value"] == 3
    assert settings["tools.queue_max"]["value"] == 8
    assert "10.toml" in settings["tools.queue_max"]["origin"]
    assert "PX_TOOLS__WARM_KEEP_MAX" in settings["tools.warm_keep_max"]["origin"]
    assert home.pxctl("run", "away").returncode == 0


def test_an_example_that_was_not_added_is_named_with_the_command_that_adds_it(shared: House) -> None:
    refused = shared.pxctl("run", "lorenz-ode-solver")
    assert refused.returncode == 4
    assert "hint: pxctl tools add example:lorenz-ode-solver" in refused.stderr
    assert "tools add" not in shared.pxctl("run", "no-such-tool").stderr
