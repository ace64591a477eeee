"""Played as root under systemd on a kernel of its own (own_kernel.sh): writes what it saw into
/run/px/seen.json.
"""

from __future__ import annotations

import json
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.house import server, until

BIN = Path(sys.executable).parent
SECONDS = 240.0
LOOK = "cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && cat memory.max pids.max cpu.max"
FILL = "return len(bytearray(body['mb'] << 20)) >> 20"
TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "eater": ({"max_memory_mb": 200}, FILL),
    "glutton": ({"max_memory_mb": 800}, FILL),
    "forker": (
        {"limits": {"processes": 20}},
        """
        children = []
        try:
            while len(children) < 40:
                children.append(os.fork())
                if children[-1] == 0:
                    time.sleep(600)
        except BlockingIOError:
            pass
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        return len(children)
        """,
    ),
    "burner": (
        {"limits": {"cpu_percent": 20}},
        """
        began, before = time.monotonic(), sum(os.times()[:4])
        child = os.fork()
        while time.monotonic() < began + 4:
            pass
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return (sum(os.times()[:4]) - before) / (time.monotonic() - began)
        """,
    ),
    "bomb": (
        {},
        """
        if os.fork() == 0:
            os.setsid()
            while True:
                if os.fork():
                    os._exit(0)
        return open("/proc/self/cgroup").read().split("::")[1].strip()
        """,
    ),
}


def run(*argv: object) -> subprocess.CompletedProcess[str]:
    print("+", *argv, flush=True)
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    print(done.stdout[-1500:], done.stderr[-1500:], done.returncode, flush=True)
    return done


class Client:
    """`pxctl` of one daemon; `before` are the words before it, `flags` those after it."""

    def __init__(self, *before: object, flags: tuple[str, ...] = ()) -> None:
        self.words = (*before, BIN / "pxctl", *flags)

    def __call__(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return run(*self.words, *argv)

    def read(self, *argv: str) -> Any:
        return json.loads(self(*argv, "--json").stdout or "null")

    def rungs(self) -> dict[str, Any]:
        """Return what the daemon may use, and what `doctor` says about it."""
        daemon = self.read("daemon", "status")
        check = next(one for one in self.read("doctor")["checks"] if one["name"] == "limits")
        names = ("kill_rung", "memory_rung", "controllers")
        return {
            **{name: daemon[name] for name in names},
            "doctor": (check["status"], check["repair"]),
        }


def write_tools(folder: Path) -> None:
    for name, (manifest, code) in TOOLS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "main.py").write_text(server(code))
        plain = {
            "name": name,
            "version": "1",
            "input": {"type": "object"},
            "start_timeout_seconds": 120,
        }
        (folder / name / "tool.json").write_text(
            json.dumps({**plain, "max_runtime_seconds": 120, **manifest})
        )


def shown(name: str) -> str:
    return run("systemctl", "show", "-P", name, "pxd.service").stdout.strip()


