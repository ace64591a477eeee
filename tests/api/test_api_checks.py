"""What `doctor` looks at: each check alone, with something right and something wrong to find."""

from __future__ import annotations

import os
import pwd
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from supervisord_py.api import doctor as checks
from supervisord_py.api.doctor import FAIL, OK, WARN
from supervisord_py.api.why import MEANINGS, meaning_of
from supervisord_py.process.model import Caps, Reason

if TYPE_CHECKING:
    from pathlib import Path


def caps(kill: str = "cgroup", memory: str = "cgroup") -> Caps:
    return Caps(1, 0.0, "boot", kill, memory, 0)


@pytest.mark.parametrize(("rung", "verdict"), [("cgroup", OK), ("subreaper", OK), ("process_group", WARN)])
def test_kill_rungs(rung: str, verdict: str) -> None:
    found = checks.check_kill_rung(caps(kill=rung))
    assert (found.status, found.repair is None) == (verdict, verdict == OK)
    assert rung in found.detail


@pytest.mark.parametrize(("rung", "verdict"), [("cgroup", OK), ("sampled", OK), ("none", FAIL)])
def test_memory_rungs(rung: str, verdict: str) -> None:
    assert checks.check_memory_rung(caps(memory=rung)).status == verdict


def test_what_an_earlier_keeper_left_is_told() -> None:
    assert checks.check_interrupted([]).status == OK
    found = checks.check_interrupted(["tool:x"])
    assert found.status == WARN
    assert "one child, which was stopped: tool:x" in found.detail
    several = checks.check_interrupted(["tool:y", "tool:x", "tool:x"])
    assert "3 children, which were stopped: tool:x, tool:y" in several.detail


def test_open_files_are_compared_with_the_number_of_tools() -> None:
    assert checks.check_open_files(1).status == OK
    found = checks.check_open_files(10**9)
    assert found.status == FAIL
    assert (found.repair or "").startswith("ulimit -n ")


@pytest.mark.parametrize(("free", "verdict"), [(10, FAIL), (500, WARN), (5000, OK)])
def test_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * checks.MEBIBYTE))
    assert checks.check_disk(tmp_path).status == verdict


def test_a_state_directory_that_is_gone(tmp_path: Path) -> None:
    assert checks.check_disk(tmp_path / "gone").status == FAIL


def test_modes(tmp_path: Path) -> None:
    private, shared, folder = tmp_path / "private", tmp_path / "shared", tmp_path / "folder"
    for path, mode in ((private, 0o600), (shared, 0o644)):
        path.touch()
        path.chmod(mode)
    folder.mkdir()
    folder.chmod(0o755)
    found = {one.name: one for one in checks.check_modes([private, shared, folder, tmp_path / "gone"])}
    assert {name: one.status for name, one in found.items()} == {
        "mode:private": OK,
        "mode:shared": FAIL,
        "mode:folder": FAIL,
        "mode:gone": FAIL,
    }
    assert found["mode:shared"].repair == f"chmod 600 {shared}"
    assert found["mode:folder"].repair == f"chmod 700 {folder}"


def test_somebody_elses_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "theirs"
    path.touch()
    path.chmod(0o600)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    [found] = checks.check_modes([path])
    assert found.status == FAIL
    assert found.repair == f"chown {own + 1} {path}"


def test_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/uv")
    assert checks.check_uv().status == OK
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert checks.check_uv().status == WARN


def test_secrets_that_others_may_read_are_found(tmp_path: Path) -> None:
    assert checks.check_dotenv("x", tmp_path) is None
    path = tmp_path / ".env"
    path.touch()
    path.chmod(0o666)
    found = checks.check_dotenv("x", tmp_path)
    assert found is not None
    assert (found.status, found.repair) == (WARN, f"chmod 600 {path}")
    path.chmod(0o600)
    assert checks.check_dotenv("x", tmp_path) is None


def test_an_environment_without_bytecode_is_found(tmp_path: Path) -> None:
    assert checks.check_bytecode("x", tmp_path) is None
    package = tmp_path / ".venv/lib/python3.11/site-packages/package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    found = checks.check_bytecode("x", tmp_path)
    assert found is not None
    assert (found.status, found.repair) == (WARN, "pxctl tools sync x")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "__init__.cpython-311.pyc").touch()
    found = checks.check_bytecode("x", tmp_path)
    assert found is not None
    assert found.status == OK


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", "config/systemd/user/pxd.service"), ("darwin", "home/Library/LaunchAgents/org.example.pxd.plist")],
)
def test_the_service_unit(tmp_path: Path, platform: str, place: str) -> None:
    home, config = tmp_path / "home", tmp_path / "config"
    found = checks.check_service_unit(home, config, platform=platform)
    assert (found.status, found.repair) == (WARN, "pxctl daemon install")
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).touch()
    assert checks.check_service_unit(home, config, platform=platform).status == OK


def test_linger_matters_only_for_a_users_unit_under_systemd(tmp_path: Path) -> None:
    config, linger, systemd = tmp_path / "config", tmp_path / "linger", tmp_path / "systemd"
    assert checks.check_linger(config, linger=linger, systemd=systemd) is None
    systemd.mkdir()
    assert checks.check_linger(config, linger=linger, systemd=systemd) is None
    (config / "systemd/user").mkdir(parents=True)
    (config / "systemd/user/pxd.service").touch()
    user = pwd.getpwuid(os.geteuid()).pw_name
    found = checks.check_linger(config, linger=linger, systemd=systemd)
    assert found is not None
    assert (found.status, found.repair) == (WARN, f"loginctl enable-linger {user}")
    linger.mkdir()
    (linger / user).touch()
    found = checks.check_linger(config, linger=linger, systemd=systemd)
    assert found is not None
    assert found.status == OK


def test_every_reason_of_the_closed_list_has_a_meaning_and_a_next_step() -> None:
    assert set(MEANINGS) == set(Reason)
    for reason in Reason:
        for unit in ("tool:x", "kernel:x"):
            sentence, step = meaning_of(reason, unit)
            assert sentence
            assert step
            assert "{" not in step
