"""The checks of `pxctl doctor`: each looks at one thing and names the one command that repairs it.

A check never raises for what it finds, changes nothing, and is given plain values; it may block on the file system, so
it is run in a thread.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import stat
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.tools.manifest import DOTENV, VENV
from supervisord_py.tools.sync import lacks_bytecode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisord_py.process.model import Caps

MEBIBYTE = 1024 * 1024
_DISK_FAIL = 100 * MEBIBYTE
_DISK_WARN = 1024 * MEBIBYTE
_FILES_FIXED = 128
_FILES_PER_TOOL = 16
_FILES_PER_KERNEL = 12
_OPEN_TO_OTHERS = 0o077
_SYSTEMD_UNIT = "pxd.service"
_LINGER = Path("/var/lib/systemd/linger")
_SYSTEMD_RUNS = Path("/run/systemd/system")


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `repair` is one command or step; None when nothing is to be repaired."""

    name: str
    status: Verdict
    detail: str
    repair: str | None = None


def check_kill_rung(caps: Caps) -> Check:
    """Can a whole tree of processes be killed for certain here?"""
    rung = caps.kill_rung
    if rung.startswith("cgroup"):
        return Check("kill_rung", Verdict.OK, f"{rung}: a stop leaves nothing, whatever a child did to hide")
    if rung.startswith("subreaper"):
        detail = f"{rung}: a stop finds every descendant; with a control group of its own it would be one call"
        return Check("kill_rung", Verdict.OK, detail)
    detail = f"{rung}: a child that leaves its process group may be found late or not at all"
    return Check("kill_rung", Verdict.WARN, detail, "pxctl daemon install")


def check_memory_rung(caps: Caps) -> Check:
    """How is a tree's memory bounded here?"""
    rung = caps.memory_rung
    if rung in {"", "none"}:
        return Check("memory_rung", Verdict.FAIL, "memory limits are not enforced here", "pxctl daemon install")
    exact = "enforced by the kernel" if rung.startswith("cgroup") else "sampled, so a short overshoot is possible"
    return Check("memory_rung", Verdict.OK, f"{rung}: {exact}")


def check_interrupted(cut_off: Sequence[str]) -> Check:
    """Did the last keeper die with children? `cut_off` has the unit of each."""
    if not cut_off:
        return Check("interrupted", Verdict.OK, "nothing was cut off when this daemon started")
    units = ", ".join(sorted(set(cut_off)))
    children = "one child, which was" if len(cut_off) == 1 else f"{len(cut_off)} children, which were"
    detail = f"an earlier keeper died with {children} stopped: {units}"
    return Check("interrupted", Verdict.WARN, detail, "pxctl events")


def check_open_files(tools: int, kernels: int = 0) -> Check:
    """Are there descriptors enough for every tool that is known, and for the kernels that live?"""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_FIXED + _FILES_PER_TOOL * tools + _FILES_PER_KERNEL * kernels
    whom = f"{tools} tools" + (f" and {kernels} kernels" if kernels else "")
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Check("open_files", Verdict.OK, f"limit {soft}; about {needed} needed for {whom}")
    detail = f"the limit of {soft} open files is below the {needed} that {whom} may need"
    return Check("open_files", Verdict.FAIL, detail, f"ulimit -n {needed * 2} && pxctl daemon restart --all")


def check_disk(state_dir: Path) -> Check:
    """Is there room for ledger and logs?"""
    try:
        free = shutil.disk_usage(state_dir).free
    except OSError as error:
        return Check("disk", Verdict.FAIL, f"{state_dir}: {error.strerror}", f"ls -ld {state_dir}")
    detail = f"{free // MEBIBYTE} MiB free for {state_dir}"
    if free < _DISK_FAIL:
        return Check("disk", Verdict.FAIL, detail, f"du -sh {state_dir}/*")
    if free < _DISK_WARN:
        return Check("disk", Verdict.WARN, detail, f"du -sh {state_dir}/*")
    return Check("disk", Verdict.OK, detail)


def check_modes(paths: Iterable[Path]) -> Iterable[Check]:
    """Can nobody else open what is ours?"""
    for path in paths:
        name = f"mode:{path.name}"
        try:
            found = path.stat()
        except OSError as error:
            yield Check(name, Verdict.FAIL, f"{path}: {error.strerror}", "pxctl daemon restart --all")
            continue
        mode = stat.S_IMODE(found.st_mode)
        wanted = "700" if stat.S_ISDIR(found.st_mode) else "600"
        if mode & _OPEN_TO_OTHERS:
            yield Check(name, Verdict.FAIL, f"{path} has mode {mode:o}, others may use it", f"chmod {wanted} {path}")
        elif found.st_uid != os.geteuid():
            yield Check(name, Verdict.FAIL, f"{path} belongs to uid {found.st_uid}", f"chown {os.geteuid()} {path}")
        else:
            yield Check(name, Verdict.OK, f"{path} has mode {mode:o}")


def check_uv() -> Check:
    """Is the fast builder of environments there?"""
    found = shutil.which("uv")
    if found:
        return Check("uv", Verdict.OK, found)
    return Check(
        "uv", Verdict.WARN, "uv is not on PATH; environments are built with venv and pip, slowly", "pip install uv"
    )


def check_bytecode(tool: str, folder: Path) -> Check | None:
    """Is the tool's environment compiled? None when it has no environment of its own."""
    if not (folder / VENV).is_dir():
        return None
    if lacks_bytecode(folder / VENV):
        detail = f"the {VENV} of {tool} has no compiled bytecode: every start costs about 3 times as much"
        return Check(f"bytecode:{tool}", Verdict.WARN, detail, f"pxctl tools sync {tool}")
    return Check(f"bytecode:{tool}", Verdict.OK, f"the {VENV} of {tool} is compiled")


def check_dotenv(tool: str, folder: Path) -> Check | None:
    """Can others read a tool's secrets? None when they cannot, or there are none."""
    path = folder / DOTENV
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else 0
    if not mode & _OPEN_TO_OTHERS:
        return None
    detail = f"the {DOTENV} of {tool} has mode {mode:o}: others may read or change its secrets"
    return Check(f"dotenv:{tool}", Verdict.WARN, detail, f"chmod 600 {path}")


def check_service_unit(home: Path, config_home: Path, *, platform: str = sys.platform) -> Check:
    """Will the daemon be there after the next boot?"""
    folders = (
        (home / "Library/LaunchAgents", Path("/Library/LaunchDaemons"))
        if platform == "darwin"
        else (config_home / "systemd/user", Path("/etc/systemd/system"))
    )
    pattern = "*pxd.plist" if platform == "darwin" else _SYSTEMD_UNIT
    present = sorted(path for folder in folders for path in folder.glob(pattern))
    if present:
        return Check("service_unit", Verdict.OK, str(present[0]))
    detail = "no systemd or launchd unit is installed; the daemon does not come back after a boot or a crash"
    return Check("service_unit", Verdict.WARN, detail, "pxctl daemon install")


def check_linger(config_home: Path, *, linger: Path = _LINGER, systemd: Path = _SYSTEMD_RUNS) -> Check | None:
    """Does a user's unit live on after logout? None where that is no question."""
    if not systemd.exists() or not (config_home / "systemd/user" / _SYSTEMD_UNIT).exists():
        return None
    user = pwd.getpwuid(os.geteuid()).pw_name
    if (linger / user).exists():
        return Check("linger", Verdict.OK, f"units of {user} live on after logout")
    detail = f"the unit of {user} is stopped at logout, with everything it holds"
    return Check("linger", Verdict.WARN, detail, f"loginctl enable-linger {user}")
