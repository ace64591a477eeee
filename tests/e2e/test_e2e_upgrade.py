"""A newer version is installed over a running daemon: it takes over with all that is held, or
nothing changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.house import BROKEN_OFF, alive, server, until
from e2e.pipe_house import DONE, PipeHouse, pipes_house, whole
from rounds import DEEP, mostly_deep

PACKAGE = Path(__file__).parents[2] / "supervisord_py"


@pytest.fixture
def copied() -> Iterator[PipeHouse]:
    """A daemon that runs from a copy of the package, in which a test installs the next version."""
    with pipes_house(start=False) as home:
        shutil.copytree(
            PACKAGE,
            home.home / "lib" / "supervisord_py",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        home.settings = {**home.settings, "PYTHONPATH": str(home.home / "lib")}
        yield home


def install(home: PipeHouse, version: str) -> None:
    file = home.home / "lib" / "supervisord_py" / "__init__.py"
    head, _, _ = file.read_text().partition("__version__")
    file.write_text(f'{head}__version__ = "{version}"\n')


def versions(home: PipeHouse) -> list[str]:
    daemon: dict[str, Any] = home.get("/api/daemon")
    return [daemon[part]["version"] for part in ("keeper", "control")]


@pytest.mark.parametrize("how", ["restart", "hangup"])
def test_an_upgrade_keeps_what_is_held(copied: PipeHouse, how: str) -> None:
    """Warm tool, variables of a kernel and a running execution, with their pids; no line of
    output is lost.
    """
    home = copied
    home.tool("echo", server("return {'pid': os.getpid()}"))
    go = home.home / "go"
    home.shell(
        "counts",
        f"n=0; while [ ! -e {go} ]; do echo line $n; n=$((n+1)); sleep 0.001; done; echo END $n",
    )
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

    def upgraded() -> bool:
        with suppress(OSError):  # of the control plane that goes
            return home.answers() and versions(home) == ["9.9.9"] * 2
        return False

    until(upgraded, f"{before} became 9.9.9; {home.said()}")
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
    source.write_text(source.read_text().replace("FORMAT = 1\n", "FORMAT = 2\n"))
    refused = home.pxctl("daemon", "restart")
    assert refused.returncode == 8
    assert (
        "9.9.9 cannot take over: the format of the hand-over is 1, 9.9.9 reads 2" in refused.stderr
    )
    assert "pxctl daemon restart --all" in refused.stderr
    assert (versions(home), home.pids()) == (before, pids)


# -- several times in a row ------------------------------------------------------------------------


def upgrade(home: PipeHouse, version: str) -> None:
    install(home, version)
    restarted = home.pxctl("daemon", "restart")
    assert restarted.returncode == 0, (restarted.stderr, home.said())
    until(
        lambda: home.answers() and versions(home) == [version] * 2,
        f"version {version}; {home.said()}",
    )


def test_upgrades_in_a_row_keep_the_daemon_whatever_ended_between_them(copied: PipeHouse) -> None:
    """What an earlier version inherited is closed one by one: a child ends, a socket is dropped,
    a zygote goes.
    """
    home = copied
    for name in ("stays", "goes"):
        home.tool(name, server("return {'pid': os.getpid()}"))
    home.start()
    keeper = home.pids()[0]
    stays = home.run("stays").json()["pid"]
    for number in range(20 if DEEP else 3):
        goes = home.run("goes").json()["pid"]
        upgrade(home, f"9.9.{number}")
        assert home.pids()[0] == keeper
        assert home.run("goes").json()["pid"] == goes
        assert home.pxctl("stop", "goes").returncode == 0
        assert not alive(goes)
        assert home.pxctl("exec", "1").returncode == 0
        assert home.run("stays").json()["pid"] == stays


class Callers:
    """Clients that call a tool again and again until the end of the block; `failures` has what
    was not answered.
    """

    def __init__(self, home: PipeHouse, tool: str, pid: int, count: int) -> None:
        self.answers = 0
        self.failures: list[object] = []
        self._home = home
        self._tool = tool
        self._pid = pid
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(count)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        while not self._is_over.is_set():
            try:
                answer = self._home.run(self._tool)
            except BROKEN_OFF as error:
                self.failures.append(error)
                continue
            if answer.status == 200 and answer.json() == {"pid": self._pid}:
                self.answers += 1
            else:
                self.failures.append(answer)


@pytest.mark.timeout(600)  # twenty of them in the deep run
def test_upgrades_in_a_row_under_load_lose_no_call(copied: PipeHouse) -> None:
    """Four clients call a warm tool all the time, and an execution writes; each upgrade keeps
    every call and line.
    """
    home = copied
    home.tool("echo", server("return {'pid': os.getpid()}"))
    go = home.home / "go"
    home.shell(
        "counts",
        f"n=0; while [ ! -e {go} ]; do echo line $n; n=$((n+1)); sleep 0.01; done; echo END $n",
    )
    home.start()
    keeper = home.pids()[0]
    tool = home.run("echo").json()["pid"]
    number = home.begin("counts").id
    agent = home.started(number).pid
    with Callers(home, "echo", tool, 4) as callers:
        for count in range(20 if DEEP else 2):
            before = callers.answers
            upgrade(home, f"9.9.{count}")
            until(lambda before=before: callers.answers > before, "calls are answered")
            assert not callers.failures
    assert not callers.failures
    assert home.pids()[0] == keeper
    assert home.row(number).pid == agent
    go.touch()
    assert home.ended(number).ended == DONE
    whole(home.output(number).decode())


# -- a version that is broken ----------------------------------------------------------------------

BROKEN_SOURCE = "\ndef broken(:\n"
MODULES = [
    *sorted(
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / "keeper").glob("*.py")
        if path.stem != "__init__"
    ),
    "daemon/control.py",
    "daemon/control_plane.py",
    "api/app.py",
    "ledger/store.py",
    "tools/service.py",
]


@pytest.mark.parametrize(
    "module", mostly_deep(MODULES, "keeper/main.py", "keeper/logs.py", "daemon/control_plane.py")
)
def test_a_version_with_a_broken_module_is_refused_before_anything_changes(
    copied: PipeHouse, module: str
) -> None:
    home = copied
    home.tool("echo", server("return {'pid': os.getpid()}"))
    home.start()
    tool = home.run("echo").json()["pid"]
    before, pids = versions(home), home.pids()
    file = home.home / "lib" / "supervisord_py" / module
    source = file.read_text()
    for version in ("9.9.1", "9.9.2"):
        install(home, version)
        file.write_text(source + BROKEN_SOURCE)
        refused = home.pxctl("daemon", "restart")
        assert refused.returncode == 8, refused.stderr
        assert f"{version} cannot take over" in refused.stderr
        assert "invalid syntax" in refused.stderr
        assert f"({file.name}, line" in refused.stderr
        refused = home.pxctl("daemon", "restart", "--all")
        assert refused.returncode == 8, "what cannot start must not end what runs"
        assert (versions(home), home.pids()) == (before, pids)
        assert home.run("echo").json()["pid"] == tool
    file.write_text(source)
    upgrade(home, "9.9.3")
    assert home.run("echo").json()["pid"] == tool


DOES_NOT_COME_UP = """

