"""Limits that the kernel holds, on one of its own: below the machine's unit, a user's, and where nothing is ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]  # everything is some ten times slower there

HERE = Path(__file__).parent
BOOT_SECONDS = 800
NO_KERNEL = 125
MB = 1 << 20
ALL = {"kill_rung": "cgroup", "memory_rung": "cgroup", "controllers": ["cpu", "memory", "pids"], "doctor": ["ok", None]}


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What `cgroups_inside.py` saw; one boot for all."""
    require: Callable[[object, str], None] = request.getfixturevalue("require")
    require(os.geteuid() == 0, "NOT SHOWN: limits of cgroups; a kernel of its own sees all files as root only")
    require(shutil.which("linux.uml"), "NOT SHOWN: limits of cgroups; needs user-mode-linux")
    with tempfile.TemporaryDirectory(prefix="pxuml-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        code, said = played(Path(folder))
        require(code != NO_KERNEL, f"NOT SHOWN: limits of cgroups; the kernel does not boot here: {said}")
        assert code == 0, said
        yield json.loads((Path(folder) / "share" / "seen.json").read_text())


def played(folder: Path) -> tuple[int, str]:
    """Return the exit code of own_kernel.sh, and the last of what was said."""
    words = ["bash", HERE / "own_kernel.sh", folder, sys.executable, HERE / "cgroups_inside.py"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as kernel:
        try:
            _, said = kernel.communicate(timeout=BOOT_SECONDS)
        finally:
            for path in (folder / "uml").glob("*/pid"):  # late, or cut off: it leads a group of its own
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(path.read_text()), signal.SIGKILL)
    out = folder / "share" / "out"
    return kernel.returncode, said + (out.read_text(errors="replace")[-4000:] if out.exists() else "")


def bounded(forked: int) -> bool:
    """Say whether a limit of 20 was in force: some of them are the tool itself and its threads."""
    return 10 < forked < 20


@pytest.fixture
def unit(seen: dict[str, Any]) -> dict[str, Any]:
    return seen["machines_unit"]


def test_units_have_every_controller_and_who_is_not_alone_none(seen: dict[str, Any], unit: dict[str, Any]) -> None:
    assert unit["rungs"] == ALL
    assert seen["users_unit"] == ALL
    half = {"kill_rung": "cgroup", "memory_rung": "resident", "controllers": [], "ran": 1}
    assert seen["not_alone"] == {**half, "doctor": ["warn", "pxctl daemon install"]}


def test_the_kernel_ends_who_is_over_its_limit_of_memory_and_the_ledger_has_the_peak(unit: dict[str, Any]) -> None:
    assert unit["eaten"] == 0
    problem, why = unit["too_much"], unit["why"]
    assert (problem["title"], problem["reason"]) == ("ResourceLimitExceeded", "memory_limit")
    assert (why["reason"], why["signal"], why["verdict"]["by"]) == ("memory_limit", signal.SIGKILL, "cgroup")
    assert why["verdict"]["limit_bytes"] == 200 * MB
    assert 190 * MB < why["memory_peak_bytes"] == why["verdict"]["rss_bytes"] <= 200 * MB


def test_who_dies_of_a_limit_above_its_own_was_not_over_it(unit: dict[str, Any]) -> None:
    why = unit["from_above"]
    assert (why["reason"], why["signal"], why["verdict"]["by"]) == ("oom_kill", signal.SIGKILL, "cgroup")
    assert unit["keeper_lives"]


def test_processes_are_counted_by_tool_and_root_is_bound_too(unit: dict[str, Any]) -> None:
    assert bounded(unit["forked"])


def test_a_tool_gets_no_more_of_a_processor_than_it_is_allowed(unit: dict[str, Any]) -> None:
    assert 0.05 < unit["burnt"] < 0.3


def test_kernels_and_pipes_are_held_as_tools_are(unit: dict[str, Any]) -> None:
    assert unit["shell"] == [str(4096 * MB), "60", "70000", "100000"]
    assert unit["pipe"] == [str(64 * MB), "30", "40000", "100000"]


def test_one_write_ends_what_keeps_moving(unit: dict[str, Any]) -> None:
    assert unit["bomb"] == [True, 0, False]


def test_limits_outlive_whatever_replaces_the_processes(unit: dict[str, Any]) -> None:
    forked, kept = unit["after_reload"]
    assert bounded(forked)
    assert kept, "the same process"
    for event in ("after_kill", "after_restart"):
        rungs, forked = unit[event]
        assert (rungs, bounded(forked)) == (ALL, True), event
    assert unit["result"] == "success"
