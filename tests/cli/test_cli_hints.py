"""Hints name commands that help: for the daemon that was meant, and never the command that has
just failed.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from cli.fake_daemon import FakeDaemon, document, problem
from cli.px import Px
from pxctl import hints
from pxctl.app import _MODULES

COMMANDS = frozenset(_MODULES)
SOCKET = ["--socket", "/a b/s"]


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("pxctl daemon start", "pxctl --system daemon start"),
        ("See `pxctl logs x` and `pxctl why x`.", "See `pxctl --system logs x` and `pxctl --system "
                                                  "why x`."),
        ("pxctl stop a && pxctl start a", "pxctl --system stop a && pxctl --system start a"),
        ("try it: pxctl run x", "try it: pxctl --system run x"),
        ("pxctl --system daemon start", "pxctl --system daemon start"),
        ("pxctl --help", "pxctl --help"),
        ("pxctl: cannot run x", "pxctl: cannot run x"),
        ("pxctl run: it is over", "pxctl run: it is over"),
        ("see pxctl(1) and man pxctl", "see pxctl(1) and man pxctl"),
        ("/usr/bin/pxctl status", "/usr/bin/pxctl status"),
        ("mypxctl status", "mypxctl status"),
        ("pip install supervisord-py", "pip install supervisord-py"),
    ],
)  # fmt: skip
def test_commands_are_completed_and_other_words_are_not(text: str, completed: str) -> None:
    assert hints.complete(text, ["--system"], COMMANDS) == completed
    assert hints.complete(completed, ["--system"], COMMANDS) == completed, "twice is once"
    assert hints.complete(text, [], COMMANDS) == text
    assert hints.complete(text, SOCKET, COMMANDS) == completed.replace(
        "--system", "--socket '/a b/s'"
    ) or ("--system" in text)


def test_next_steps_in_documents_are_completed_at_any_depth() -> None:
    step, full = "pxctl status", "pxctl --system status"
    value = {
        "hint": step,
        "detail": step,
        "checks": [{"repair": step, "n": 1}],
        "a": {"next_step": step, "hint": None},
    }
    assert hints.complete_document(value, ["--system"], COMMANDS) == {
        "hint": full,
        "detail": step,
        "checks": [{"repair": full, "n": 1}],
        "a": {"next_step": full, "hint": None},
    }


@pytest.mark.parametrize(
    ("hint", "arguments", "is_itself"),
    [
        ("pxctl doctor", "doctor", True),
        ("See `pxctl doctor`.", "doctor --json", True),
        ("see: pxctl status", "--system status -q", True),
        ("pxctl why tool:x", "why x", True),
        ("pxctl daemon start", "--socket /a/b daemon start", True),
        ("pxctl daemon start", "--socket=/a/b daemon start", True),
        ("see: pxctl status", "status nosuch", False),
        ("pxctl tools remove x --yes", "tools remove x", False),
        ("mend the file, then: pxctl tools validate x", "tools validate x", False),
        ("See `pxctl logs tool:x` and `pxctl tools debug x`.", "logs tool:x", False),
        ("df -h", "doctor", False),
        ("pxctl run 'x", "run x", False),
    ],
)
def test_a_hint_that_is_the_command_itself_is_known(
    hint: str, arguments: str, is_itself: bool
) -> None:
    assert hints.names_itself(hint, arguments.split()) is is_itself


# -- the commands ----------------------------------------------------------------------------------

ALL = (
    "status", "run x", "start x", "stop x", "restart x", "pin x", "unpin x", "wait x", "tools list",
    "tools show x",
    "tools validate x", "tools debug x", "tools new x", "tools add /x", "tools sync x",
    "tools remove x --yes",
    "exec 1", "kernel list", "kernel show x", "kernel start x", "kernel stop x", "kernel restart x",
    "kernel interrupt x", "kernel attach x", "kernel export x", "pipe list", "pipe show x",
    "pipe validate x",
    "pipe new x", "pipe add /x", "pipe remove x --yes", "pipe enable x", "pipe disable x",
    "pipe config x timeout=1",
    "pipe run x", "pipe cancel x", "pipe queue", "pipe next x", "pipe runs", "pipe output 1",
    "pipe tail 1",
    "pipe retry 1", "logs x", "events", "why x", "doctor", "daemon status", "daemon reload",
    "daemon restart",
    "config show", "version",
)  # fmt: skip


WAITING = {
    "wait x",
    "pipe run x",
    "pipe output 1",
    "pipe tail 1",
    "pipe retry 1",
    "logs x",
    "events",
    "daemon restart",
}
"""These bear the absence of a daemon that was there for a while."""


def steps_of(text: str) -> list[str]:
    """Return what stands as a hint, a repair or a next step."""
    return re.findall(r"^ *(?:hint|repair|next): (.*)$", text, re.MULTILINE)


@pytest.fixture(params=["nobody", "silent", "garbage", "refusing"])
def bad_daemon(request: pytest.FixtureRequest, px: Px) -> Iterator[str]:
    """Something else than a daemon that answers, at the socket of `px`."""
    if request.param == "nobody":
        yield request.param
        return
    answers = {
        "silent": b"",
        "garbage": b"SSH-2.0-x\r\n",
        "refusing": problem(503, "failed", hint="See `pxctl doctor`."),
    }
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(px.socket)
        listening.listen(64)
        listening.settimeout(0.1)
        yield from _answering(listening, answers[request.param], str(request.param))


def _answering(listening: socket.socket, answer: bytes, name: str) -> Iterator[str]:
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(5)
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield name
    finally:
        is_over.set()
        thread.join()


def test_no_hint_names_the_command_that_was_run(px: Px, bad_daemon: str) -> None:
    """One process for each would take long: the commands run in this one, with their own
    environment.
    """
    lines = [line for line in ALL if bad_daemon != "silent" or line not in WAITING]
    program = (
        "import json, os, sys\n"
        "os.dup2(2, 1)\n"
        "from pxctl.app import run\n"
        "for line in json.load(sys.stdin):\n"
        "    print('$', line, file=sys.stderr, flush=True)\n"
        "    if os.fork() == 0:\n"
        "        os._exit(run(['--socket', os.environ['PX_SOCKET'], *line.split()]))\n"
        "    os.wait()\n"
    )
    ended = px(argv=[sys.executable, "-c", program], given=json.dumps(lines).encode())
    found = {part.partition("\n")[0]: steps_of(part) for part in ended.err.split("$ ")[1:]}
    assert set(found) == set(lines)
    pointing = {
        line: steps
        for line, steps in found.items()
        if any(hints.names_itself(s, line.split()) for s in steps)
    }
    assert pointing == {}
    assert sum(map(bool, found.values())) > len(lines) // 2, found
    for steps in found.values():
        for step in steps:
            assert re.search(r"(?<!/)pxctl (?!--socket|--help|\()[a-z]", step) is None, (
                f"{step}: another daemon's"
            )


def test_hints_of_the_daemon_and_of_the_client_repeat_the_options(
    px: Px, daemon: FakeDaemon
) -> None:
    daemon.on(
        "POST /api/tools/x/run",
        problem(503, "start_failed", hint="See `pxctl logs tool:x`.", unit="tool:x"),
    )
    daemon.on("POST /api/tools/add", document({"name": "x", "folder": "/x", "needs_sync": True}))
    (px.folder / "x").mkdir()
    given = ("--socket", px.socket)
    assert px(*given, "run", "x").err.endswith(
        f"hint: See `pxctl --socket {px.socket} logs tool:x`.\n"
    )
    assert (
        px(*given, "run", "x", "--json").json()["hint"]
        == f"See `pxctl --socket {px.socket} logs tool:x`."
    )
    assert (
        f"build its .venv: pxctl --socket {px.socket} tools sync x"
        in px(*given, "tools", "add", "./x").err
    )
    assert px("run", "x").err.endswith("hint: See `pxctl logs tool:x`.\n"), (
        "PX_SOCKET is there for the next command, too"
    )


def test_the_options_come_where_nobody_answers(px: Px) -> None:
    ended = px("--system", "status", PX_HOME="", PX_SOCKET="")
    assert (ended.code, ended.err.splitlines()[-1]) == (5, "hint: pxctl --system daemon start")
    relative = px("--socket", "a b", "status")
    assert relative.err.splitlines()[-1] == f"hint: pxctl --socket '{px.folder}/a b' daemon start"