async def _open(self: object, *parts: object) -> None:
    raise RuntimeError("this version cannot open anything")

ControlPlane.open = _open
"""


def test_a_version_that_does_not_come_up_is_rolled_back_twice_in_a_row(copied: PipeHouse) -> None:
    """Its files overwrote those of the version before, of which a copy was kept; later a good
    version takes over.
    """
    home = copied
    home.tool("echo", server("return {'pid': os.getpid()}"))
    home.start()
    tool = home.run("echo").json()["pid"]
    before = versions(home)
    keeper = home.pids()[0]
    file = home.home / "lib" / "supervisord_py" / "daemon" / "control_plane.py"
    source = file.read_text()
    until(
        (home.home / "state" / "versions" / before[0] / "stamp").exists,
        "the copy of the version that serves",
    )
    for version in ("9.9.1", "9.9.2"):
        install(home, version)
        file.write_text(source + DOES_NOT_COME_UP)
        refused = home.pxctl("daemon", "restart")
        assert refused.returncode == 1, refused.stderr
        assert f"version {version} did not come up; pxd went back to {before[0]}" in refused.stderr
        assert (versions(home), home.pids()[0]) == (before, keeper)
        assert home.run("echo").json()["pid"] == tool
        assert f"went back to {before[0]}" in home.pxctl("daemon", "status").stdout
    file.write_text(source)
    upgrade(home, "9.9.3")
    assert home.pids()[0] == keeper
    assert home.run("echo").json()["pid"] == tool
    assert "went back" not in home.pxctl("daemon", "status").stdout


FAILS_ONLY_AFTER_THE_EXEC = """
import sys as _sys

def _fail(self, *words, **options):
    raise RuntimeError("this keeper cannot {what}")

if "--check" not in _sys.argv:
    Keeper.{what} = _fail
"""


@pytest.mark.parametrize("what", ["take_over", "run"])
def test_a_keeper_that_fails_after_the_exec_is_rolled_back_twice_in_a_row(
    copied: PipeHouse, what: str
) -> None:
    """No trial can see it: the keeper itself gives what it was handed back to the version
    before.
    """
    home = copied
    home.tool("echo", server("return {'pid': os.getpid()}"))
    home.start()
    tool = home.run("echo").json()["pid"]
    before = versions(home)
    keeper = home.pids()[0]
    until(
        (home.home / "state" / "versions" / before[0] / "stamp").exists,
        "the copy of the version that serves",
    )
    file = home.home / "lib" / "supervisord_py" / "keeper" / "main.py"
    source = file.read_text()
    for version in ("9.9.1", "9.9.2"):
        install(home, version)
        file.write_text(source + FAILS_ONLY_AFTER_THE_EXEC.format(what=what))
        refused = home.pxctl("daemon", "restart")
        assert refused.returncode == 1, refused.stderr
        assert f"version {version} did not come up; pxd went back to {before[0]}" in refused.stderr
        assert (versions(home), home.pids()[0]) == (before, keeper)
        assert home.run("echo").json()["pid"] == tool
    file.write_text(source)
    upgrade(home, "9.9.3")
    assert home.run("echo").json()["pid"] == tool


def test_a_broken_control_plane_of_the_same_version_is_not_taken_for_a_new_one(
    copied: PipeHouse,
) -> None:
    home = copied
    home.start()
    before, pids = versions(home), home.pids()
    file = home.home / "lib" / "supervisord_py" / "api" / "app.py"
    source = file.read_text()
    file.write_text(source + BROKEN_SOURCE)
    refused = home.pxctl("daemon", "restart")
    assert refused.returncode == 8
    assert "invalid syntax" in refused.stderr
    assert (versions(home), home.pids()) == (before, pids)
    file.write_text(source)
    assert home.pxctl("daemon", "restart").returncode == 0
