"""What `doctor` looks at, each check with something right and something wrong to find; what each reason means."""

from __future__ import annotations

import resource
import shutil
from types import SimpleNamespace

import pytest

from api.api_rig import Rig
from supervisord_py.api import daemon as checks
from supervisord_py.api.daemon import FAIL, OK, WARN
from supervisord_py.api.status import KERNEL_MEANINGS, MEANINGS, meaning_of
from supervisord_py.process.model import Caps, Reason


@pytest.mark.parametrize(
    ("files", "mebibytes", "mode", "verdicts"),
    [(4096, 5000, 0o600, [OK, OK]), (128, 500, 0o644, [FAIL, WARN, WARN]), (4096, 10, 0o600, [OK, FAIL])],
)
async def test_open_files_disk_space_and_secrets(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, files: int, mebibytes: int, mode: int, verdicts: list[str]
) -> None:
    (rig.add_tool("x") / ".env").touch(mode=mode)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=mebibytes * checks.MEBIBYTE))
    found = list(checks.check_machine(rig.context))
    assert [one.status for one in found] == verdicts
    repairs = {"open_files": "ulimit -n 288 && ", "disk": "du -sh ", "dotenv:x": "chmod 600 "}
    assert all((one.repair or "").startswith(repairs[one.name]) is (one.status != OK) for one in found)


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
    told = list(checks.check_rungs(Caps(1, 1.0, "boot", "cgroup", "resident", 0, controllers=controllers)))[-1]
    assert ((told.status, told.repair), said in told.detail) == (found, True)


def test_every_reason_of_the_closed_list_has_a_meaning_and_a_next_step() -> None:
    assert set(MEANINGS) == set(Reason)
    for sentence, step in (meaning_of(reason, unit) for reason in Reason for unit in ("tool:x", "kernel:x")):
        assert (bool(sentence and step), "{" in step) == (True, False)
    assert "tool" not in str(KERNEL_MEANINGS)
