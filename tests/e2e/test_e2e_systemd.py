"""A real systemd keeps the daemon: READY, watchdog, restart after a kill, nothing left after a stop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from e2e.house import server, until
from e2e.systemd import INSIDE, REPOSITORY, Machine

pytestmark = pytest.mark.deep


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


LOOK_AROUND = """
import ctypes, os, subprocess
subprocess.run(["node", "-e", "let n = 0; for (let i = 0; i < 1e6; i++) n += i; console.log(String(n))"])
libc, user_namespace, landlock_version = ctypes.CDLL(None), 0x10000000, (444, None, 0, 1)
sandbox, namespace, trace = libc.syscall(*landlock_version) > 0, libc.unshare(user_namespace), libc.ptrace(0, 0, 0, 0)
setuid = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs"))
print(sandbox, namespace, trace, os.access("/usr", os.W_OK), setuid)
"""
"""What works: a JIT compiler, a sandbox by landlock; and what does not: namespaces, debuggers, writing, sudo."""


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
        cell = served.pxctl("exec", LOOK_AROUND)
        assert cell.stdout.split("\n")[:2] == ["499999500000", "True -1 -1 False 1"], cell.stdout + cell.stderr
        added, ran = served.pxctl("pipe", "add", "example:disk-digest"), served.pxctl("pipe", "run", "disk-digest")
        assert (added.returncode, ran.returncode) == (0, 0), added.stderr + ran.stderr
    finally:
        served.do("rm", "-r", folder, "/etc/pxd/pxd.toml")
        served.do("systemctl", "daemon-reload")
