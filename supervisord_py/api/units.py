"""Tools, kernels and pipes as units: one view of each, derived when asked; and the units that names
and globs mean.

A kernel has a second name that is not its own alone: `kernel:default-3fa9c1` is `default` as long
as no other is called so. An exact name wins over its reading as a glob: there are folders with a
bracket in their name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Coroutine, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from supervisord_py.api.context import ApiCall, ApiContext
from supervisord_py.api.streams import pick, rfc3339, uptime_seconds
from supervisord_py.config.documents import nearest
from supervisord_py.errors import (
    AmbiguousNameError,
    PxError,
    SurvivorsError,
    TimedOutError,
    UnknownUnitError,
)
from supervisord_py.kernels.kernel_pool import GATEWAY_UNIT
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import StartRequest
from supervisord_py.ledger.pipes import Status
from supervisord_py.pipes.models import PipeView
from supervisord_py.process.model import Reason, Survivor, TreeStat
from supervisord_py.process.shared_memory import shared_once

# a status is answered without what its trees use where the keeper takes longer to measure
MEASURE_SECONDS = 5.0
T = TypeVar("T")


class UnitView(msgspec.Struct, kw_only=True):
    """One unit as `status` shows it: members of CONTRACT §3, our own, those of kernels, of pipes.

    Times: RFC 3339.
    """

    unit: str
    kind: str
    name: str
    state: str = "cold"
    reason: str | None = None
    pid: int | None = None
    started_at: str | None = None
    uptime_seconds: float | None = None
    rss_bytes: int | None = None  # of all its processes; pages that they share count once for each
    # the same with shared pages counted once, where that is known: `memory_kind`
    memory_bytes: int | None = None
    memory_kind: str | None = None  # `pss` (proportional set size) or `rss`
    cpu_percent: float | None = None
    last_used: str | None = None
    in_flight: int = 0
    pinned: bool = False
    start_method: str | None = None
    restarts: int = 0
    next_run: str | None = None
    config_error: str | None = None
    port: int | None = None
    instance: str | None = None
    waiting: int = 0
    processes: int | None = None
    pressure: Mapping[str, float | None] | None = None
    cold_start_ms: int | None = None
    failure: Mapping[str, Any] | None = None
    survivors: Sequence[Any] = ()
    warnings: Sequence[str] = ()
    plain_port: bool = False  # of a tool whose starts were found to need one; `warnings` says why
    config_problem: Mapping[str, Any] | None = None
    running: str | int | None = None  # cell or execution
    silent: str | None = None  # that a kernel does not answer, though no cell of ours runs in it
    silent_hint: str | None = None  # what to do about that
    preparing: str | None = None  # what is being installed for a session, and how far that is
    session: str | None = None  # its name, which others may have
    cwd: str | None = None
    interpreter: str | None = None
    backend: str | None = None
    enabled: bool | None = None
    schedule: str | None = None
    last_status: Status | None = None
    consecutive_failures: int | None = None


def all_units(context: ApiContext) -> dict[str, UnitView]:
    """Return every unit that can be named: tools, those held though their folder is gone,
    kernels, pipes; sorted.
    """
    found: list[UnitView] = []
    for state in context.launcher.snapshot():
        error = state.config_error
        broken = {
            "config_error": error and error.detail,
            "config_problem": error and error.problem(),
        }
        found.append(_unit(state, kind="tool", **broken))
    for view in context.kernels.snapshot():
        calls = {"in_flight": int(view.running is not None), "waiting": view.queued}
        found.append(
            _unit(
                view, kind="kernel", name=view.id, session=view.name, warnings=view.notices, **calls
            )
        )
    if (gateway := context.kernels.gateway()) is not None:
        found.append(_unit(gateway, in_flight=gateway.kernels))
    found += [pipe_unit(view) for view in context.pipes.snapshot()]
    return {view.unit: view for view in sorted(found, key=lambda view: view.unit)}


def view_of(context: ApiContext, unit: str) -> UnitView:
    """Return one of them by its full name; one that nobody knows any more is cold."""
    kind, _, name = unit.partition(":")
    return all_units(context).get(unit) or UnitView(unit=unit, kind=kind, name=name)


def _unit(seen: Any, /, **known: Any) -> UnitView:
    """Return a unit: what is known, and all that its room's own view says by the same name."""
    same = [
        name for name in UnitView.__struct_fields__ if name not in known and hasattr(seen, name)
    ]
    if seen.started_at is not None:
        known["uptime_seconds"] = uptime_seconds(seen.started_at)
    return UnitView(**pick(seen, *same), **known)


