"""A real systemd keeps the daemon, and `pxctl daemon install` is right at once there, or nothing
is left of it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.house import server, until
from e2e.systemd import INSIDE, REPOSITORY, Machine, booted

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def machine(require: Callable[[object, str], None]) -> Iterator[Machine]:
    """A machine of systemd, for all tests of a file."""
    with booted(require) as made:
        yield made


@pytest.fixture
def served(machine: Machine) -> Iterator[Machine]:
    """The unit, installed by the client's own command, started, with one tool."""
    done = machine.pxctl("daemon", "install", "--system")
    assert done.returncode == 0, done.stderr
    tool = machine.share / "echo"
    tool.mkdir(exist_ok=True)
    (tool / "main.py").write_text(
        server("return {'pid': os.getpid(), 'cgroup': open('/proc/self/cgroup').read()}")
    )
    (tool / "tool.json").write_text(
        json.dumps({"name": "echo", "version": "1", "input": {"type": "object"}})
    )
    machine.do("mkdir", "-p", "/var/lib/pxd/tools")
    machine.do("cp", "-r", f"{INSIDE}/echo", "/var/lib/pxd/tools/")
    until(lambda: machine.show("ActiveState") == "active", "systemd says active (READY=1 arrived)")
    yield machine
    machine.recipe("exec", "systemctl", "reset-failed", "pxd.service")
    assert machine.pxctl("daemon", "uninstall").returncode == 0
    machine.do("rm", "-rf", "/var/lib/pxd", "/run/pxd")


def test_systemd_starts_it_restarts_a_killed_keeper_stops_it_clean_and_does_not_loop(
    served: Machine,
) -> None:
    assert (served.show("Type"), bool(served.show("StatusText"))) == ("notify", True)
    main = served.show("MainPID")
    assert json.loads(served.pxctl("status", "--json").stdout)["daemon"]["keeper"]["pid"] == int(
        main
    )
    first = json.loads(served.pxctl("run", "echo").stdout)
    assert "pxd.service" in first["cgroup"], "the tool lives in the unit's delegated group"
    served.do("kill", "-9", main)
    until(lambda: served.is_new(main), "it is back")
    # Dead it is by now; that its parent has reaped it, nobody promised.
    gone = f"grep -sq '^State:.[^ZX]' /proc/{first['pid']}/status || echo gone"
    assert "gone" in served.recipe("exec", "sh", "-c", gone).stdout
    assert json.loads(served.pxctl("run", "echo").stdout)["pid"] != first["pid"]
    served.do("systemctl", "stop", "pxd.service")
    assert (served.show("Result"), served.leftovers()) == ("success", "")
    served.do("sh", "-c", "mkdir -p /etc/pxd && echo 'nonsense = 1' > /etc/pxd/pxd.toml")
    try:
        served.recipe("exec", "systemctl", "start", "pxd.service")
        until(lambda: served.show("ActiveState") == "failed", "systemd gives up at once")
        assert (served.show("ExecMainStatus"), served.show("NRestarts")) == ("78", "0")
    finally:
        served.do("rm", "-f", "/etc/pxd/pxd.toml")


def test_systemd_reload_and_watchdog_are_in_force(served: Machine) -> None:
    served.do("systemctl", "reload", "pxd.service")
    assert served.pxctl("run", "echo").returncode == 0
    main = served.show("MainPID")
    served.do("kill", "-STOP", main)
    try:
        until(lambda: served.is_new(main), "the watchdog restarts a frozen keeper", 240)
    finally:
        served.recipe("exec", "sh", "-c", f"kill -CONT {main} 2>/dev/null || true")
    assert served.pxctl("run", "echo").returncode == 0


LOOK_AROUND = """
import ctypes, os, subprocess
subprocess.run(["node", "-e", "let n = 0; for (let i = 0; i < 1e6; i++) n += i; console.log(String(n))"])
libc, user_namespace, landlock_version = ctypes.CDLL(None), 0x10000000, (444, None, 0, 1)
sandbox, namespace, trace = libc.syscall(*landlock_version) > 0, libc.unshare(user_namespace), libc.ptrace(0, 0, 0, 0)
setuid = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs"))
print(sandbox, namespace, trace, os.access("/usr", os.W_OK), setuid)
"""
"""What works: a JIT compiler, a sandbox by landlock; and what does not: namespaces, debuggers,
writing, sudo.
"""


