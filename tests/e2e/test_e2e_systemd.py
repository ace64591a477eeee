"""A real systemd keeps the daemon: READY, watchdog, restart after a kill, nothing left after a stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.house import server, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.deep

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY.parent / "shared" / "recipes" / "systemd-recipe.sh"
INSIDE = "/run/px"


class Machine:
    """A booted systemd in namespaces of its own; `share` is /run/px inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.share = folder / "share"

    def recipe(self, verb: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(RECIPE), verb, str(self.folder), *args],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def do(self, *argv: str) -> str:
        done = self.recipe("exec", *argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def show(self, name: str) -> str:
        return self.recipe("exec", "systemctl", "show", "-P", name, "pxd.service").stdout.strip()

    def is_new(self, main: str) -> bool:
        """Say whether it is up as another process; both facts are of the same moment."""
        told = self.recipe("exec", "systemctl", "show", "-p", "ActiveState", "-p", "MainPID", "pxd.service").stdout
        facts = dict(line.split("=", 1) for line in told.split())
        return facts.get("ActiveState") == "active" and facts.get("MainPID") not in {None, main, "0"}

    def pxctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.recipe("exec", f"{INSIDE}/bin/pxctl", "--system", *argv)


def furnish(machine: Machine) -> None:
    """Put the code, its environment and two commands where the inside sees them (its /tmp is another one)."""
    share = machine.share
    # The peers are for other tests, and twice as many files as all the rest.
    wanted = [path for path in Path(sys.prefix).iterdir() if path.name != "peers"]
    (share / "venv").mkdir()
    copied = subprocess.run(
        ["cp", "-al", "-t", share / "venv", *wanted], check=False, capture_output=True
    )  # hard links where the file system is the same
    if copied.returncode:
        shutil.rmtree(share / "venv", ignore_errors=True)
        (share / "venv").mkdir()
        subprocess.run(["cp", "-a", "-t", share / "venv", *wanted], check=True)
    packages = next((share / "venv" / "lib").glob("python3*")) / "site-packages"
    for link in (*packages.glob("*.pth"), *packages.glob("__editable__*")):
        link.unlink()  # an editable installation points to where only the outside can look
    shutil.copytree(REPOSITORY / "supervisord_py", packages / "supervisord_py")
    shutil.copytree(REPOSITORY / "cli" / "pxctl", packages / "pxctl")
    (share / "bin").mkdir()
    for name, module in (("pxd", "supervisord_py"), ("pxctl", "pxctl")):
        for script in (share / "bin" / name, share / "venv" / "bin" / name):
            script.unlink(missing_ok=True)  # in the environment it is a link to the real one, with a path of outside
            script.write_text(
                f'#!/bin/sh\nexport PATH={INSIDE}/bin:$PATH\nexec {INSIDE}/venv/bin/python -m {module} "$@"\n'
            )
            script.chmod(0o755)


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    require: Callable[[object, str], None] = request.getfixturevalue("require")
    require(os.geteuid() == 0, "a systemd in namespaces needs root")
    require(RECIPE.exists(), f"needs {RECIPE}")
    require(Path("/lib/systemd/systemd").exists(), "needs systemd")
    folder = Path(tempfile.mkdtemp(prefix="pxsd-", dir="/tmp"))
    booted = Machine(folder)
    up = booted.recipe("up")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        furnish(booted)
        yield booted
    finally:
        booted.recipe("down")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def served(machine: Machine) -> Iterator[Machine]:
    """The unit, installed by the client's own command, started, with one tool."""
    done = machine.pxctl("daemon", "install", "--system")
    assert done.returncode == 0, done.stderr
    tool = machine.share / "echo"
    tool.mkdir(exist_ok=True)
    (tool / "main.py").write_text(server("return {'pid': os.getpid(), 'cgroup': open('/proc/self/cgroup').read()}"))
    (tool / "tool.json").write_text(json.dumps({"name": "echo", "version": "1", "input": {"type": "object"}}))
    machine.do("mkdir", "-p", "/var/lib/pxd/tools")
    machine.do("cp", "-r", f"{INSIDE}/echo", "/var/lib/pxd/tools/")
    until(lambda: machine.show("ActiveState") == "active", "systemd says active (READY=1 arrived)")
    yield machine
    machine.recipe("exec", "systemctl", "stop", "pxd.service")
    machine.recipe("exec", "systemctl", "reset-failed", "pxd.service")


def leftovers(machine: Machine) -> str:
    return machine.recipe(
        "exec", "sh", "-c", "grep -lsE 'PX_INSTANCE=|PX_CONTROL=' /proc/[0-9]*/environ || true"
    ).stdout.strip()


def test_systemd_starts_it_runs_a_tool_and_stops_it_clean(served: Machine) -> None:
    assert served.show("Type") == "notify"
    main = int(served.show("MainPID"))
    status = json.loads(served.pxctl("status", "--json").stdout)
    assert status["daemon"]["keeper"]["pid"] == main
    answer = json.loads(served.pxctl("run", "echo").stdout)
    assert "pxd.service" in answer["cgroup"], "the tool lives in the unit's delegated group"
    assert "serving" in served.show("StatusText").lower() or served.show("StatusText")
    served.do("systemctl", "stop", "pxd.service")
    assert served.show("Result") == "success"
    assert leftovers(served) == ""


def test_systemd_restarts_a_killed_keeper_and_nothing_leaks(served: Machine) -> None:
    first = json.loads(served.pxctl("run", "echo").stdout)
    main = served.show("MainPID")
    served.do("kill", "-9", main)
    until(lambda: served.is_new(main), "it is back")
    # Dead it is by now; that its parent has reaped it, nobody promised.
    gone = f"grep -sq '^State:.[^ZX]' /proc/{first['pid']}/status || echo gone"
    assert "gone" in served.recipe("exec", "sh", "-c", gone).stdout
    second = json.loads(served.pxctl("run", "echo").stdout)
    assert second["pid"] != first["pid"]
    served.do("systemctl", "stop", "pxd.service")
    assert leftovers(served) == ""


def test_systemd_reload_and_watchdog_are_in_force(served: Machine) -> None:
    assert int(served.show("WatchdogUSec").rstrip("s").replace("min", "") or 0) > 0
    served.do("systemctl", "reload", "pxd.service")
    assert served.pxctl("run", "echo").returncode == 0
    main = served.show("MainPID")
    served.do("kill", "-STOP", main)
    try:
        until(lambda: served.is_new(main), "the watchdog restarts a frozen keeper", 240)
    finally:
        served.recipe("exec", "sh", "-c", f"kill -CONT {main} 2>/dev/null || true")
    assert served.show("NRestarts") not in {"", "0"}
    assert served.pxctl("run", "echo").returncode == 0


def test_a_bad_configuration_does_not_loop(served: Machine) -> None:
    served.do("systemctl", "stop", "pxd.service")
    served.do("sh", "-c", "mkdir -p /etc/pxd && echo 'nonsense = 1' > /etc/pxd/pxd.toml")
    try:
        served.recipe("exec", "systemctl", "start", "pxd.service")
        until(lambda: served.show("ActiveState") == "failed", "systemd gives up at once")
        assert served.show("ExecMainStatus") == "78"
        assert served.show("NRestarts") == "0"
    finally:
        served.do("rm", "-f", "/etc/pxd/pxd.toml")
        served.recipe("exec", "systemctl", "reset-failed", "pxd.service")


def test_tools_cells_and_pipes_survive_the_hardening_drop_in(served: Machine) -> None:
    """And it is in force: what it says is asked of systemd and of a child."""
    shutil.copy(REPOSITORY / "units" / "hardening.conf", served.share)
    folder = "/etc/systemd/system/pxd.service.d"
    served.do("install", "-D", "-m", "644", f"{INSIDE}/hardening.conf", f"{folder}/hardening.conf")
    (served.share / "pxd.toml").write_text(f'[kernels]\npython = "{INSIDE}/venv/bin/python"\n')
    served.do("install", "-D", f"{INSIDE}/pxd.toml", "/etc/pxd/pxd.toml")
    try:
        served.do("systemctl", "daemon-reload")
        served.do("systemctl", "restart", "pxd.service")
        said = served.do("systemd-analyze", "security", "--no-pager", "pxd.service").splitlines()[-1]
        print(said)
        assert float(said.split("pxd.service:")[1].split()[0]) <= 4.0
        assert "pxd.service" in json.loads(served.pxctl("run", "echo").stdout)["cgroup"]
        # What a JIT compiler does, in another process, and what sudo would need.
        node = "let n = 0; for (let i = 0; i < 1e6; i++) n += i; console.log(n)"
        code = f"import subprocess; subprocess.run(['node', '-e', {node!r}])"
        cell = served.pxctl("exec", f"{code}; print(*(x for x in open('/proc/self/status') if 'NoNewPrivs' in x))")
        assert "499999500000" in cell.stdout, cell.stdout + cell.stderr
        assert "NoNewPrivs:\t1" in cell.stdout
        added, ran = served.pxctl("pipe", "add", "example:disk-digest"), served.pxctl("pipe", "run", "disk-digest")
        assert (added.returncode, ran.returncode) == (0, 0), added.stderr + ran.stderr
    finally:
        served.do("rm", "-r", folder, "/etc/pxd/pxd.toml")
        served.do("systemctl", "daemon-reload")
