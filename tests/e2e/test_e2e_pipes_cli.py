"""`pxctl pipe …` and the general commands, as installed, on real executions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import warm_client
from beside import beside
from e2e.house import BIN, DEADLINE, House, until
from e2e.pipe_house import folder_of, pipes_house, shell, write

GATE = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over"
"""Runs until its folder has a file `go`."""


@pytest.fixture(scope="module")
def held() -> Iterator[House]:
    """A house whose daemon serves all tests of this file; each has pipes of its own."""
    with pipes_house(measured=True) as made:
        yield made


def px(home: House, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return warm_client.run(
        [BIN / "pxctl", *arguments], env=home.environ, cwd=home.home, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip


def in_background(home: House, *arguments: str) -> subprocess.Popen[bytes]:
    return beside(
        [BIN / "pxctl", *arguments], env=home.environ, cwd=home.home, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ids(ended: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.decode().split()


def latest(home: House, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(px(home, "pipe", "runs", name, "-n", "1", "--json").stdout)["executions"]
    return found[0]


def test_run_passes_every_byte_and_exits_by_the_outcome(held: House) -> None:
    binary = r"printf 'a\377\0b'; head -c 300000 /dev/zero | tr '\0' x; printf 'warn\n' >&2"
    shell(held, "bytes", binary)
    ended = px(held, "pipe", "run", "bytes")
    assert (ended.returncode, ended.stdout) == (0, b"a\xff\0b" + b"x" * 300_000)
    assert ended.stderr.count(b"warn\n") == 1
    assert ids(px(held, "pipe", "run", "bytes", "-q")) == [str(latest(held, "bytes")["id"])]
    assert px(held, "pipe", "output", "bytes").stdout == ended.stdout
    assert px(held, "pipe", "output", "bytes", "--stderr").stdout == b"warn\n"
    assert px(held, "pipe", "output", "bytes", "--offset", "4", "--limit", "3").stdout == b"xxx"
    shell(held, "crashes", "echo partial; echo why >&2; exit 3")
    ended = px(held, "pipe", "run", "crashes")
    assert (ended.returncode, ended.stdout) == (1, b"partial\n")
    assert b"why\npxctl: cannot run pipe:crashes: execution " in ended.stderr
    assert b"hint: pxctl pipe output " in ended.stderr
    shell(held, "late", "sleep 60")
    assert px(held, "pipe", "run", "late", "--timeout", "0.2").returncode == 7
    assert (latest(held, "late")["status"], latest(held, "late")["error_type"]) == ("timed_out", "timeout")


def test_an_array_of_contexts_is_an_execution_for_each(held: House) -> None:
    shell(held, "several", "cat")
    array = json.dumps([{"issue": number} for number in range(3)])
    numbers = ids(px(held, "pipe", "run", "several", "--context", array, "-q"))
    for at, number in enumerate(numbers):
        until(lambda: latest(held, "several")["finished_at"], "the last one's end")
        assert f'"issue": {at}' in px(held, "pipe", "output", number).stdout.decode()
    told = px(held, "pipe", "run", "several", "--context", array, "--json", "--timeout", "30")
    assert [row["status"] for row in json.loads(told.stdout)["executions"]] == ["queued"] * 3
    write(held, "unset", "agent: command\ncommand: cat\npreset: nobody\nschedule: manual")
    refused = px(held, "pipe", "run", "unset", "--context", array)
    assert (refused.returncode, len(refused.stdout.splitlines())) == (1, 3), refused
    for wrong in ("[]", '[{"issue": 1}, 2]'):
        ended = px(held, "pipe", "run", "several", "--context", wrong)
        assert (ended.returncode, b"must be a JSON object, or an array of them" in ended.stderr) == (2, True)


def test_following_outlives_the_control_plane_and_gives_each_byte_once(held: House) -> None:
    folder = shell(held, "outlives", "echo e1 >&2; " + GATE + "; echo e2 >&2")
    process = in_background(held, "pipe", "run", "outlives")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    _, control = held.pids()
    os.kill(control, signal.SIGKILL)
    until(lambda: held.answers() and held.pids()[1] != control, "another control plane")
    (folder / "go").touch()
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (0, b"over\n")
    assert (err.count(b"e1\n"), err.count(b"e2\n")) == (1, 1)


def test_ctrl_c_leaves_the_execution_which_cancel_ends(held: House) -> None:
    shell(held, "left", GATE)
    process = in_background(held, "pipe", "run", "left")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    number = str(latest(held, "left")["id"])
    assert process.returncode == 1
    assert f"detached; pipe:left execution {number} goes on\n" in err.decode()
    assert px(held, "pipe", "tail", "left").stdout == b"begun\n"
    follower = in_background(held, "pipe", "tail", "-f", number)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"begun\n"
    assert px(held, "pipe", "cancel", number).stdout.decode() == f"pipe:left execution {number} cancelled\n"
    assert follower.wait(DEADLINE) == 0
    assert px(held, "pipe", "cancel", number).returncode == 8
    assert px(held, "wait", number).returncode == 1


def test_general_commands_know_pipes(held: House) -> None:
    folder = shell(held, "general", GATE)
    until(lambda: px(held, "status", "pipe:general").returncode == 0, "the pipe was seen")
    assert px(held, "start", "pipe:general").stdout.startswith(b"pipe:general ")
    until(lambda: b"execution" in px(held, "status", "pipe:general").stdout, "status tells what runs")
    assert px(held, "restart", "pipe:general").returncode == 2
    assert px(held, "stop", "pipe:general").stdout == b"pipe:general stopped\n"
    assert px(held, "wait", "pipe:general").returncode == 1
    (folder / "go").touch()
    number = ids(px(held, "pipe", "retry", str(latest(held, "general")["id"]), "--no-wait", "-q"))[0]
    assert px(held, "wait", number).stdout.decode().startswith(f"pipe:general execution {number} completed in ")
    assert px(held, "wait", "general").returncode == 0
    assert b"its last execution completed" in px(held, "why", "pipe:general").stdout
    assert px(held, "logs", "pipe:general", "-n", "1").stdout == b"over\n"
    assert px(held, "logs", "pipe:general", "--stdout").stdout == px(held, "pipe", "output", number).stdout
    assert px(held, "logs", "pipe:general", "--stderr").stdout == b""


def test_logs_follow_a_pipe_from_one_execution_to_the_next(held: House) -> None:
    shell(held, "talker", 'echo "run $PX_EXECUTION_ID"; echo odd >&2')
    first = ids(px(held, "pipe", "run", "talker", "--no-wait", "-q"))[0]
    assert px(held, "wait", first).returncode == 0
    following = in_background(held, "logs", "-f", "pipe:talker", "--stdout")
    assert following.stdout is not None
    assert following.stdout.readline() == f"run {first}\n".encode()
    second = ids(px(held, "pipe", "run", "talker", "--no-wait", "-q"))[0]
    assert following.stdout.readline() == f"run {second}\n".encode()
    following.terminate()
    following.wait(DEADLINE)


def test_a_pipe_from_its_beginning_to_its_end(held: House) -> None:
    assert px(held, "pipe", "add", "example:disk-digest", "--name", "mine").returncode == 0
    assert b"disabled" in px(held, "pipe", "list").stdout
    assert px(held, "pipe", "validate", "mine").returncode == 0
    # once a year, so that it is never due meanwhile
    changed = px(held, "pipe", "config", "mine", "schedule=*/5 3 1 1 *", "timeout=60", "title=")
    assert changed.returncode == 0, changed.stderr
    text = (folder_of(held, "mine") / "pipe.md").read_text()
    assert "schedule: '*/5 3 1 1 *'" in text
    assert "title:" not in text
    assert px(held, "pipe", "config", "mine", "schedule=9:30").returncode == 2  # input that does not fit
    assert b"next run in " in px(held, "pipe", "enable", "mine").stdout
    assert len(ids(px(held, "pipe", "next", "mine", "-q"))) == 5
    assert px(held, "pipe", "disable", "m*").stdout == b"pipe:mine disabled\n"
    assert px(held, "pipe", "show", "mine", "--rendered").stdout.startswith(b"Time range: ")
    assert px(held, "pipe", "remove", "mine").returncode == 2
    assert px(held, "pipe", "remove", "mine", "--yes").stdout == b"pipe:mine removed\n"
    assert not folder_of(held, "mine").exists()
    assert px(held, "pipe", "show", "mine").returncode == 4


def test_an_agent_that_is_not_installed_is_told_before_it_runs_with_the_command_that_installs_it(held: House) -> None:
    agents = held.home / "agents.toml"
    before = agents.read_text()
    agents.write_text(f'{before}\n[agents.absent]\nargv = ["px-absent"]\ninstall = "get px-absent"\n')
    folder = write(held, "absent", "agent: absent\nschedule: manual")
    told = until(lambda: json.loads(px(held, "pipe", "show", "absent", "--json").stdout or "{}").get("warnings"), "it")
    assert "the program 'px-absent' of the agent 'absent' was not found" in told[0]
    assert "install it: get px-absent" in told[0]
    assert b"install it: get px-absent" in px(held, "pipe", "list").stdout.replace(b"\n", b"")
    checked = px(held, "pipe", "validate", "absent")
    assert (checked.returncode, b"get px-absent" in checked.stdout) == (1, True)
    ended = px(held, "pipe", "run", "absent")
    assert (ended.returncode, b"get px-absent" in ended.stderr, b"/.bun/bin" in ended.stderr) == (1, True, False)
    (folder / "pipe.md").unlink()
    agents.write_text(before)


@pytest.mark.deep
def test_a_run_starts_the_daemon_when_it_is_not_there() -> None:
    with pipes_house(start=False) as home:
        shell(home, "early", "echo here")
        refused = px(home, "pipe", "run", "early", "--no-autostart")
        ended = px(home, "pipe", "run", "early")
        stopped = px(home, "daemon", "stop")
    assert refused.returncode == 5
    assert (ended.returncode, ended.stdout) == (0, b"here\n")
    assert ended.stderr.startswith(b"pxctl: starting pxd")
    assert stopped.returncode == 0