def pipe_unit(view: PipeView) -> UnitView:
    hint = f"pxctl pipe validate {view.name}"
    failure = view.config_error and {
        "kind": "config_error",
        "detail": view.config_error,
        "hint": hint,
    }
    known = {"unit": f"pipe:{view.name}", "kind": "pipe", "last_used": rfc3339(view.last_run)}
    calls = {"in_flight": int(view.running is not None), "waiting": view.queued}
    return _unit(view, failure=failure or None, config_problem=failure or None, **known, **calls)


def second_names(units: Collection[UnitView], cwd: str | None = None) -> dict[str, str]:
    """Return the sessions' names by unit: of several that have a name, those that are meant by it.

    Those of the folder `cwd`, a real path, come first, then living ones, then those that run
    Python.
    """
    sessions = [(unit.session, unit) for unit in units if unit.session is not None]
    names_here = {name for name, unit in sessions if unit.cwd == cwd}
    sessions = [
        (name, unit) for name, unit in sessions if unit.cwd == cwd or name not in names_here
    ]
    living = {name for name, unit in sessions if unit.state != "stopped"}
    known = [
        (name, unit) for name, unit in sessions if unit.state != "stopped" or name not in living
    ]
    pythons = {(name, unit.cwd) for name, unit in known if unit.backend != "bash"}
    return {
        unit.unit: name
        for name, unit in known
        if unit.backend != "bash" or (name, unit.cwd) not in pythons
    }


def unit_named(call: ApiCall, name: str | None = None, *, cwd: str | None) -> UnitView:
    """Return the single unit that a name, else `{u}` of the path, means; a session's name in the
    folder `cwd`.
    """
    units, name = all_units(call.context), call.request.match_info["u"] if name is None else name
    sessions = second_names(units.values(), cwd and os.path.realpath(cwd))
    return units[resolve_one(name, units, sessions)]


def units_named(call: ApiCall, patterns: Sequence[str], *, cwd: str | None) -> list[UnitView]:
    """Return the units that patterns mean, sessions' names in the folder `cwd`.

    Without any pattern: all but kernels that are only remembered.
    """
    units = all_units(call.context)
    if patterns:
        sessions = second_names(units.values(), cwd and os.path.realpath(cwd))
        return [units[unit] for unit in resolve(patterns, units, sessions)]
    return [unit for unit in units.values() if unit.kind != "kernel" or unit.state != "stopped"]


def is_glob(pattern: str) -> bool:
    """Say whether a name is to be read as a glob, unless a unit is called exactly that."""
    return any(sign in pattern for sign in "*?[")


