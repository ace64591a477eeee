"""Starting, stopping, restarting, installing the daemon: one daemon, whatever happens, and the truth about it."""

from __future__ import annotations

import os
import signal
import socket
import sys

import psutil
import pytest

from cli.fake_daemon import FakeDaemon, document
from cli.px import House, Px
from supervisord_py.daemon.service_files import LABEL

UNIT = ".config/systemd/user/pxd.service"
INSTALL, UNINSTALL = (("daemon", verb, "--platform", "systemd") for verb in ("install", "uninstall"))


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
    modes = [path.stat().st_mode & 0o777 for path in (house.log, house.log.parent, house.log.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


@pytest.mark.parametrize(
    ("ending", "code", "words"), [("78", 1, "config check"), ("1", 1, "doctor"), ("8", 8, "PX_HOME")]
)
def test_a_daemon_that_cannot_start_says_why(house: House, ending: str, code: int, words: str) -> None:
    """Exit code 8 is a lock that another daemon holds, which will never answer here."""
    ended = house("daemon", "start", "--timeout", "1", FAKE_PXD=f"exit{ending}")
    assert ended.code == code
    assert ended.err.startswith("pxctl: cannot start pxd: ")
    assert "stderr: setting pxd.toml:3: [tols] is not known" in ended.err
    assert words in ended.err.splitlines()[-1]


def test_a_daemon_that_never_answers_times_out(house: House) -> None:
    ended = house("daemon", "start", "--timeout", "1", "--json", FAKE_PXD="silent")
    os.kill(ended.json()["daemon_pid"], signal.SIGKILL)
    assert (ended.code, "not answered within 1 s" in ended.json()["detail"]) == (7, True)


def test_no_pxd_anywhere(px: Px) -> None:
    code = "import sys; sys.executable = '/no/python'; from pxctl.main import main; sys.exit(main(['daemon', 'start']))"
    ended = px(argv=[sys.executable, "-c", code], PATH="/nowhere")
    assert (ended.code, "neither beside pxctl nor on PATH" in ended.err) == (5, True)


def test_stop_returns_when_daemon_and_children_are_gone(house: House) -> None:
    house("daemon", "start", FAKE_PXD="child")
    pid = house("daemon", "status", "--json").json()["keeper"]["pid"]
    ended = house("daemon", "stop")
    assert (ended.code, ended.text) == (0, "pxd stopped\n")
    assert "wait in line: 2;" in ended.err, "what a tool's callers wait for is not kept"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    ended = house("daemon", "stop")
    assert (ended.code, ended.out, "does not run" in ended.err) == (0, b"", True)


def test_the_stop_of_a_daemon_without_a_control_plane_says_how_to_end_it(px: Px) -> None:
    quick = "import sys; from pxctl import service, main; service._READ_SECONDS = 0.2; "
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.bind(f"{px.folder}/s")
        keeper.listen()
        ended = px(argv=[sys.executable, "-c", f"{quick}sys.exit(main.main(['daemon', 'stop']))"])
    assert (ended.code, "hint: kill $(cut -d' ' -f1 " in ended.err) == (7, True)


def test_stop_names_what_survived(house: House) -> None:
    house("daemon", "start", FAKE_PXD="child", FAKE_KEEPS="1")
    unit = house("status", "--json").json()["units"][0]
    try:
        ended = house("daemon", "stop", "--timeout", "1")
        assert (ended.code, f"survived: pid {unit['pid']} (tool:a)" in ended.err) == (8, True)
    finally:
        os.kill(unit["pid"], signal.SIGKILL)


def test_restart_returns_when_the_new_control_plane_answers_also_where_the_old_one_did_not(house: House) -> None:
    house("daemon", "start", FAKE_PXD="abrupt")
    before = house("daemon", "status", "--json").json()
    ended = house("daemon", "restart", "--json")
    assert ended.code == 0, ended.err
    assert ended.json()["control"]["pid"] != before["control"]["pid"]


def test_a_restart_that_does_not_happen_exits_7(house: House) -> None:
    house("daemon", "start", FAKE_PXD="no restart")
    for seconds in ("1", "5", "30"):
        ended = house("daemon", "restart", "--timeout", seconds)
        if "no new control plane" in ended.err:  # a short time may be over before that
            break
    assert (ended.code, "no new control plane" in ended.err) == (7, True)


def test_daemon_status_exits_3_when_there_is_none(px: Px, daemon: FakeDaemon) -> None:
    keeper = {"pid": 5, "rss_bytes": 1024, "started_at": "2026-01-01T00:00:00Z", "version": "1"}
    facts = {
        "version": "1", "socket": "/s", "kill_rung": "cgroup", "stopping": True, "keeper": keeper,
        "control": keeper | {"pid": 6, "restarts": 1}, "interrupted": [{"unit": "tool:a", "pid": 9}],
        "degraded": [{"part": "ledger", "detail": "disk full"}],
    }  # fmt: skip
    daemon.on("GET /api/daemon", document(facts))
    ended = px("daemon", "status")
    assert ended.code == 0
    for words in ("pid 5, 1.0K, started", "restarted 1x", "cgroup", "stopping", "tool:a (pid 9)", "ledger: disk full"):
        assert words in ended.text
    assert px("daemon", "status", "-q").text == "5\n"
    ended = px("daemon", "status", "--json", PX_SOCKET="/nowhere")
    assert (ended.code, ended.json()["exit_code"]) == (3, 3)


def test_config_is_asked_of_pxd_itself(house: House) -> None:
    assert house("config", "show").json() == ["--show-config"]
    assert house("config", "check", "--json").json() == ["--check-config", "--json"]
    assert house("config", "check").err == "pxctl: warning: odd\n"
    for code, wanted in ((78, 1), (2, 2), (137, 1)):
        ended = house("config", "check", FAKE_PXD=f"exit{code}")
        assert ended.code == wanted
        assert ended.err.startswith("pxctl: cannot check the settings: setting pxd.toml:3: [tols] is not known\nhint: ")


def test_broken_settings_are_told_as_every_other_failure(house: House) -> None:
    ended = house("config", "check", FAKE_PXD="broken")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith("pxctl: cannot check the settings: /x/pxd.toml:2: unknown setting tols.a; did you")
    assert ended.err.splitlines()[1:] == [
        "  env PX_B: nor this",
        "hint: mend what is named above, then: pxctl config check",
    ]
    problem = house("config", "check", "--json", FAKE_PXD="broken").json()
    assert (problem["kind"], problem["exit_code"], problem["errors"][0]["line"]) == ("config_error", 1, 2)


# -- as a service; with a real systemd: tests/e2e ---------------------------------------------------------------------


def test_install_and_uninstall_leave_what_they_say(house: House) -> None:
    asked = house.px.folder / "systemctl"
    house.fake("systemctl", f'echo "$@" >> {asked}')
    told = house(*INSTALL, "--print")
    assert (told.text, (house.px.folder / UNIT).exists()) == ("[Unit]\n", False)
    assert house(*INSTALL).code == 0
    assert (house.px.folder / UNIT).read_text() == "[Unit]\n"
    done = [words for words in asked.read_text().splitlines() if " show " not in words]
    assert done == ["--user daemon-reload", "--user enable pxd.service", "--user start pxd.service"]
    (house.px.folder / UNIT).write_text("[Mine]\n")
    ended = house(*INSTALL)
    assert (ended.code, "--force" in ended.err, (house.px.folder / UNIT).read_text()) == (8, True, "[Mine]\n")
    assert house(*INSTALL, "--force").code == 0
    assert house(*UNINSTALL).code == 0
    assert not (house.px.folder / UNIT).exists()
    assert "--user disable --now pxd.service" in asked.read_text().splitlines()
    assert "nothing to do" in house(*UNINSTALL).err


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'System has not been booted with systemd as init system' >&2; exit 1", "systemctl does not run here"),
        ("echo Version=232", "this is systemd 232; the unit needs systemd 235"),
        ('[ "$2" != enable ] || { echo Unit is masked >&2; exit 1; }', "Unit is masked"),
    ],
)
def test_a_service_manager_that_fails_is_told_and_nothing_is_left(house: House, script: str, words: str) -> None:
    house.fake("systemctl", script)
    ended = house(*INSTALL)
    assert (ended.code, words in ended.err) == (1, True)
    assert not (house.px.folder / ".config").exists()


