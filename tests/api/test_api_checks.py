"""What `doctor` looks at, each check with something right and something wrong to find; what each reason means."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisord_py.api import doctor as checks
from supervisord_py.api.doctor import FAIL, OK, WARN
from supervisord_py.api.why import KERNEL_MEANINGS, MEANINGS, meaning_of
from supervisord_py.process.model import Caps, Reason


def test_open_files_and_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_open_files(1).status == OK
    found = checks.check_open_files(10**9)
    assert (found.status, str(found.repair)[:10]) == (FAIL, "ulimit -n ")
    assert checks.check_disk(tmp_path / "gone").status == FAIL
    for free, verdict in ((10, FAIL), (500, WARN), (5000, OK)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free * checks.MEBIBYTE))
        assert checks.check_disk(tmp_path).status == verdict


@pytest.mark.parametrize(
    ("platform", "controllers", "said", "found"),
    [
        ("linux", ("cpu", "memory", "pids"), "the kernel holds", (OK, None)),
        ("linux", ("memory", "pids"), "`cpu_percent` is not held; in a unit", (WARN, "pxctl daemon install")),
        ("linux", (), "held by measuring (resident); `processes` counts all of", (WARN, "pxctl daemon install")),
        ("darwin", (), "`cpu_percent` is not held", (OK, None)),
    ],
)
def test_which_limits_the_kernel_holds(
    monkeypatch: pytest.MonkeyPatch, platform: str, controllers: tuple[str, ...], said: str, found: object
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    caps = Caps(1, 1.0, "boot", "cgroup", "resident", 0, controllers=controllers)
    told = list(checks.check_rungs(caps))[-1]
    assert (told.status, told.repair) == found
    assert said in told.detail


def test_an_environment_without_bytecode_is_told(tmp_path: Path) -> None:
    package = tmp_path / ".venv/lib/python3.11/site-packages/package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (found,) = checks.check_folder("x", tmp_path)
    assert (found.name, found.status, found.repair) == ("bytecode:x", WARN, "pxctl tools sync x")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "__init__.cpython-311.pyc").touch()
    assert list(checks.check_folder("x", tmp_path)) == []
    (tmp_path / ".env").touch(mode=0o644)
    (found,) = checks.check_folder("x", tmp_path)
    assert (found.name, found.status, found.repair) == ("dotenv:x", WARN, f"chmod 600 {tmp_path}/.env")


def test_every_reason_of_the_closed_list_has_a_meaning_and_a_next_step() -> None:
    assert set(MEANINGS) == set(Reason)
    for reason in Reason:
        for unit in ("tool:x", "kernel:x"):
            sentence, step = meaning_of(reason, unit)
            assert sentence
            assert step
            assert "{" not in step
    for sentence, step in KERNEL_MEANINGS.values():
        assert "tool" not in f"{sentence} {step}"
