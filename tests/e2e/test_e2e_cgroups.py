"""Limits that the kernel holds, on one of its own: below the machine's unit, a user's, and where
nothing is ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# everything is some ten times slower there
pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
BOOT_SECONDS = 800
NO_KERNEL = 125
MB = 1 << 20
ALL = {
    "kill_rung": "cgroup",
    "memory_rung": "cgroup",
    "controllers": ["cpu", "memory", "pids"],
    "doctor": ["ok", None],
}


@pytest.fixture(scope="module")
def seen(require: Callable[[object, str], None]) -> Iterator[dict[str, Any]]:
    """What `cgroups_inside.py` saw; one boot for all."""
    require(
        os.geteuid() == 0,
        "NOT SHOWN: limits of cgroups; a kernel of its own sees all files as root only",
    )
    require(shutil.which("linux.uml"), "NOT SHOWN: limits of cgroups; needs user-mode-linux")
    with tempfile.TemporaryDirectory(
        prefix="pxuml-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        code, said = played(Path(folder))
        require(
            code != NO_KERNEL,
            f"NOT SHOWN: limits of cgroups; the kernel does not boot here: {said}",
        )
        assert code == 0, said
        yield json.loads((Path(folder) / "share" / "seen.json").read_text())


def played(folder: Path) -> tuple[int, str]:
    """Return the exit code of own_kernel.sh, and the last of what was said."""
    words = ["bash", HERE / "own_kernel.sh", folder, sys.executable, HERE / "cgroups_inside.py"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as kernel:
        try:
            _, said = kernel.communicate(timeout=BOOT_SECONDS)
        finally:
            # late, or cut off: it leads a group of its own
            for path in (folder / "uml").glob("*/pid"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(path.read_text()), signal.SIGKILL)
    out = folder / "share" / "out"
    return kernel.returncode, said + (
        out.read_text(errors="replace")[-4000:] if out.exists() else ""
    )


def bounded(forked: int) -> bool:
    """Say whether a limit of 20 was in force: some of them are the tool itself and its threads."""
    return 10 < forked < 20


def test_units_have_every_controller_and_who_is_not_alone_none(seen: dict[str, Any]) -> None:
    assert seen["machines_unit"]["rungs"] == seen["users_unit"] == ALL
    half = {"kill_rung": "cgroup", "memory_rung": "resident", "controllers": [], "ran": 1}
    assert seen["not_alone"] == {**half, "doctor": ["warn", "pxctl daemon install"]}


def test_the_kernel_ends_who_is_over_its_limit_of_memory_and_the_ledger_has_the_peak(
    seen: dict[str, Any],
) -> None:
    unit = seen["machines_unit"]
    problem, why = unit["too_much"], unit["why"]
    assert (unit["eaten"], problem["title"], problem["reason"]) == (
        0,
        "ResourceLimitExceeded",
        "memory_limit",
    )
    assert (why["reason"], why["signal"], why["verdict"]["by"]) == (
        "memory_limit",
        signal.SIGKILL,
        "cgroup",
    )
    assert why["verdict"]["limit_bytes"] == 200 * MB
    assert 190 * MB < why["memory_peak_bytes"] == why["verdict"]["rss_bytes"] <= 200 * MB
    why = unit["from_above"]  # who dies of a limit above its own was not over it
    assert (why["reason"], why["signal"], why["verdict"]["by"]) == (
        "oom_kill",
        signal.SIGKILL,
        "cgroup",
    )
    assert unit["keeper_lives"]


def test_processes_and_processors_are_counted_by_unit_and_nothing_that_replaces_processes_lifts_a_limit(
    seen: dict[str, Any],
) -> None:
    unit = seen["machines_unit"]
    assert bounded(unit["forked"]), "root is bound, too"
    assert 0.05 < unit["burnt"] < 0.3, "of a processor"
    assert unit["shell"] == [str(4096 * MB), "60", "70000", "100000"]
    assert unit["pipe"] == [str(64 * MB), "30", "40000", "100000"]
    assert unit["bomb"] == [True, 0, False], "one write ends what keeps moving"
    forked, kept = unit["after_reload"]
    assert (bounded(forked), kept) == (True, True), "the same process"
    for event in ("after_kill", "after_restart"):
        rungs, forked = unit[event]
        assert (rungs, bounded(forked)) == (ALL, True), event
    assert unit["result"] == "success"