def resolve(
    patterns: Sequence[str],
    units: Collection[str],
    second_names: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return the units that the patterns mean, each once, in the order asked for; a glob's are
    sorted.

    `second_names`: by unit, where it has one; without a kind. Raises UnknownUnitError: a pattern
    fits nothing, the hint names the nearest; AmbiguousNameError: a name fits several units,
    `candidates` lists them.
    """
    found: dict[str, None] = {}
    ordered = sorted(units)
    names = {unit: {unit, unit.partition(":")[2]} for unit in ordered}
    for unit, second in second_names.items():
        names[unit] |= {second, f"{unit.partition(':')[0]}:{second}"}
    for pattern in patterns:
        kind, colon, rest = pattern.rpartition(":")
        named = (
            [pattern] if pattern in names else [unit for unit in ordered if pattern in names[unit]]
        )
        if len(named) > 1:
            raise _ambiguous(pattern, named)
        if not named and is_glob(pattern):
            named = [
                unit
                for unit in ordered
                if fnmatchcase(unit if colon else unit.partition(":")[2], pattern)
            ]
        if not named:
            what = "No unit matches" if is_glob(pattern) else "There is no unit"
            # Kinds do not count as likeness, or `tool:` alone would make any two tools look alike.
            ordered.sort(key=lambda unit: unit.startswith(kind + colon))
            bare = {unit.partition(":")[2]: unit for unit in ordered}
            near = nearest(rest, bare, 0.5)
            hint = f"did you mean {bare[near]!r}?" if near else "see: pxctl status"
            if pattern.isdecimal():
                hint = f"if it is an execution of a pipe: pxctl pipe show {pattern}"
            raise UnknownUnitError(f"{what} {pattern!r}.", hint=hint)
        found.update(dict.fromkeys(named))
    return tuple(found)


def resolve_one(
    pattern: str, units: Collection[str], second_names: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the single unit that a pattern means; raises as `resolve`, AmbiguousNameError also
    of a glob.
    """
    found = resolve([pattern], units, second_names)
    if len(found) > 1:
        raise _ambiguous(pattern, found)
    return found[0]


def _ambiguous(pattern: str, candidates: Sequence[str]) -> AmbiguousNameError:
    detail = f"{pattern!r} fits {len(candidates)} units: {', '.join(candidates)}."
    return AmbiguousNameError(
        detail, hint=f"say which, for example {candidates[0]}", candidates=list(candidates)
    )


async def measured(call: ApiCall, views: Sequence[UnitView]) -> Sequence[UnitView]:
    """Add what their trees use now: memory, processes, pressure, and CPU on the average of their
    lives, as ps does.
    """
    stats = await measure(call.context, views)
    for view in views:
        if (measurement := stats.get(view.instance or "")) is not None:
            stat = measurement.stat
            view.rss_bytes, view.processes, view.pressure = (
                stat.rss_bytes,
                stat.processes,
                stat.pressure,
            )
            view.memory_bytes, view.memory_kind = measurement.memory_bytes, measurement.memory_kind
            view.cpu_percent = round(
                stat.cpu_seconds / max(view.uptime_seconds or 0.0, 0.1) * 100, 1
            )
    return views


class Measurement(msgspec.Struct, frozen=True):
    """What a tree uses now.

    `memory_bytes` counts shared pages once where `memory_kind` is `pss`.
    """

    stat: TreeStat
    memory_bytes: int
    memory_kind: str


async def measure(
    context: ApiContext, views: Sequence[UnitView | SessionView]
) -> Mapping[str, Measurement]:
    """Measure the trees; without the keeper there is nothing to measure, and status must still
    answer.
    """
    living = [view.instance for view in views if view.instance is not None]
    if not living or context.placement.is_silent:
        return {}
    forked = {
        view.instance
        for view in views
        if view.instance is not None and view.start_method == "zygote"
    }
    stats: Mapping[str, TreeStat] = {}
    proportional: Mapping[str, int] = {}
    with contextlib.suppress(PxError, TimeoutError):
        async with asyncio.timeout(MEASURE_SECONDS):
            stats = await context.placement.stat(living)
            proportional = await asyncio.to_thread(shared_once, stats, forked)
    found: dict[str, Measurement] = {}
    for key, stat in stats.items():
        if key in proportional:
            found[key] = Measurement(stat, proportional[key], "pss")
        else:
            found[key] = Measurement(stat, stat.rss_bytes, "rss")
    return found


async def change_unit(
    call: ApiCall, verb: str, unit: str, timeout: float | None, wait: bool = True
) -> dict[str, Any]:
    """Start or stop a tool or kernel, also without waiting for it.

    Of a stop `killed` names the unit if its grace was not enough, and `unassigned` lists orphans
    (pid, name, start time) that may be left of it, though nothing tells whose they are.

    Raises SurvivorsError: something is left; TimedOutError: the time is over.
    """
    context = call.context
    killed: list[str] = []
    unassigned: list[Survivor] = []
    kind, _, name = unit.partition(":")

    async def work() -> None:
        if kind == "tool" and verb == "start":
            await context.launcher.warm(name, timeout_seconds=timeout)
        elif kind == "tool":
            report = await context.launcher.stop(name, Reason.STOPPED)
            if report.killed:
                killed.append(unit)
            unassigned.extend(report.unassigned)
        elif unit == GATEWAY_UNIT and verb == "start":
            await context.kernels.start_gateway()
        elif unit == GATEWAY_UNIT:
            refuse_survivors(unit, await context.kernels.stop_gateway())
        elif verb == "start":
            await context.kernels.start(StartRequest(name=name, timeout_seconds=timeout))
        else:
            await stop_kernel(context, context.kernels.find(name))

    if kind == "tool" and verb == "start":
        context.launcher.catalog.get(name)  # a broken one is told, also to who does not wait
    if not wait:
        call.live.detach(work())
    elif verb == "start":
        await work()
    else:
        await within(call, timeout, f"The stop of {unit}", work(), unit)
    views = await measured(call, [view_of(context, unit)])
    document = {"schema": f"px.{verb}/1", "units": views}
    if verb == "start":
        return document
    return {**document, "survivors": [], "killed": killed, "unassigned": unassigned}


async def stop_kernel(context: ApiContext, view: SessionView) -> None:
    """End the kernel of a session. Raises SurvivorsError: something is left of it."""
    refuse_survivors(view.unit, await context.kernels.stop(view.id))


def refuse_survivors(unit: str, survivors: Sequence[int]) -> None:
    """Raise SurvivorsError where a stop has left processes."""
    if survivors:
        pids = ",".join(map(str, survivors))
        detail = f"{unit} is not gone: pid {pids} outlived the stop."
        left = [{"pid": pid} for pid in survivors]
        raise SurvivorsError(detail, hint=f"ps -fp {pids}", unit=unit, survivors=left)


async def within(
    call: ApiCall, seconds: float | None, what: str, work: Coroutine[Any, Any, T], unit: str
) -> T:
    """Wait for work that goes on when the time is over. Raises TimedOutError: it is."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        call.live.detach(task, owned=True)
        detail = f"{what} took longer than {seconds:g} s; it goes on."
        raise TimedOutError(detail, hint=f"pxctl why {unit}", unit=unit)
    return task.result()