def test_an_uninstall_without_a_manager_removes_the_files_all_the_same(house: House) -> None:
    unit = house.px.folder / UNIT
    link = unit.parent / "default.target.wants/pxd.service"
    link.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    link.symlink_to(unit)
    house.fake("systemctl", "echo 'Unit is masked' >&2; exit 1")
    assert (house(*UNINSTALL).code, unit.exists()) == (1, True)
    house.fake("systemctl", "echo 'System has not been booted with systemd' >&2; exit 1")
    assert (house(*UNINSTALL).code, unit.exists(), link.is_symlink()) == (0, False, False)


def test_a_daemon_that_runs_by_hand_is_not_doubled(house: House) -> None:
    house.fake("systemctl", f'echo "$@" >> {house.px.folder}/systemctl')
    house("daemon", "start")
    ended = house(*INSTALL)
    assert (ended.code, "runs already" in ended.err) == (0, True)
    assert "start" not in (house.px.folder / "systemctl").read_text()


def test_launchd_gets_a_file_called_after_its_label(house: House) -> None:
    house.fake("launchctl", f'echo "$@" >> {house.px.folder}/launchctl')
    for command in (("install", "--on-demand"), ("uninstall",)):
        ended = house("daemon", *command, "--platform", "launchd")
        assert ended.code == 0, ended.err
    path = house.px.folder / f"Library/LaunchAgents/{LABEL}.plist"
    assert not path.exists()
    uid = os.getuid()
    done = (house.px.folder / "launchctl").read_text().splitlines()
    assert done == [f"bootstrap gui/{uid} {path}", f"bootout gui/{uid}/{LABEL}"]