def test_tools_cells_and_pipes_survive_the_hardening_drop_in(served: Machine) -> None:
    """And it is in force: what it says is asked of systemd and of a child."""
    shutil.copy(REPOSITORY / "supervisord_py" / "units" / "hardening.conf", served.share)
    folder = "/etc/systemd/system/pxd.service.d"
    served.do("install", "-D", "-m", "644", f"{INSIDE}/hardening.conf", f"{folder}/hardening.conf")
    (served.share / "pxd.toml").write_text(f'[kernels]\npython = "{INSIDE}/venv/bin/python"\n')
    served.do("install", "-D", f"{INSIDE}/pxd.toml", "/etc/pxd/pxd.toml")
    try:
        served.do("systemctl", "daemon-reload")
        served.do("systemctl", "restart", "pxd.service")
        said = served.do("systemd-analyze", "security", "--no-pager", "pxd.service").splitlines()[
            -1
        ]
        print(said)
        assert float(said.split("pxd.service:")[1].split()[0]) <= 4.0
        assert "pxd.service" in json.loads(served.pxctl("run", "echo").stdout)["cgroup"]
        cell = served.pxctl("exec", LOOK_AROUND)
        assert cell.stdout.split("\n")[:2] == ["499999500000", "True -1 -1 False 1"], (
            cell.stdout + cell.stderr
        )
        added, ran = (
            served.pxctl("pipe", "add", "example:disk-digest"),
            served.pxctl("pipe", "run", "disk-digest"),
        )
        assert (added.returncode, ran.returncode) == (0, 0), added.stderr + ran.stderr
    finally:
        served.do("rm", "-r", folder, "/etc/pxd/pxd.toml")
        served.do("systemctl", "daemon-reload")


# -- installing ------------------------------------------------------------------------------------

USER, UID, HOME = "px", 4242, "/home/px"
PLACES = {  # of the system, of the user
    "units": ("/etc/systemd/system", f"{HOME}/.config/systemd/user"),
    "run_dir": ("/run/pxd", f"/run/user/{UID}/pxd"),
    "data": ("/var/lib/pxd", f"{HOME}/.local/share/pxd"),
    "config": ("/etc/pxd", f"{HOME}/.config/pxd"),
}


