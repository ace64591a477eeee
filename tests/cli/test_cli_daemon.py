"""Starting, stopping, restarting, installing the daemon: one daemon, whatever happens, and the
truth about it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from cli.fake_daemon import FakeDaemon, document
from cli.px import House, Px
from supervisord_py.daemon.service_files import LABEL

UNIT = ".config/systemd/user/pxd.service"
INSTALL, UNINSTALL = (
    ("daemon", verb, "--platform", "systemd") for verb in ("install", "uninstall")
)


def test_a_daemon_is_started_detached_and_stopped_with_its_children_and_what_waits_is_told(
    house: House,
) -> None:
    old = os.umask(0)
    try:
        ended = house("daemon", "start")
    finally:
        os.umask(old)
    assert (ended.code, "started (pid " in ended.text) == (0, True), ended.err
    home = house.px.folder
    assert json.loads((home / "calls").read_text()) == {"argv": [], "umask": 0, "sid": True}, (
        "the user's, which tools get"
    )
    log = home / "px/state/logs/pxd.log"
    assert [path.stat().st_mode & 0o777 for path in (log, *list(log.parents)[:2])] == [
        0o600,
        0o700,
        0o700,
    ]
    ended = house("daemon", "stop")
    assert (ended.code, ended.text) == (0, "pxd stopped\n")
    assert "wait in line: 2;" in ended.err, "what a tool's callers wait for is not kept"
    ended = house("daemon", "stop")
    assert (ended.code, ended.out, "does not run" in ended.err) == (0, b"", True)


@pytest.mark.parametrize("place", ["state", "state/logs", "state/logs/pxd.log"])
@pytest.mark.parametrize("kind", ["link", "foreign", "fifo", "second name"])
def test_the_log_is_written_through_nothing_that_is_not_ours(
    house: House, tmp_path: Path, require_root: None, place: str, kind: str
) -> None:
    """Twice: what the first try left must not let the second one through."""
    path, victim = house.px.folder / "px" / place, tmp_path / "victim"
    path.parent.mkdir(parents=True)
    is_file = path.name == "pxd.log"
    if kind in {"fifo", "second name"} and not is_file:
        return
    if kind == "link":
        path.symlink_to(victim)
        if not is_file:
            victim.mkdir()
    elif kind == "foreign":
        path.touch() if is_file else path.mkdir()
        os.chown(path, 65534, 65534)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        victim.write_text("")
        path.hardlink_to(victim)
    for _ in (1, 2):
        ended = house("daemon", "start")
        assert (ended.code, str(path) in ended.err, "ls -ld" in ended.err) == (6, True, True), (
            ended.err
        )
    assert not victim.exists() or not (
        list(victim.iterdir()) if victim.is_dir() else victim.read_text()
    )
    assert not (house.px.folder / "calls").exists(), "pxd was not even started"


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        (
            "exit78",
            1,
            ["stderr: setting pxd.toml:3: [tols] is not known", "hint: pxctl config check"],
        ),
        ("exit1", 1, ["stderr: setting pxd.toml:3: [tols] is not known", "hint: pxctl doctor"]),
        ("exit8", 8, ["another pxd holds its directories", "PX_HOME"]),
        ("silent", 7, ["not answered within 1 s"]),
    ],
)
def test_a_daemon_that_does_not_come_up_says_why(
    house: House, how: str, code: int, words: list[str]
) -> None:
    seconds = {"silent": "1", "exit8": "5"}.get(how, "60")  # of two it is waited for the end
    ended = house("daemon", "start", "--timeout", seconds, FAKE_PXD=how)
    for pid in re.findall(r"pid (\d+)\)", ended.err):
        os.kill(int(pid), signal.SIGKILL)
    assert (ended.code, [word for word in words if word not in ended.err]) == (code, [])
    assert ended.err.startswith("pxctl: cannot start pxd: ")


def test_no_pxd_anywhere(px: Px) -> None:
    code = (
        "import sys; sys.executable = '/no/python'; from pxctl.main import main; "
        "sys.exit(main(['daemon', 'start']))"
    )
    ended = px(argv=[sys.executable, "-c", code], PATH="/nowhere")
    assert (ended.code, "neither beside pxctl nor on PATH" in ended.err) == (5, True)


def test_the_stop_of_a_daemon_without_a_control_plane_says_how_to_end_it(px: Px) -> None:
    quick = "import sys; from pxctl import service, main; service._READ_SECONDS = 0.2; "
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.bind(f"{px.folder}/s")
        keeper.listen()
        ended = px(argv=[sys.executable, "-c", f"{quick}sys.exit(main.main(['daemon', 'stop']))"])
    assert (ended.code, "hint: kill $(cut -d' ' -f1 " in ended.err) == (7, True)


def test_stop_names_what_survived(house: House) -> None:
    house("daemon", "start", FAKE_PXD="keeps")
    unit = house("status", "--json").json()["units"][0]
    try:
        ended = house("daemon", "stop", "--timeout", "1")
        assert (ended.code, f"survived: pid {unit['pid']} (tool:a)" in ended.err) == (8, True)
    finally:
        os.kill(unit["pid"], signal.SIGKILL)


def test_a_restart_that_does_not_happen_exits_7_and_one_without_an_answer_is_one(
    house: House,
) -> None:
    house("daemon", "start")
    before = house("daemon", "status", "--json").json()
    assert house("daemon", "restart", "--json").json()["control"]["pid"] != before["control"]["pid"]
    for seconds in ("1", "5", "30"):
        ended = house("daemon", "restart", "--timeout", seconds)
        if "no new control plane" in ended.err:  # a short time may be over before that
            break
    assert (ended.code, "no new control plane" in ended.err) == (7, True)


def test_daemon_status_tells_both_processes_and_what_is_wrong(px: Px, daemon: FakeDaemon) -> None:
    keeper = {"pid": 5, "rss_bytes": 1024, "started_at": "2026-01-01T00:00:00Z", "version": "1"}
    facts = {
        "version": "1", "socket": "/s", "kill_rung": "cgroup", "stopping": True, "keeper": keeper,
        "control": keeper | {"pid": 6, "restarts": 1},
        "interrupted": [{"unit": "tool:a", "pid": 9}],
        "degraded": [{"part": "ledger", "detail": "disk full"}],
    }  # fmt: skip
    daemon.on("GET /api/daemon", document(facts))
    ended = px("daemon", "status")
    for words in (
        "pid 5, 1.0K, started",
        "restarted 1x",
        "cgroup",
        "stopping",
        "tool:a (pid 9)",
        "ledger: disk full",
    ):
        assert words in ended.text


@pytest.mark.parametrize(("code", "wanted"), [(78, 1), (2, 2), (137, 1)])
def test_how_pxd_ends_over_its_settings_becomes_a_code_of_the_client(
    house: House, code: int, wanted: int
) -> None:
    ended = house("config", "check", FAKE_PXD=f"exit{code}")
    assert ended.code == wanted
    assert ended.err.startswith(
        "pxctl: cannot check the settings: setting pxd.toml:3: [tols] is not known\nhint: "
    )


# -- as a service; with a real systemd: tests/e2e --------------------------------------------------


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
    assert (ended.code, "--force" in ended.err, (house.px.folder / UNIT).read_text()) == (
        8,
        True,
        "[Mine]\n",
    )
    assert house(*INSTALL, "--force").code == 0
    assert house(*UNINSTALL).code == 0
    assert not (house.px.folder / UNIT).exists()
    assert "--user disable --now pxd.service" in asked.read_text().splitlines()
    assert "nothing to do" in house(*UNINSTALL).err
    asked.unlink()
    house("daemon", "start")
    ended = house(*INSTALL)
    assert (ended.code, "runs already" in ended.err, " start " in asked.read_text()) == (
        0,
        True,
        False,
    )


def test_a_unit_that_differs_only_in_its_path_is_kept(house: House) -> None:
    house.fake("systemctl", "exit 0")
    units = [f'[Unit]\nEnvironment="PATH=/{folder} b:/bin"\nUMask=0022' for folder in ("a", "c")]
    assert house(*INSTALL, FAKE_UNIT=units[0]).code == 0
    assert house(*INSTALL, FAKE_UNIT=units[1]).code == 0, "another shell has another PATH"
    assert (house.px.folder / UNIT).read_text() == f"{units[0]}\n"
    assert house(*INSTALL, FAKE_UNIT=units[1].replace("0022", "0077")).code == 8, (
        "more than that differs"
    )
    assert house(*INSTALL, "--force", FAKE_UNIT=units[1]).code == 0
    assert (house.px.folder / UNIT).read_text() == f"{units[1]}\n"
    assert house(*INSTALL, "--force", FAKE_UNIT="[Unit]\nUMask=0022").code == 0
    assert house(*INSTALL, FAKE_UNIT=units[1]).code == 8, "one has none"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo Version=232", "this is systemd 232; the unit needs systemd 235"),
        ('[ "$2" != enable ] || { echo Unit is masked >&2; exit 1; }', "Unit is masked"),
    ],
)
def test_a_service_manager_that_fails_is_told_and_nothing_is_left(
    house: House, script: str, words: str
) -> None:
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
    house.fake("systemctl", "echo 'System has not been booted with systemd' >&2; exit 1")
    assert (house(*UNINSTALL).code, unit.exists(), link.is_symlink()) == (0, False, False)


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
