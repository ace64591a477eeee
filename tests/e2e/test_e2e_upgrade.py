"""A newer version, installed over a running daemon: keeper and control plane become it, what they hold goes on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.house import server, until
from e2e.pipe_house import DONE, PipeHouse, pipes_house, whole

PACKAGE = Path(__file__).parents[2] / "supervisord_py"
BOTH = ("keeper", "control")


@pytest.fixture
def copied() -> Iterator[PipeHouse]:
    """A daemon that runs from a copy of the package, in which a test installs the next version."""
    with pipes_house(start=False) as home:
        shutil.copytree(PACKAGE, home.home / "lib" / "supervisord_py", ignore=shutil.ignore_patterns("__pycache__"))
        home.settings = {**home.settings, "PYTHONPATH": str(home.home / "lib")}
        yield home


def install(home: PipeHouse, version: str) -> None:
    file = home.home / "lib" / "supervisord_py" / "__init__.py"
    head, _, _ = file.read_text().partition("__version__")
    file.write_text(f'{head}__version__ = "{version}"\n')


def versions(home: PipeHouse) -> list[str]:
    daemon: dict[str, Any] = home.get("/api/daemon")
    return [daemon[part]["version"] for part in BOTH]


@pytest.mark.parametrize("how", ["restart", "hangup"])
def test_an_upgrade_keeps_what_is_held(copied: PipeHouse, how: str) -> None:
    """Warm tool, variables of a kernel and a running execution, with their pids; no line of output is lost."""
    home = copied
    home.tool("echo", server("return {'pid': os.getpid()}"))
    go = home.home / "go"
    home.shell("counts", f"n=0; while [ ! -e {go} ]; do echo line $n; n=$((n+1)); sleep 0.001; done; echo END $n")
    home.start()
    before = versions(home)
    tool = home.run("echo").json()["pid"]
    assert home.pxctl("exec", "import os; x = os.getpid()").returncode == 0
    number = home.begin("counts").id
    agent = home.started(number).pid
    keeper, control = home.pids()
    install(home, "9.9.9")
    if how == "restart":
        assert home.pxctl("daemon", "restart").returncode == 0
    else:  # as `systemctl reload`
        os.kill(keeper, signal.SIGHUP)
    until(lambda: home.answers() and versions(home) == ["9.9.9"] * 2, f"{before} became 9.9.9; {home.said()}")
    assert home.pids()[0] == keeper != control
    assert home.run("echo").json()["pid"] == tool
    assert "True" in home.pxctl("exec", "print(os.getpid() == x)").stdout
    assert home.row(number).pid == agent
    go.touch()
    assert home.ended(number).ended == DONE
    whole(home.output(number).decode())
    assert "9.9.9" in home.pxctl("daemon", "status").stdout


def test_a_version_that_cannot_take_over_is_refused(copied: PipeHouse) -> None:
    home = copied
    home.start()
    before, pids = versions(home), home.pids()
    install(home, "9.9.9")
    source = home.home / "lib" / "supervisord_py" / "keeper" / "handover.py"
    source.write_text(source.read_text().replace("FORMAT = 1 ", "FORMAT = 2 "))
    refused = home.pxctl("daemon", "restart")
    assert refused.returncode == 8
    assert "9.9.9 cannot take over: ValueError: its format is 1, 9.9.9 reads 2" in refused.stderr
    assert "pxctl daemon restart --all" in refused.stderr
    assert (versions(home), home.pids()) == (before, pids)
