"""`/api/health`, `/api/daemon…`, `/api/config`, `/api/doctor`: the daemon itself, and its
checks.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from supervisord_py import __version__
from supervisord_py.api.context import ApiCall, ApiContext
from supervisord_py.api.streams import pick, rfc3339, uptime_seconds
from supervisord_py.errors import PxError
from supervisord_py.keeper import procfs
from supervisord_py.kernels.kernel_pool import GATEWAY_UNIT
from supervisord_py.kernels.room import Kernels
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger.place import MOVED, moved_ledgers
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.model import Caps
from supervisord_py.tools.manifest import DOTENV
from supervisord_py.tools.status import UNRESPONSIVE


async def show_daemon(call: ApiCall) -> dict[str, Any]:
    """Answer with the daemon object: keeper, control plane, and the rungs of the ladders in use."""
    config, caps = call.context.config, call.context.placement.caps
    return {
        "version": __version__,
        **pick(config, "daemon_id", "socket", "system"),
        "tcp_address": None if config.tcp is None else config.tcp.address,
        "token_file": None if config.tcp is None else config.tcp.token_file,
        "stopping": call.context.control.stopping,
        "keeper": _process(caps.keeper_version, caps.keeper_pid, caps.keeper_started_at),
        "control": {
            **_process(__version__, os.getpid(), config.started_at),
            "restarts": caps.control_restarts,
        },
        **pick(caps, "kill_rung", "memory_rung", "controllers"),
        "interrupted": call.context.interrupted,
        "degraded": degraded_parts(call.context),
    }


def _process(version: str | None, pid: int, started_at: float) -> dict[str, Any]:
    times = {"started_at": rfc3339(started_at), "uptime_seconds": uptime_seconds(started_at)}
    return {"version": version, "pid": pid, **times, "rss_bytes": procfs.resident(pid) or None}


def degraded_parts(context: ApiContext) -> list[dict[str, str]]:
    """Return what works only in part: `{part, detail, repair}` each."""
    found = [*context.control.degraded.values(), *_moved_ledgers(context)]
    for unit, why in context.pipes.refused_output().items():
        detail = f"the disk refuses it, and its agent waits: {why}"
        found.append(
            {"part": f"output of {unit}", "detail": detail, "repair": "df -h, then free some space"}
        )
    if (why := context.pipes.health()["scheduler_error"]) is not None:
        found.append(
            {
                "part": "scheduler",
                "detail": f"was restarted: {why}",
                "repair": "pxctl daemon restart",
            }
        )
    return found


def _moved_ledgers(context: ApiContext) -> Iterator[dict[str, str]]:
    """Yield one part for all damaged ledgers that lie beside the present one: until they go,
    they may be wanted.
    """
    ledger = context.ledger
    lines = []
    for moved in moved_ledgers(ledger.path):
        why = ledger.why_moved(moved.path.name) or "the reason was not recorded"
        lines.append(
            f"moved aside at {rfc3339(moved.moved_at)} because it was damaged ({why}): {moved.path}"
        )
    if lines:
        detail = f"{'; '.join(lines)}; a new ledger was begun"
        yield {
            "part": "earlier ledger",
            "detail": detail,
            "repair": f"rm {shlex.quote(str(ledger.path))}{MOVED}*",
        }


async def health(call: ApiCall) -> dict[str, Any]:
    """Answer that the API serves, and what works only in part."""
    context = call.context
    known = {"ok": True, "version": __version__, "daemon_id": context.config.daemon_id}
    return {**known, "degraded": degraded_parts(context), "pipes": context.pipes.health()}


async def reload(call: ApiCall) -> dict[str, Any]:
    """Read settings and tools again; what is broken is refused and the old settings stay."""
    report = await call.context.control.reload()
    of_files = [
        one for found in (await call.context.pipes.file_problems()).values() for one in found
    ]
    return {**report, "warnings": [*report["warnings"], *of_files]}


async def restart(call: ApiCall, *, all: bool = False) -> dict[str, Any]:
    """Replace the control plane, or with `all` stop everything and begin anew."""
    await call.context.control.restart(everything=all)
    return {"wish": "restart", "scope": "all" if all else "control"}


async def stop(call: ApiCall) -> dict[str, Any]:
    """Begin the orderly stop of everything."""
    call.context.control.stop()
    return {"wish": "stop", "scope": "all"}


async def show_config(call: ApiCall) -> dict[str, Any]:
    """Answer with every effective setting and where it came from."""
    return {"settings": call.context.control.loaded.rows()}


# -- doctor: checks, each with the one command that repairs it; none raises for what it finds, none
# changes anything

MEBIBYTE = 1024 * 1024
OK, WARN, FAIL = "ok", "warn", "fail"
_UNIT = "pxd.service"
_SLOW_SECONDS = 0.5  # of a tool's imports


class Finding(msgspec.Struct, frozen=True):
    """What a check found: `ok`, `warn` or `fail`.

    `repair` is one command or step; None when nothing is to be done.
    """

    name: str
    status: str
    detail: str
    repair: str | None = None


async def doctor(call: ApiCall) -> dict[str, Any]:
    """Answer with every check; each that is not ok names the one command that repairs it."""
    context = call.context
    found = [
        *check_daemon(context),
        *check_rungs(
            context.placement.caps, is_service=_is_in_unit(), offered=offered_controllers()
        ),
        *check_imports(context.launcher.import_seconds()),
        *(Finding(f"forks:{tool}", OK, why) for tool, why in context.launcher.import_limits()),
        *await check_kernels(context.kernels),
        *await check_pipes(context.pipes),
        # what blocks on the file system
        *await asyncio.to_thread(lambda: list(check_machine(context))),
    ]
    return {"checks": found}


def check_daemon(context: ApiContext) -> Iterator[Finding]:
    """What do the rooms say of themselves, and did the last keeper die with children?"""
    bad = {
        one["part"]: Finding(one["part"], FAIL, one["detail"], one["repair"])
        for one in degraded_parts(context)
    }
    yield from bad.values()
    yield from (Finding(part, OK, "works") for part in ("ledger", "config") if part not in bad)
    if cut_off := sorted({one["unit"] for one in context.interrupted}):
        detail = f"an earlier keeper died, and these were stopped: {', '.join(cut_off)}"
        yield Finding("interrupted", WARN, detail, "pxctl events")
    else:
        yield Finding("interrupted", OK, "nothing was cut off when this daemon started")
    entries = context.launcher.catalog.entries()
    broken = [(one.name, one.error.detail) for one in entries if one.error is not None]
    yield from (
        Finding(f"tool:{name}", FAIL, detail, f"pxctl tools validate {name}")
        for name, detail in broken
    )
    silent = [state for state in context.launcher.snapshot() if state.state == UNRESPONSIVE]
    for state in silent:
        detail = f"it runs (pid {state.pid}), but has not answered since a call was given up"
        yield Finding(state.unit, FAIL, detail, f"pxctl restart {state.name}")
    if not broken and not silent:
        yield Finding("tools", OK, f"{len(entries)} tools, none broken")


def _text_of(path: str) -> str:
    """Return a file of the kernel; "" where there is none, as on macOS."""
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    return ""


def offered_controllers() -> frozenset[str]:
    """Return the controllers of cgroup v2 that this kernel offers; none where it is not mounted."""
    for line in _text_of("/proc/self/mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            with suppress(OSError):
                return frozenset(
                    Path(mount.split()[4], "cgroup.controllers").read_text(encoding="ascii").split()
                )
    return frozenset()


def _is_in_unit() -> bool:
    """Say whether this daemon runs in its unit of systemd. (INVOCATION_ID says less: shells of a
    session have it.)
    """
    groups = _text_of("/proc/self/cgroup").splitlines()
    return any(f"/{_UNIT}/" in f"{group}/" for group in groups)


def check_rungs(caps: Caps, *, is_service: bool, offered: frozenset[str]) -> Iterator[Finding]:
    """How is a tree killed and held to its limits here, and what would do it better?

    `is_service`: a service manager has started the daemon. `offered`: controllers that the kernel
    could give to it.
    """
    repair = None if is_service else "pxctl daemon install"
    if caps.kill_rung == "cgroup":
        yield Finding("kill_rung", OK, "cgroup: a stop finds every descendant")
    elif caps.kill_rung == "subreaper":
        detail = (
            "subreaper: a stop finds descendants by parent, mark, process group and output pipe,"
            " and names those that it cannot assign"
        )
        yield Finding("kill_rung", OK, detail)
    else:
        detail = (
            f"{caps.kill_rung}: a child that leaves its process group may be found late or not at "
            "all"
        )
        yield Finding("kill_rung", WARN, detail, repair)
    weaker = {
        "memory": f"limits of memory are held by measuring ({caps.memory_rung})",
        "pids": "`processes` counts all of the user's"
        + (", which is root and bound by none" * (os.geteuid() == 0)),
        "cpu": "`cpu_percent` is not held",
    }
    missing = [name for name in weaker if name not in caps.controllers]
    said = "; ".join(weaker[name] for name in missing)
    absent = [name for name in missing if name not in offered]
    if missing and sys.platform == "linux" and absent == missing:
        # Then no unit would change it, and there is nothing to repair.
        detail = f"{said}; this kernel offers no cgroup-v2 controller for {', '.join(absent)}"
        yield Finding("limits", WARN, detail)
    elif missing and sys.platform == "linux":
        place = (
            "the unit has no right to them: Delegate=yes"
            if is_service
            else "in a unit of systemd the kernel does it"
        )
        delegate = "pxctl daemon install --force" if is_service else repair
        yield Finding("limits", WARN, f"{said}; {place}, see DELEGATION in pxd(8)", delegate)
    else:
        yield Finding(
            "limits",
            OK,
            said or "the kernel holds each tree to its memory, processes and cpu_percent",
        )


def check_machine(context: ApiContext) -> Iterator[Finding]:
    """Are there descriptors and disk enough, and are secrets closed?"""
    entries, state_dir = context.launcher.catalog.entries(), context.ledger.path.parent
    tools, kernels = len(entries), sum(view.pid is not None for view in context.kernels.snapshot())
    soft, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 128 + 16 * tools + 12 * kernels
    is_enough = soft == resource.RLIM_INFINITY or soft >= needed
    detail = f"limit {soft}; about {needed} needed for {tools} tools and {kernels} kernels"
    repair = None if is_enough else f"ulimit -n {needed * 2} && pxctl daemon restart --all"
    yield Finding("open_files", OK if is_enough else FAIL, detail, repair)
    free = shutil.disk_usage(state_dir).free // MEBIBYTE
    status = OK if free >= 1024 else WARN if free >= 100 else FAIL
    repair = None if status == OK else f"du -sh {state_dir}/*"
    yield Finding("disk", status, f"{free} MiB free for {state_dir}", repair)
    for entry in entries:
        path = entry.folder / DOTENV
        if path.is_file() and (mode := path.stat().st_mode & 0o777) & 0o077:
            detail = (
                f"the {DOTENV} of {entry.name} has mode {mode:o}: others may read or change its "
                "secrets"
            )
            yield Finding(f"dotenv:{entry.name}", WARN, detail, f"chmod 600 {path}")


def check_imports(found: Iterable[tuple[str, Mapping[str, float]]]) -> Iterator[Finding]:
    """For what do the first starts of tools wait?

    `found`: seconds by package, by tool; later starts are forked.
    """
    for tool, seconds in found:
        if (total := sum(seconds.values())) >= _SLOW_SECONDS:
            slowest = sorted(seconds, key=lambda package: -seconds[package])[:3]
            named = ", ".join(f"{package} {seconds[package]:.2f} s" for package in slowest)
            yield Finding(
                f"imports:{tool}",
                OK,
                f"a first start imports for {total:.2f} s, most of it {named}",
            )


async def check_kernels(kernels: Kernels) -> list[Finding]:
    """Which cells are offered, and which sessions failed?"""
    found = []
    try:
        report = await kernels.capabilities()
    except PxError as error:
        found.append(Finding("kernels", FAIL, error.detail, error.hint))
    else:
        of_python = ("python", "interpreter", "pxctl kernel start --explain")
        for name, program, cure in (of_python, ("bash", "shell", "put bash on PATH")):
            offer = report[name]
            is_missed = report["wanted"] in {"both", name} and not offer["offered"]
            detail = offer[program] or offer["reason"] or "not offered"
            repair = offer.get("hint") or cure
            found.append(
                Finding(
                    f"kernels:{name}",
                    WARN if is_missed else OK,
                    detail,
                    repair if is_missed else None,
                )
            )
    if (trouble := await kernels.gateway_trouble()) is not None:
        found.append(
            Finding(
                GATEWAY_UNIT,
                FAIL,
                f"the shared gateway cannot start kernels: {trouble}",
                f"pxctl restart {GATEWAY_UNIT}",
            )
        )
    for view in kernels.snapshot():
        if view.state is SessionState.FAILED:
            detail = str(
                (view.failure or {}).get("detail") or "it failed and does not start again by itself"
            )
            found.append(Finding(view.unit, FAIL, detail, f"pxctl kernel restart {view.id}"))
    return found


async def check_pipes(pipes: Pipes) -> list[Finding]:
    """Are schedules at work, which files are broken, which pipes cannot run, and which agents
    are missing?
    """
    health, views = pipes.health(), pipes.snapshot()
    found = [Finding("scheduler", OK, "schedules and events start pipes")]
    if not health["scheduler_running"]:
        found = [
            Finding("scheduler", WARN, "no schedule starts a pipe at present", "pxctl config show")
        ]
    if health["catalog"] is not None:
        found.append(Finding("pipes_folder", FAIL, health["catalog"], "pxctl daemon reload"))
    for name, problems in (await pipes.file_problems()).items():
        found += [Finding(name, FAIL, one, "pxctl daemon reload") for one in problems]
    wrong = []
    for view in views:  # only one that may run by itself must have its agent
        failed = view.config_error
        if failed is None:
            with suppress(PxError):  # it went in between
                failed = "; ".join(
                    one.detail for one in await pipes.validate(view.name) if one.verdict == "fail"
                )
        if failed:
            verdict = FAIL if view.enabled or view.config_error else WARN
            wrong.append(
                Finding(f"pipe:{view.name}", verdict, failed, f"pxctl pipe validate {view.name}")
            )
    return [*found, *(wrong or [Finding("pipes", OK, f"{len(views)} pipes, none broken")])]
