"""Starting, stopping, restarting, installing the daemon: one daemon, whatever happens, and the truth about it."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from cli.bin_house import House
from cli.fake_daemon import FakeDaemon, document
from cli.px import Ended, Px


def test_a_daemon_is_started_detached_and_answers_when_the_command_returns(house: House) -> None:
    old = os.umask(0)
    try:
        ended = house("daemon", "start")
    finally:
        os.umask(old)
    assert ended.code == 0, ended.err
    assert "started (pid " in ended.text
    assert house("daemon", "status").code == 0
    assert house.calls == [{"argv": [], "umask": 0o077, "sid": True}]
    assert house.log.stat().st_mode & 0o777 == 0o600
    assert house.log.parent.stat().st_mode & 0o777 == 0o700
    assert house.log.parent.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("code", [78, 1])
def test_a_daemon_that_cannot_start_says_why(house: House, code: int) -> None:
    ended = house("daemon", "start", FAKE_PXD=f"exit{code}")
    assert ended.code == 1
    assert f"pxctl: cannot start pxd: pxd ended with exit code {code}" in ended.err
    assert "stderr: setting pxd.toml:3: [tols] is not known" in ended.err
    assert ("pxctl config check" in ended.err) is (code == 78)
    assert house("daemon", "start", "--json", FAKE_PXD=f"exit{code}").json()["daemon_exit_code"] == code


def test_a_daemon_that_never_answers_times_out(house: House) -> None:
    ended = house("daemon", "start", "--timeout", "1", "--json", FAKE_PXD="silent")
    os.kill(ended.json()["daemon_pid"], signal.SIGKILL)
    assert ended.code == 7
    assert "not answered within 1 s" in ended.json()["detail"]


def late(house: House, words: str, *arguments: str) -> Ended:
    """Return how a command ended that ran out of time with these words; a short time may be over before that."""
    for seconds in ("1", "5", "30"):
        ended = house(*arguments, "--timeout", seconds)
        if words in ended.err:
            return ended
    raise AssertionError(ended.err)


def test_a_state_directory_that_another_daemon_holds_is_told(house: House) -> None:
    """That daemon will never answer here: its socket is another one."""
    words = "\npxd: another daemon (pid 4711) already holds PX_HOME/state"
    ended = house("daemon", "start", "--timeout", "1", FAKE_PXD="exit8", FAKE_WORDS=words)
    assert ended.code == 8
    assert "another daemon (pid 4711) already holds" in ended.err


def test_no_pxd_anywhere(px: Px) -> None:
    code = "import sys; sys.executable = '/no/python'; from pxctl.main import main; sys.exit(main(['daemon', 'start']))"
    ended = px(argv=[sys.executable, "-c", code], PATH="/nowhere")
    assert ended.code == 5
    assert "neither beside pxctl nor on PATH" in ended.err


def test_stop_returns_when_daemon_and_children_are_gone(house: House) -> None:
    house("daemon", "start", FAKE_PXD="child")
    pid = house("daemon", "status", "--json").json()["keeper"]["pid"]
    ended = house("daemon", "stop")
    assert (ended.code, ended.text) == (0, "pxd stopped\n")
    assert "wait in line: 2;" in ended.err, "what a tool's callers wait for is not kept"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    ended = house("daemon", "stop")
    assert (ended.code, ended.out) == (0, b"")
    assert "does not run" in ended.err
    assert house("daemon", "stop", "--json").json()["was_running"] is False


def test_stop_names_what_survived(house: House) -> None:
    house("daemon", "start", FAKE_PXD="child", FAKE_KEEPS="1")
    unit = house("status", "--json").json()["units"][0]
    try:
        ended = house("daemon", "stop", "--timeout", "1")
        assert ended.code == 8
        assert f"survived: pid {unit['pid']} (tool:a)" in ended.err
    finally:
        os.kill(unit["pid"], signal.SIGKILL)


@pytest.mark.parametrize("how", ["serve", "abrupt"])
def test_restart_returns_when_the_new_control_plane_answers(house: House, how: str) -> None:
    house("daemon", "start", FAKE_PXD=how)
    before = house("daemon", "status", "--json").json()
    ended = house("daemon", "restart", "--json")
    assert ended.code == 0, ended.err
    assert ended.json()["control"]["pid"] != before["control"]["pid"]
    assert "answers again" in house("daemon", "restart", "--all").text


def test_a_restart_that_does_not_happen_exits_7(house: House) -> None:
    house("daemon", "start", FAKE_PXD="no restart")
    ended = late(house, "no new control plane", "daemon", "restart")
    assert ended.code == 7


def test_daemon_status_exits_3_when_there_is_none(px: Px, daemon: FakeDaemon) -> None:
    keeper = {"pid": 5, "rss_bytes": 1024, "started_at": "2026-01-01T00:00:00Z"}
    facts = {
        "version": "1", "socket": "/s", "kill_rung": "cgroup", "stopping": True, "keeper": keeper,
        "control": {"pid": 6, "restarts": 1}, "interrupted": [{"unit": "tool:a", "pid": 9}],
        "degraded": [{"part": "ledger", "detail": "disk full"}],
    }  # fmt: skip
    daemon.on("GET /api/daemon", document(facts))
    ended = px("daemon", "status")
    assert ended.code == 0
    for words in ("pid 5, 1.0K, started", "restarted 1x", "cgroup", "stopping", "tool:a (pid 9)", "ledger: disk full"):
        assert words in ended.text
    assert px("daemon", "status", "-q").text == "5\n"
    assert px("daemon", "status", "--json").json() == facts
    ended = px("daemon", "status", PX_SOCKET="/nowhere")
    assert (ended.code, ended.out) == (3, b"")
    assert px("daemon", "status", "--json", PX_SOCKET="/nowhere").json()["exit_code"] == 3


def test_config_is_asked_of_pxd_itself(house: House) -> None:
    assert house("config", "show").json() == ["--show-config"]
    assert house("config", "check", "--json").json() == ["--check-config", "--json"]
    assert house("config", "check").err == "pxctl: warning: odd\n"
    quiet = house("config", "check", "-q")
    assert (quiet.text, quiet.err) == ("", "")
    for code, wanted in ((78, 1), (2, 2), (1, 1), (137, 1)):
        ended = house("config", "check", FAKE_PXD=f"exit{code}")
        assert ended.code == wanted
        assert ended.err.startswith("pxctl: cannot check the settings: setting pxd.toml:3: [tols] is not known\nhint: ")
        assert house("config", "check", "--json", FAKE_PXD=f"exit{code}").json()["exit_code"] == wanted
    assert "pxd ended with -9" in house("config", "check", FAKE_PXD="signal").err


@pytest.mark.parametrize("verb", ["show", "check"])
def test_broken_settings_are_told_as_every_other_failure(house: House, verb: str) -> None:
    ended = house("config", verb, FAKE_PXD="broken")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err == (
        f"pxctl: cannot {verb} the settings: /x/pxd.toml:2: unknown setting tols.a; did you mean tools.a?\n"
        "  env PX_B: nor this\n"
        "hint: mend what is named above, then: pxctl config check\n"
    )
    ended = house("config", verb, "--json", FAKE_PXD="broken")
    problem = ended.json()
    assert (ended.code, ended.err, problem["kind"], problem["exit_code"]) == (1, "", "config_error", 1)
    assert [error["line"] for error in problem["errors"]] == [2] * (verb == "check")