def machines_unit() -> dict[str, Any]:
    """Every limit below the machine's unit, and again after each way in which its processes are
    replaced.
    """
    pxctl, seen = Client(flags=("--system",)), dict[str, Any]()
    Path("/etc/pxd").mkdir()
    Path("/etc/pxd/pxd.toml").write_text(
        "[daemon]\nzygotes = 0\n[kernels]\nprocesses = 60\ncpu_percent = 70\n"
    )
    write_tools(Path("/var/lib/pxd/tools"))
    pipe = Path("/var/lib/pxd/pipes/look")
    pipe.mkdir(parents=True)
    limits = "limits: {memory: 64MB, processes: 30, cpu_percent: 40}"
    (pipe / "pipe.md").write_text(
        f"---\nagent: command\ncommand: sh look.sh\nenabled: false\n{limits}\n---\nLook.\n"
    )
    (pipe / "look.sh").write_text(LOOK)
    pxctl("daemon", "install")
    until(lambda: shown("ActiveState") == "active", "the unit is up", SECONDS)
    seen["rungs"] = pxctl.rungs()
    seen["eaten"] = pxctl("run", "eater", "mb:=50").returncode
    seen["too_much"] = pxctl.read("run", "eater", "mb:=400")
    seen["why"] = pxctl.read("why", "eater")["instance"]
    seen["forked"] = pxctl.read("run", "forker")
    seen["burnt"] = pxctl.read("run", "burner")
    group = Path("/sys/fs/cgroup") / pxctl.read("run", "bomb").lstrip("/")
    seen["shell"] = pxctl("exec", "--bash", LOOK).stdout.split()
    pxctl("pipe", "run", "look", "--timeout", "120")
    seen["pipe"] = pxctl("pipe", "output", "1").stdout.split()
    seen["bomb"] = (group.is_dir(), pxctl("stop", "bomb").returncode, group.is_dir())
    # The whole unit's limit, which the tool's own is far above.
    run("systemctl", "set-property", "--runtime", "pxd.service", "MemoryMax=400M")
    keeper = shown("MainPID")
    pxctl("run", "glutton", "mb:=600")
    seen["from_above"] = pxctl.read("why", "glutton")["instance"]
    seen["keeper_lives"] = shown("MainPID") == keeper
    run("systemctl", "set-property", "--runtime", "pxd.service", "MemoryMax=infinity")
    pid = pxctl.read("status", "forker")["units"][0]["pid"]
    run("systemctl", "daemon-reload")
    run("systemctl", "reload", "pxd.service")
    pxctl("daemon", "restart")
    kept = pxctl.read("status", "forker")["units"][0]["pid"]
    seen["after_reload"] = (pxctl.read("run", "forker"), kept == pid)
    run("systemctl", "kill", "--kill-who=main", "-s", "KILL", "pxd.service")
    until(
        lambda: shown("ActiveState") == "active" and shown("MainPID") != keeper,
        "it is back",
        SECONDS,
    )
    seen["after_kill"] = (pxctl.rungs(), pxctl.read("run", "forker"))
    run("systemctl", "restart", "pxd.service")
    seen["after_restart"] = (pxctl.rungs(), pxctl.read("run", "forker"))
    run("systemctl", "stop", "pxd.service")
    seen["result"] = shown("Result")
    return seen


def users_unit() -> dict[str, Any]:
    """A user's unit, below the user manager, which hands on what it was given."""
    run("useradd", "--create-home", "--base-dir", "/var/lib", "px-user")
    for path in (Path(__file__), Path(sys.executable), Path(sys.executable).resolve()):
        for each in path.parents:  # in this copy of the file system alone
            each.chmod(each.stat().st_mode | 0o55)
    uid = pwd.getpwnam("px-user").pw_uid
    run("loginctl", "enable-linger", "px-user")
    until(Path(f"/run/user/{uid}/bus").exists, "the user manager is up", SECONDS)
    environ = (
        f"XDG_RUNTIME_DIR=/run/user/{uid}",
        "HOME=/var/lib/px-user",
        f"PATH={BIN}:/usr/bin:/bin",
    )
    pxctl = Client("runuser", "-u", "px-user", "--", "env", "-i", *environ)
    pxctl("daemon", "install")
    until(lambda: pxctl("daemon", "status").returncode == 0, "the user's unit is up", SECONDS)
    return pxctl.rungs()


def not_alone() -> dict[str, Any]:
    """A delegated group in which another process stays: its controllers cannot be handed on."""
    home = Path("/root/half")
    write_tools(home / "tools")
    words = (
        "systemd-run",
        "--scope",
        "-p",
        "Delegate=yes",
        "env",
        f"PX_HOME={home}",
        "sh",
        "-c",
        f"{BIN}/pxd & wait",
    )
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL):
        pxctl = Client("env", f"PX_HOME={home}", "PX_AUTOSTART=0")
        until(lambda: pxctl("daemon", "status").returncode == 0, "the daemon is up", SECONDS)
        seen = {**pxctl.rungs(), "ran": pxctl.read("run", "eater", "mb:=1")}
        pxctl("daemon", "stop")
    return seen


seen = {}
for part in (machines_unit, users_unit, not_alone):
    seen[part.__name__] = part()
    Path("/run/px/seen.json").write_text(json.dumps(seen))