@dataclass
class Manager:
    """A service manager of the machine: the system's, or the user's."""

    machine: Machine
    system: bool

    def __getattr__(self, name: str) -> str:
        """Return a place: units, config, data, run_dir."""
        return PLACES[name][not self.system]

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        words = [f"{name}={value}" for name, value in env.items()]
        if self.system:
            return self.machine.recipe("exec", "env", "-C", "/", *words, *argv)
        ours = [f"HOME={HOME}", f"USER={USER}", f"XDG_RUNTIME_DIR=/run/user/{UID}", *words]
        return self.machine.recipe(
            "exec", "runuser", "-u", USER, "--", "env", "-C", HOME, *ours, *argv
        )

    def pxctl(
        self, *argv: str, bin: str = f"{INSIDE}/bin", **env: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run(f"{bin}/pxctl", *(["--system"] if self.system else []), *argv, **env)

    def systemctl(self, *argv: str) -> str:
        return self.run("systemctl", *([] if self.system else ["--user"]), *argv).stdout.strip()

    def is_active(self, unit: str) -> bool:
        return self.systemctl("is-active", unit) == "active"

    def traces(self) -> list[str]:
        """Return all that an install may leave, but for the user's data."""
        where = f"find {self.units} -name '*pxd*'; ls -d {self.run_dir} {self.run_dir}/*"
        if not self.system:
            where += f"; find {HOME}/.config -not -path '*/pxd*'"
        manager = "systemctl" if self.system else "systemctl --user"
        for verb in ("list-units --all --plain", "list-unit-files"):
            where += f"; {manager} {verb} --no-legend 'pxd*'"
        return sorted(self.run("sh", "-c", f"({where}) 2>/dev/null").stdout.splitlines())

    def keeper(self, **env: str) -> int:
        done = self.pxctl("status", "--json", **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["daemon"]["keeper"]["pid"]

    def unit_check(self) -> tuple[str, str, str]:
        """Return status, detail and repair of what doctor says of the unit."""
        told = json.loads(self.pxctl("doctor", "--json").stdout)["checks"]
        return next(
            (one["status"], one["detail"], one["repair"])
            for one in told
            if one["name"] == "service_unit"
        )

    def install(self, *words: str, bin: str = f"{INSIDE}/bin", **env: str) -> str:
        """Install, and return what was said on stderr."""
        done = self.pxctl("daemon", "install", *words, bin=bin, **env)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def uninstall(self) -> str:
        done = self.pxctl("daemon", "uninstall")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def repair(self, command: str) -> None:
        done = self.run("sh", "-c", f"PATH={INSIDE}/bin:$PATH; {command}")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def inhabited(machine: Machine) -> Machine:
    """A user with a manager, who does not linger."""
    machine.do("useradd", "-m", "-u", str(UID), USER)
    # of the copy inside
    machine.do("chmod", "a+x", *(str(above) for above in Path(sys.executable).resolve().parents))
    machine.do("systemctl", "start", f"user@{UID}.service")
    return machine


@pytest.fixture(params=["system", "user"])
def manager(request: pytest.FixtureRequest, inhabited: Machine) -> Iterator[Manager]:
    made = Manager(inhabited, request.param == "system")
    yield made
    made.pxctl("daemon", "uninstall")
    inhabited.do(
        "sh", "-c", f"rm -rf /etc/pxd /var/lib/pxd /run/pxd {HOME}/.local {HOME}/.config {HOME}/a*"
    )


def test_on_demand_the_first_status_starts_it_and_the_socket_outlives_it(manager: Manager) -> None:
    before = manager.traces()
    manager.install("--on-demand")
    assert (manager.is_active("pxd.socket"), manager.is_active("pxd.service")) == (True, False)
    socket, owner = f"{manager.run_dir}/pxd.sock", "root" if manager.system else USER
    told = manager.run("stat", "-c", "%a %U", socket, manager.run_dir).stdout.split("\n")
    assert told[:2] == [f"600 {owner}", f"700 {owner}"]
    inode = manager.run("stat", "-c", "%i", socket).stdout
    first = manager.keeper()
    assert manager.systemctl("show", "-P", "MainPID", "pxd.service") == str(first)
    manager.systemctl("restart", "pxd.service")
    assert manager.keeper() not in {first, 0}
    command = "pxctl --system daemon uninstall" if manager.system else "pxctl daemon uninstall"
    for words in (f"starts again when somebody connects, unless: {command}", "pxd does not run"):
        assert words in manager.pxctl("daemon", "stop").stderr
    assert not manager.is_active("pxd.service")
    assert manager.pxctl("daemon", "start").returncode == 0
    assert manager.is_active("pxd.service"), "its unit was started, and no daemon beside it"
    assert manager.pxctl("daemon", "restart", "--all").returncode == 0
    assert manager.is_active("pxd.service"), "and not deactivating, to be killed in the end"
    assert manager.run("stat", "-c", "%i", socket).stdout == inode
    assert f"kept: {manager.data}" in manager.uninstall()
    assert manager.traces() == before


def test_what_is_told_by_the_environment_goes_into_the_unit(manager: Manager) -> None:
    """With a program and a home whose paths want quoting."""
    place = f"{INSIDE}/{manager.system} ü b"
    manager.machine.do("mkdir", place)
    manager.machine.do("ln", "-st", place, f"{INSIDE}/bin/pxd", f"{INSIDE}/bin/pxctl")
    env = {"PX_TOOLS__WARM_KEEP_MAX": "7"}
    if not manager.system:
        env["PX_HOME"] = f"{HOME}/a 100% $HOME \"ü\\n'"
    for words in ((), ("--on-demand",)):
        manager.install("--no-start", *words, bin=place, **env)
        unit = "pxd.socket" if words else "pxd.service"
        assert (manager.is_active(unit), manager.systemctl("is-enabled", unit)) == (
            False,
            "enabled",
        )
        assert (
            "loginctl enable-linger px" in manager.install(*words, bin=place, **env)
        ) is not manager.system
        assert manager.is_active(unit)
        pid = manager.keeper(**env)
        environ = manager.machine.do("cat", f"/proc/{pid}/environ").split("\0")
        assert [
            f"{name}={value}" for name, value in env.items() if f"{name}={value}" not in environ
        ] == []
        assert manager.systemctl("show", "-P", "MainPID", "pxd.service") == str(pid)
        if not words:
            other = manager.pxctl("daemon", "install", "--on-demand", bin=place, **env)
            assert (other.returncode, "at boot or login" in other.stderr) == (8, True)
        kept = manager.uninstall()
        assert manager.system or f"kept: {env['PX_HOME']}\n" in kept


SETTINGS = "mkdir -p {config}; echo 'nonsense = 1' > {config}/pxd.toml"
FOREIGN = "chown 99:99 {data}/kernels"
FULL = """
used=$(df -k --output=used {run} | tail -n 1)  # a size of 0 would be no limit
mount -o remount,size=$((used + 16))k {run} && head -c 1M /dev/zero > {run}/fill
"""
READ_ONLY = "mkdir -p {top}; mount --bind {top} {top}; mount -o remount,bind,ro {top}"


@pytest.mark.parametrize(
    ("spoil", "mend", "words"),
    [
        (SETTINGS, "rm -r {config}", r"pxd\.toml:1: unknown"),
        (FOREIGN, "rm -r {data}/kernels", "belongs to uid 99, not to uid"),
        (FULL, "rm {run}/fill; mount -o remount,size=100M {run}", "o space left|not enough space"),
        (READ_ONLY, "umount {top}", "Read-only file system"),
    ],
    ids=["settings", "foreign", "full", "read-only"],
)
def test_an_install_that_fails_says_why_and_leaves_nothing(
    manager: Manager, spoil: str, mend: str, words: str
) -> None:
    top, run = (
        ("/etc/systemd/system", "/run")
        if manager.system
        else (f"{HOME}/.config", f"/run/user/{UID}")
    )
    places = {"config": manager.config, "data": manager.data, "run": run, "top": top}
    manager.run("mkdir", "-p", manager.config, f"{manager.data}/kernels")
    before = manager.traces()
    manager.machine.recipe("exec", "sh", "-c", spoil.format(**places))
    try:
        done = manager.pxctl("daemon", "install")
    finally:
        manager.machine.do("sh", "-c", mend.format(**places))
    assert done.returncode in {1, 6}
    assert re.search(words, done.stderr), done.stderr
    assert manager.traces() == before


def test_a_user_without_a_manager_or_with_somebodys_socket_is_told(inhabited: Machine) -> None:
    user = Manager(inhabited, False)
    before = user.traces()
    done = user.pxctl("daemon", "install", XDG_RUNTIME_DIR="/nowhere")
    assert done.returncode == 1
    assert "no manager for this user" in done.stderr
    listen = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/run/sock'); s.listen()"
    inhabited.do("python3", "-c", listen)
    inhabited.do("chmod", "600", "/run/sock")
    done = user.pxctl("daemon", "install", "--on-demand", PX_SOCKET="/run/sock")
    assert (done.returncode, "ermission denied" in done.stderr) == (6, True)
    assert user.traces() == before


def test_doctor_tells_the_unit_as_it_is_and_its_repair_repairs(manager: Manager) -> None:
    other = f"{INSIDE}/other-{manager.system}"
    manager.machine.do("mkdir", other)
    manager.machine.do(
        "sh", "-c", f"echo '#!/bin/sh\necho pxd 0.0.1' > {other}/pxd; chmod 755 {other}/pxd"
    )

    def mended(status: str, words: str) -> None:
        before, detail, repair = manager.unit_check()
        assert (before, words in detail) == (status, True), detail
        manager.repair(repair)
        assert manager.unit_check()[0] == "ok"

    mended("warn", "no systemd or launchd unit is installed")
    manager.systemctl("disable", "pxd.service")
    mended("warn", "disabled")
    unit = f"{manager.units}/pxd.service"
    manager.run("sed", "-i", f"s,^ExecStart=[^ ]*,ExecStart={other}/pxd,", unit)
    clash = manager.pxctl("daemon", "install")
    assert clash.returncode == 8
    assert f"it runs {other}/pxd (0.0.1), this is {INSIDE}/bin/pxd (" in clash.stderr
    mended("warn", f"runs pxd 0.0.1 ({other}/pxd); this is ")
    manager.run("sed", "-i", f"s,^ExecStart=[^ ]*,ExecStart={other}/gone,", unit)
    mended("fail", f"runs {other}/gone, which is not there")


def test_a_socket_whose_daemon_cannot_start_is_told_and_repaired(manager: Manager) -> None:
    manager.install("--on-demand")
    manager.run("sh", "-c", SETTINGS.format(config=manager.config))
    failed = manager.pxctl("status")
    assert (failed.returncode in {1, 5}, "hint: " in failed.stderr) == (True, True)
    status, _, repair = manager.unit_check()
    assert status == "fail"
    manager.run("rm", "-r", manager.config)
    manager.repair(repair)
    assert manager.keeper() > 0
