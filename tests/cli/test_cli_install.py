"""Installing the service manager's unit: written once, never over somebody's changes, and the truth when it fails."""

from __future__ import annotations

import os
import plistlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cli.bin_house import House

UNIT = ".config/systemd/user/pxd.service"


def test_install_writes_and_enables_the_unit(house: House) -> None:
    house.fake("systemctl", f'echo "$@" >> {house.px.folder}/systemctl')
    ended = house("daemon", "install", "--platform", "systemd")
    assert ended.code == 0, ended.err
    assert (house.px.folder / UNIT).read_text() == "[Unit]\n"
    done = (house.px.folder / "systemctl").read_text().splitlines()
    done = [words for words in done if " show " not in words]
    assert done == ["--user daemon-reload", "--user enable pxd.service", "--user start pxd.service"]
    assert house("daemon", "install", "--json", "--platform", "systemd").json()["written"] is False
    assert house("daemon", "install", "-q", "--platform", "systemd").text.strip().endswith(UNIT)
    assert house("daemon", "uninstall", "--platform", "systemd").code == 0
    assert not (house.px.folder / UNIT).exists()
    done = (house.px.folder / "systemctl").read_text().splitlines()
    assert "--user disable --now pxd.service" in done
    assert done[-1] == "--user daemon-reload"
    ended = house("daemon", "uninstall", "--platform", "systemd")
    assert (ended.code, ended.out) == (0, b"")
    assert house("daemon", "uninstall", "--json", "--platform", "systemd").json()["removed"] == []


def test_a_unit_that_differs_is_not_overwritten_unasked(house: House) -> None:
    house.fake("systemctl", "exit 0")
    path = house.px.folder / "xdg/systemd/user/pxd.service"
    path.parent.mkdir(parents=True)
    path.write_text("[Mine]\n")
    env = {"XDG_CONFIG_HOME": str(house.px.folder / "xdg")}
    ended = house("daemon", "install", "--platform", "systemd", **env)
    assert ended.code == 8
    assert "--force" in ended.err
    assert path.read_text() == "[Mine]\n"
    assert house("daemon", "install", "--force", "--platform", "systemd", **env).code == 0
    assert path.read_text() == "[Unit]\n"


def test_printing_changes_nothing(house: House) -> None:
    assert house("daemon", "install", "--print", "--platform", "systemd").text == "[Unit]\n"
    told = house("daemon", "install", "--print", "--json", "--platform", "systemd").json()
    assert told["text"] == "[Unit]\n"
    assert not (house.px.folder / UNIT).exists()
    assert house.calls[0]["argv"] == ["--print-unit", "systemd"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'System has not been booted with systemd as init system' >&2; exit 1", "systemctl does not run here"),
        ("echo 'Failed to connect to bus: No medium found' >&2; exit 1", "systemctl does not run here"),
        ("echo Version=232", "this is systemd 232; the unit needs systemd 235"),
        ('[ "$2" != enable ] || { echo Unit is masked >&2; exit 1; }', "Unit is masked"),
        ('[ "$2" = show ] || exit 3', "exit code 3"),
    ],
)
def test_a_service_manager_that_fails_is_told_and_nothing_is_left(house: House, script: str, words: str) -> None:
    house.fake("systemctl", script)
    ended = house("daemon", "install", "--platform", "systemd")
    assert ended.code == 1
    assert words in ended.err
    assert not (house.px.folder / ".config").exists()


def test_an_uninstall_without_a_manager_removes_the_files_all_the_same(house: House) -> None:
    unit = house.px.folder / UNIT
    link = unit.parent / "default.target.wants/pxd.service"
    link.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    link.symlink_to(unit)
    house.fake("systemctl", "echo 'Unit is masked' >&2; exit 1")
    assert house("daemon", "uninstall", "--platform", "systemd").code == 1
    assert unit.exists()
    house.fake("systemctl", "echo 'System has not been booted with systemd' >&2; exit 1")
    assert house("daemon", "uninstall", "--platform", "systemd").code == 0
    assert not unit.exists()
    assert not link.is_symlink()


def test_a_daemon_that_runs_by_hand_is_not_doubled(house: House) -> None:
    house.fake("systemctl", f'echo "$@" >> {house.px.folder}/systemctl')
    house("daemon", "start")
    ended = house("daemon", "install", "--platform", "systemd")
    assert ended.code == 0
    done = (house.px.folder / "systemctl").read_text()
    assert "--user enable pxd.service\n" in done
    assert "start" not in done
    assert "runs already" in ended.err


def test_launchd_gets_a_file_called_after_its_label(house: House) -> None:
    house.fake("launchctl", f'echo "$@" >> {house.px.folder}/launchctl')
    text = plistlib.dumps({"Label": "org.example.pxd"}).decode()
    for command in (("install", "--on-demand"), ("uninstall",)):
        ended = house("daemon", *command, "--platform", "launchd", FAKE_UNIT=text)
        assert ended.code == 0, ended.err
    path = house.px.folder / "Library/LaunchAgents/org.example.pxd.plist"
    assert not path.exists()
    uid = os.getuid()
    done = (house.px.folder / "launchctl").read_text().splitlines()
    assert done == [f"bootstrap gui/{uid} {path}", f"bootout gui/{uid}/org.example.pxd"]
