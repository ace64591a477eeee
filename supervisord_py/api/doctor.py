"""`/api/doctor`: checks of the daemon, its tools, kernels and pipes, each with the one command that repairs it.

A check never raises for what it finds and changes nothing. What blocks on the file system is run in a thread.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from supervisord_py.api.context import ApiCall, ApiContext
from supervisord_py.api.daemon import degraded_parts
from supervisord_py.errors import PxError
from supervisord_py.kernels.room import Kernels
from supervisord_py.kernels.session import BackendName, SessionState
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.model import Caps
from supervisord_py.tools.environment import lacks_bytecode
from supervisord_py.tools.manifest import DOTENV, VENV

MEBIBYTE = 1024 * 1024
OK, WARN, FAIL = "ok", "warn", "fail"
_DISK_FAIL, _DISK_WARN = 100 * MEBIBYTE, 1024 * MEBIBYTE
_FILES_FIXED, _FILES_PER_TOOL, _FILES_PER_KERNEL = 128, 16, 12
_SLOW_SECONDS = 0.5  # of a tool's imports
_STALLED = 3  # failures in a row of a pipe that runs by itself


class Finding(msgspec.Struct, frozen=True):
    """What a check found: `ok`, `warn` or `fail`. `repair` is one command or step; None when nothing is to be done."""

    name: str
    status: str
    detail: str
    repair: str | None = None


async def doctor(call: ApiCall) -> dict[str, Any]:
    """Answer with every check; each that is not ok names the one command that repairs it."""
    context = call.context
    found = [
        *check_daemon(context),
        *check_imports(context.launcher.import_seconds()),
        *await check_kernels(context.kernels),
        *await check_pipes(context.pipes),
        *await asyncio.to_thread(lambda: list(check_machine(context))),
    ]
    return {"checks": found}


def check_daemon(context: ApiContext) -> Iterator[Finding]:
    """What do the rooms say of themselves, what can be enforced here, and did the last keeper die with children?"""
    bad = {one["part"]: Finding(one["part"], FAIL, one["detail"], one["repair"]) for one in degraded_parts(context)}
    yield from bad.values()
    yield from (Finding(part, OK, "works") for part in ("ledger", "log", "config") if part not in bad)
    yield from check_rungs(context.placement.caps)
    if cut_off := sorted({one["unit"] for one in context.interrupted}):
        detail = f"an earlier keeper died, and these were stopped: {', '.join(cut_off)}"
        yield Finding("interrupted", WARN, detail, "pxctl events")
    else:
        yield Finding("interrupted", OK, "nothing was cut off when this daemon started")
    entries = context.launcher.catalog.entries()
    broken = [(one.name, one.error.detail) for one in entries if one.error is not None]
    yield from (Finding(f"tool:{name}", FAIL, detail, f"pxctl tools validate {name}") for name, detail in broken)
    if not broken:
        yield Finding("tools", OK, f"{len(entries)} tools, none broken")


def check_rungs(caps: Caps) -> Iterator[Finding]:
    """How is a tree killed and held to its limits here, and what would do it better?"""
    repair = "pxctl daemon install"
    if caps.kill_rung in {"cgroup", "subreaper"}:
        yield Finding("kill_rung", OK, f"{caps.kill_rung}: a stop finds every descendant")
    else:
        detail = f"{caps.kill_rung}: a child that leaves its process group may be found late or not at all"
        yield Finding("kill_rung", WARN, detail, repair)
    weaker = {
        "memory": f"limits of memory are held by measuring ({caps.memory_rung})",
        "pids": "`processes` counts all of the user's" + (", which is root and bound by none" * (os.geteuid() == 0)),
        "cpu": "`cpu_percent` is not held",
    }
    said = "; ".join(text for name, text in weaker.items() if name not in caps.controllers)
    if said and sys.platform == "linux":
        detail = f"{said}; in a unit of systemd the kernel does it, see DELEGATION in pxd(8)"
        yield Finding("limits", WARN, detail, repair)
    else:
        yield Finding("limits", OK, said or "the kernel holds each tree to its memory, processes and cpu_percent")


def check_machine(context: ApiContext) -> Iterator[Finding]:
    """Are there descriptors, disk and programs enough? Blocks."""
    entries = context.launcher.catalog.entries()
    yield check_open_files(len(entries), sum(view.pid is not None for view in context.kernels.snapshot()))
    yield check_disk(context.config.state_dir)
    if uv := shutil.which("uv"):
        yield Finding("uv", OK, uv)
    else:
        yield Finding("uv", WARN, "not on PATH; environments are built with venv and pip, slowly", "pip install uv")
    for entry in entries:
        yield from check_folder(entry.name, entry.folder)


def check_open_files(tools: int, kernels: int = 0) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_FIXED + _FILES_PER_TOOL * tools + _FILES_PER_KERNEL * kernels
    detail = f"limit {soft}; about {needed} needed for {tools} tools and {kernels} kernels"
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Finding("open_files", OK, detail)
    return Finding("open_files", FAIL, detail, f"ulimit -n {needed * 2} && pxctl daemon restart --all")


def check_disk(state_dir: Path) -> Finding:
    try:
        free = shutil.disk_usage(state_dir).free
    except OSError as error:
        return Finding("disk", FAIL, f"{state_dir}: {error.strerror}", f"ls -ld {state_dir}")
    detail = f"{free // MEBIBYTE} MiB free for {state_dir}"
    if free >= _DISK_WARN:
        return Finding("disk", OK, detail)
    return Finding("disk", FAIL if free < _DISK_FAIL else WARN, detail, f"du -sh {state_dir}/*")


def check_folder(tool: str, folder: Path) -> Iterator[Finding]:
    path = folder / DOTENV
    if path.is_file() and (mode := path.stat().st_mode & 0o777) & 0o077:
        detail = f"the {DOTENV} of {tool} has mode {mode:o}: others may read or change its secrets"
        yield Finding(f"dotenv:{tool}", WARN, detail, f"chmod 600 {path}")
    if (folder / VENV).is_dir() and lacks_bytecode(folder / VENV):
        detail = f"the {VENV} of {tool} has no compiled bytecode: every start costs about 3 times as much"
        yield Finding(f"bytecode:{tool}", WARN, detail, f"pxctl tools sync {tool}")


def check_imports(found: Iterable[tuple[str, Mapping[str, float]]]) -> Iterator[Finding]:
    """For what do the first starts of tools wait? `found`: seconds by package, by tool; later starts are forked."""
    for tool, seconds in found:
        if (total := sum(seconds.values())) >= _SLOW_SECONDS:
            slowest = sorted(seconds, key=lambda package: -seconds[package])[:3]
            named = ", ".join(f"{package} {seconds[package]:.2f} s" for package in slowest)
            yield Finding(f"imports:{tool}", OK, f"a first start imports for {total:.2f} s, most of it {named}")


async def check_kernels(kernels: Kernels) -> list[Finding]:
    """Which cells are offered, which limit holds for nobody, which sessions failed?"""
    found = []
    try:
        report = await kernels.capabilities()
    except PxError as error:
        found.append(Finding("kernels", FAIL, error.detail, error.hint))
    else:
        is_ours = BackendName(report["backend"]) is not BackendName.GATEWAY_EXTERNAL
        repair = "pxctl kernel start --explain" if is_ours else "pxctl config show"
        for name, program, cure in (("python", "interpreter", repair), ("bash", "shell", "put bash on PATH")):
            offer = report[name]
            is_missed = report["wanted"] in {"both", name} and not offer["offered"]
            detail = offer[program] or offer["reason"] or "not offered"
            found.append(Finding(f"kernels:{name}", WARN if is_missed else OK, detail, cure if is_missed else None))
    for view in kernels.snapshot():
        if view.state is SessionState.FAILED:
            detail = str((view.failure or {}).get("detail") or "it failed and does not start again by itself")
            found.append(Finding(view.unit, FAIL, detail, f"pxctl kernel restart {view.id}"))
    return found


async def check_pipes(pipes: Pipes) -> list[Finding]:
    """Are schedules at work, which files are broken, which pipes cannot run, and which agents are missing?"""
    health, views = pipes.health(), pipes.snapshot()
    found = [Finding("scheduler", OK, "schedules and events start pipes")]
    if health.scheduler_error is not None:
        said = f"it died and was restarted ({health.scheduler_restarts} times): {health.scheduler_error}"
        found = [Finding("scheduler", WARN, said, "pxctl daemon restart")]
    elif not health.scheduler_running:
        found = [Finding("scheduler", WARN, "no schedule starts a pipe at present", "pxctl config show")]
    if health.catalog is not None:
        found.append(Finding("pipes_folder", FAIL, health.catalog, "pxctl daemon reload"))
    for name, problems in (await pipes.file_problems()).items():
        found += [Finding(name, FAIL, one, "pxctl daemon reload") for one in problems]
    wrong = []
    for view in views:  # only one that may run by itself must have its agent
        name, failed = f"pipe:{view.name}", view.config_error
        if failed is None:
            with suppress(PxError):  # it went in between
                checks = await pipes.validate(view.name)
                failed = "; ".join(one.detail for one in checks if one.verdict == "fail")
        if failed:
            verdict = FAIL if view.enabled or view.config_error else WARN
            wrong.append(Finding(name, verdict, failed, f"pxctl pipe validate {view.name}"))
        elif view.enabled and view.consecutive_failures >= _STALLED:
            said = f"failed {view.consecutive_failures} times in a row"
            wrong.append(Finding(name, WARN, said, f"pxctl pipe output {view.name} --stderr"))
    return [*found, *(wrong or [Finding("pipes", OK, f"{len(views)} pipes, none broken")])]
