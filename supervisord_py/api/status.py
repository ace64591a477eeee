"""`/api/status` and `/api/units…`: how all is and why, and several units started, stopped or
waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Literal

from supervisord_py.api import kernels, pipes
from supervisord_py.api import schemas as s
from supervisord_py.api.context import ApiCall
from supervisord_py.api.daemon import show_daemon
from supervisord_py.api.streams import pick, rfc3339, until_closing
from supervisord_py.api.units import (
    UnitView,
    change_unit,
    measured,
    unit_named,
    units_named,
    view_of,
    within,
)
from supervisord_py.errors import (
    BadRequestError,
    PxError,
    ShuttingDownError,
    TimedOutError,
    UnknownUnitError,
)
from supervisord_py.kernels.kernel_pool import GATEWAY_UNIT
from supervisord_py.ledger import instances
from supervisord_py.process.event_words import EventFilter, Journal
from supervisord_py.process.events import Event, EventStream, chain, last_death
from supervisord_py.process.logs import LogReader, Stream
from supervisord_py.process.model import Reason

_DEFAULT_WAIT_SECONDS = 60.0
_READY = frozenset({"ready", "idle", "busy"})
_UNDER_WAY = frozenset({"preparing", "starting", "stopping", "unresponsive"}) | _READY
_OFF = frozenset({"cold", "stopped"})


async def status(
    call: ApiCall, *, unit: tuple[str, ...] = (), cwd: s.Folder | None = None
) -> dict[str, Any]:
    """Answer with the daemon and the units asked for; when none was named, all but kernels that
    are only remembered.
    """
    await call.context.kernels.look_again()
    units = await measured(call, units_named(call, unit, cwd=cwd))
    return {"daemon": await show_daemon(call), "units": units}


async def list_units(
    call: ApiCall, *, name: tuple[str, ...] = (), cwd: s.Folder | None = None
) -> dict[str, Any]:
    """Answer with the units that names and globs mean."""
    try:
        views = units_named(call, name, cwd=cwd)
    except UnknownUnitError:
        await call.context.pipes.files.refresh()  # it may be a pipe that was written a moment ago
        views = units_named(call, name, cwd=cwd)
    return {"units": [pick(view, "unit", "kind", "name", "state") for view in views]}


async def change(
    call: ApiCall,
    *,
    unit: tuple[str, ...] = (),
    timeout: s.Seconds | None = None,
    wait: bool | None = None,
    cwd: s.Folder | None = None,
) -> dict[str, Any]:
    """Start, stop or restart at once every unit that the names mean; each has its answer or
    problem in `results`.
    """
    verb = call.request.path.rpartition("/")[2]
    if not unit:
        raise BadRequestError("No unit is named.", hint="give ?unit=NAME, again for each unit")
    views = units_named(call, unit, cwd=cwd)

    async def result(view: UnitView) -> dict[str, Any]:
        try:
            return {
                "unit": view.unit,
                "answer": await _act(call, verb, view, timeout, wait),
                "problem": None,
            }
        except PxError as error:
            return {"unit": view.unit, "answer": None, "problem": error.problem()}

    return {"results": await asyncio.gather(*map(result, views))}


async def _act(
    call: ApiCall, verb: str, view: UnitView, timeout: float | None, wait: bool | None
) -> dict[str, Any]:
    """Do it to one unit. A stop within a restart is always waited for."""
    if view.kind == "pipe":
        if verb == "start":
            [queued] = await call.context.pipes.run(view.name)
            if wait is True:
                return pipes.whole_document(await call.context.pipes.wait(queued.id))
            return {"schema": "px.execution/1", **pipes.execution_document(queued)}
        if verb == "stop":
            work = call.context.pipes.cancel_pipe(view.name)
            return pipes.list_document(
                await within(call, timeout, f"The stop of {view.unit}", work, view.unit)
            )
        hint = (
            f"pxctl stop {view.unit} && pxctl start {view.unit}; the last one again: pxctl pipe "
            "retry ID"
        )
        raise BadRequestError(
            "A pipe is not restarted: each execution is a run of its own.",
            hint=hint,
            unit=view.unit,
        )
    if verb != "restart":
        return await change_unit(call, verb, view.unit, timeout, wait is not False)
    is_session = view.kind == "kernel" and view.unit != GATEWAY_UNIT
    if is_session and wait is not False:  # calls in line are kept
        again = call.context.kernels.restart(view.name)
        restarted = await within(call, timeout, f"The restart of {view.unit}", again, view.unit)
        return kernels.session_document(call, restarted)
    await change_unit(call, "stop", view.unit, timeout)
    return await change_unit(call, "start", view.unit, timeout, wait is not False)


async def wait(
    call: ApiCall,
    *,
    for_: Literal["ready", "stopped", "done"] = "ready",
    timeout: s.Seconds | None = None,
    cwd: s.Folder | None = None,
) -> dict[str, Any]:
    """Answer once the unit is as wanted, or once it cannot become so any more: then `ok` is false.

    504 when the time is over.
    """
    unit, began = unit_named(call, cwd=cwd).unit, False
    # Subscribe first, then read the state, then wait: nothing can happen unseen in between.
    happens, beat_seconds = (
        call.context.events.subscribe(unit=unit),
        call.context.config.stream_heartbeat_seconds,
    )
    try:
        async with (
            asyncio.timeout(_DEFAULT_WAIT_SECONDS if timeout is None else timeout),
            aclosing(until_closing(happens, call.live.closing, beat_seconds)) as news,
        ):
            while True:
                view = view_of(call.context, unit)
                if (ok := _reached(for_, view, began=began)) is not None:
                    return {**pick(view, "unit", "state", "reason"), "ok": ok}
                began = began or view.state in _UNDER_WAY
                if await anext(news, False) is False:
                    raise ShuttingDownError("The daemon is stopping; the wait ends.", unit=unit)
    except TimeoutError as error:
        detail = (
            f"{unit} is {view_of(call.context, unit).state}, not {for_}, when the time was over."
        )
        raise TimedOutError(detail, hint=f"pxctl why {unit}", unit=unit) from error


def _reached(goal: str, view: UnitView, *, began: bool) -> bool | None:
    """Say whether a goal is reached, or out of reach (False), or may still come (None).

    What is off may still be started by someone else, unless it was seen starting: then its start
    has failed.
    """
    word = view.state
    if view.kind == "pipe":
        if goal == "ready":
            return word in {"running", "queued", "idle"}
        if word in {"running", "queued"}:
            return None
        return goal == "stopped" or view.last_status in {None, "completed"}
    if goal == "stopped":
        return True if word in _OFF | {"failed"} else None
    if word in (_READY if goal == "ready" else {"ready", "idle"} | _OFF):
        return True
    return False if word == "failed" or (goal == "ready" and began and word in _OFF) else None


# -- why: from the last thing that mattered back to its cause, in words a person can act on --------

_UP = frozenset(
    {"preparing", "starting", "ready", "idle", "busy", "unresponsive", "running", "queued"}
)
_LOOK_BACK = 200
_REMOVALS = frozenset({"removed", "pipe_removed"})
_LED_TO_NOTHING = frozenset({"run", "cell_failed"})
_TAIL_BYTES = 16 * 1024

_LOGS = "pxctl logs {unit} --stderr"
_START = "pxctl start {unit}"
_DEBUG = "pxctl tools debug {name}"
_MEMORY = "kernels.hard_memory_mb, or more than kernels.soft_memory_mb at the end of a cell"

MEANINGS = {
    Reason.EXIT: ("it exited by itself", _LOGS),
    Reason.SIGNAL: ("a signal that this daemon did not send ended it", _LOGS),
    Reason.STOPPED: ("someone asked to stop it", _START),
    Reason.EVICTED_LRU: (
        "the warm set was full, and it was the first to go (tools.evict)",
        "pxctl pin {name}",
    ),
    Reason.EVICTED_TTL: ("nobody used it for its warm_keep_seconds", "pxctl pin --forever {name}"),
    Reason.MEMORY_LIMIT: (
        "it used more memory than max_memory_mb",
        "raise max_memory_mb in tool.json",
    ),
    Reason.OOM_KILL: (
        "the kernel killed it because memory ran out",
        "lower the limits of what runs beside it",
    ),
    Reason.RUNTIME_LIMIT: (
        "a run took longer than max_runtime_seconds",
        "raise max_runtime_seconds in tool.json",
    ),
    Reason.CPU_LIMIT: (
        "it used more CPU time than its limit",
        "raise limits.cpu_seconds, or its own setrlimit",
    ),
    Reason.WATCHDOG: ("it stopped giving signs of life", "pxctl restart {unit}"),
    Reason.READINESS_TIMEOUT: ("it did not become ready in time after its start", _DEBUG),
    Reason.EARLY_EXIT: ("it ended before it was ready, or could never be reached", _DEBUG),
    Reason.SPAWN_FAILED: ("it could not be started at all", _DEBUG),
    Reason.SHUTDOWN: ("the daemon stopped", _START),
    Reason.INTERRUPTED: ("the keeper or the machine went down under it", _START),
    Reason.CANCELLED: ("its caller went away", _START),
    Reason.TIMEOUT: ("the caller's own deadline passed", "give it longer: --timeout"),
    Reason.REPLACED: (
        "its files changed or it was restarted: a new instance took its place",
        "nothing to do",
    ),
    Reason.SCHEMA_DRIFT: (
        "its /schema differs from tool.json (a warning only)",
        "pxctl tools validate {name}",
    ),
}
"""What each reason of the closed list (CONTRACT §7) means to a person, and the next step."""

KERNEL_MEANINGS = {
    Reason.EVICTED_LRU: (
        "others were used more recently, kernels.max_sessions of them",
        "raise kernels.max_sessions",
    ),
    Reason.EVICTED_TTL: ("nobody used it for kernels.idle_seconds", "raise kernels.idle_seconds"),
    Reason.MEMORY_LIMIT: (
        f"it used more memory than {_MEMORY}",
        "raise kernels.soft_memory_mb or hard_memory_mb",
    ),
    Reason.WATCHDOG: (
        "it did not answer while a call waited for it",
        "pxctl kernel restart {name}",
    ),
    Reason.SPAWN_FAILED: ("it could not be started at all", "pxctl kernel start --explain {name}"),
    Reason.CANCELLED: ("a cancelled cell would not end otherwise", _START),
    Reason.TIMEOUT: (
        "a cell that was over its time would not end otherwise",
        "give it longer: --timeout",
    ),
}
"""Where a kernel's end means something else than a tool's."""


def meaning_of(reason: str, unit: str) -> tuple[str, str]:
    kind, _, name = unit.partition(":")
    sentence, step = MEANINGS[Reason(reason)]
    if kind == "kernel":
        sentence, step = KERNEL_MEANINGS.get(
            Reason(reason), (sentence, _LOGS if step == _DEBUG else step)
        )
    return sentence, step.format(unit=unit, name=name)


async def why(call: ApiCall, *, cwd: s.Folder | None = None) -> dict[str, Any]:
    """Answer with the causal chain that led to the unit's state, the end of its stderr, and the
    next step.
    """
    ledger = call.context.ledger
    await call.context.kernels.look_again()
    await ledger.flush()
    view = unit_named(call, cwd=cwd)
    rows = await _recent_events(call.context.events, view)
    removal = _last_removal(rows)
    pivot = _pivot(view, [row for row in rows if removal is None or row.id > removal.id])
    failed_run = await _last_run_if_failed(call, view)
    if failed_run is not None and removal is not None and failed_run.id < removal.id:
        failed_run = None  # of another unit of that name
    death = await last_death(ledger, view.unit)
    if death is not None and removal is not None and death.id < removal.id:
        death = None  # of another unit of that name
    instance = next(iter(await instances.latest(ledger, view.unit)), None)
    if pivot is not None and instance is not None and pivot.instance is not None:
        # The newest event that is kept may be the death of an earlier life, which led to nothing
        # that is so now.
        is_of_earlier_life = pivot.instance != instance.key and pivot.time < instance.started_at
        pivot = None if is_of_earlier_life and view.kind != "pipe" else pivot
    led_to_it = [] if pivot is None else await chain(ledger, pivot)
    reason = view.reason
    if reason is None and view.state not in _UP:
        own = None if view.kind == "pipe" or instance is None else instance.reason
        reason = own or (None if pivot is None else pivot.reason)
    summary, step = (
        _of_pipe(call, view)
        if view.kind == "pipe"
        else _of_process(view, reason, instance, pivot, failed_run)
    )
    lived = (
        "pid",
        "started_at",
        "ready_at",
        "ended_at",
        "reason",
        "code",
        "signal",
        "verdict",
        "max_rss_bytes",
        "memory_peak_bytes",
        "cpu_seconds",
        "start_method",
        "port",
    )
    return {
        **pick(view, "unit", "state"),
        "reason": reason,
        "summary": summary,
        "chain": [row.document() for row in led_to_it],
        "last_death": None if death is None else death.document(),
        "instance": None
        if instance is None
        else {"instance": instance.key, **pick(instance, *lived)},
        "stderr_tail": await _stderr_tail(call, view.unit, instance),
        "failed_run": None if failed_run is None else failed_run.document(),
        "next_step": step,
    }


async def _last_run_if_failed(call: ApiCall, view: UnitView) -> Event | None:
    """Return the newest run of a tool where the tool is to blame for its end; None where it
    ended well.
    """
    if view.kind != "tool":
        return None
    wanted = EventFilter(words=frozenset({"run"}))
    runs = await call.context.events.latest(unit=view.unit, limit=1, wanted=wanted)
    return runs[0] if runs and "detail" in runs[0].facts else None


def _how_run_failed(run: Event) -> str:
    """Return the end of a sentence: when a run failed, and how."""
    detail = str(run.facts["detail"]).removeprefix(f"{run.unit} ").rstrip(".")
    return f"last run failed at {rfc3339(run.time)}: {detail}"


def _last_removal(rows: Sequence[Event]) -> Event | None:
    """Return the event by which a unit of this name was removed: what is older belongs to
    another one.
    """
    return next((row for row in reversed(rows) if row.event in _REMOVALS), None)


async def _recent_events(stream: EventStream, view: UnitView) -> list[Event]:
    """Return the newest events of a unit, ascending, among which is what led to its state."""
    if view.kind == "pipe":  # its runs are its life
        return await stream.latest(unit=view.unit, limit=_LOOK_BACK)
    # Others have so many runs that these would hide their lives, whether they went well or failed.
    rows: list[Event] = []
    for journals in ((Journal.LIFE, Journal.FAILURES), (Journal.FAILED_RUNS,)):
        wanted = EventFilter(journals=journals)
        rows += await stream.latest(unit=view.unit, limit=_LOOK_BACK, wanted=wanted)
    return sorted(rows, key=lambda row: row.id)


def _pivot(view: UnitView, rows: Sequence[Event]) -> Event | None:
    """Choose the newest event of the life that goes on; of a unit that is not up, the newest that
    carries a reason.

    A pipe's life is its last execution, however much was said of the pipe since (enabled, changed,
    told of).
    """
    if view.kind == "pipe":
        told = [
            row
            for row in rows
            if "execution" in row.facts and view.running in {None, row.facts["execution"]}
        ]
    elif view.state in _UP:
        own = [
            row
            for row in rows
            if row.instance == view.instance and row.event not in _LED_TO_NOTHING
        ]
        return own[-1] if own else None
    else:
        told = [row for row in rows if row.reason is not None and row.reason != Reason.SCHEMA_DRIFT]
    return next(reversed(told or list(rows)), None)


def _of_pipe(call: ApiCall, unit: UnitView) -> tuple[str, str]:
    view, name = call.context.pipes.get(unit.name), unit.name
    if view.config_error is not None:
        return f"{unit.unit} cannot run: {view.config_error}", f"pxctl pipe validate {name}"
    if view.running is not None:
        beside = "".join(f" Beside that: {warning}." for warning in view.warnings)
        return (
            f"{unit.unit} is running: execution {view.running}.{beside}",
            f"pxctl pipe tail -f {view.running}",
        )
    decided = "" if view.last_decision is None else f" Last decision: {view.last_decision['text']}."
    decided += (
        "" if view.waits_for is None else f" {view.waits_for[:1].upper()}{view.waits_for[1:]}."
    )
    decided += "".join(f" Beside that: {warning}." for warning in view.warnings)
    often = (
        f", {view.consecutive_failures} failures in a row" if view.consecutive_failures > 1 else ""
    )
    ended = (
        "it never ran"
        if unit.last_status is None
        else f"its last execution {unit.last_status}{often}"
    )
    if view.queued:
        step = "pxctl pipe queue"
    elif unit.last_status in {"failed", "timed_out"}:
        step = f"pxctl pipe output {name} --stderr"
    else:
        step = f"pxctl pipe next {name}" if view.enabled else f"pxctl pipe enable {name}"
    return f"{unit.unit} is {unit.state}: {ended.replace('_', ' ')}.{decided}", step


def _of_process(
    view: UnitView,
    reason: str | None,
    instance: instances.InstanceRow | None,
    pivot: Event | None,
    failed_run: Event | None,
) -> tuple[str, str]:
    """Return what to say of a tool or a kernel, and the next step; `failed_run`: its last run,
    where that failed.
    """
    if view.config_error is not None:
        return (
            f"{view.unit} cannot be started: {view.config_error}",
            f"pxctl tools validate {view.name}",
        )
    if reason is not None and reason in set(Reason):
        told, step = meaning_of(reason, view.unit)
        if instance is not None and instance.signal is not None:
            told += f" (signal {instance.signal})"
        elif instance is not None and instance.code is not None:
            told += f" (exit code {instance.code})"
    else:
        told = "it was never started" if instance is None else "nothing is wrong with it"
        step = f"pxctl logs {view.unit} -f" if view.state in _UP else f"pxctl start {view.unit}"
        is_session = view.kind == "kernel" and view.unit != GATEWAY_UNIT
        if is_session and view.state in _UP:
            step = f"pxctl kernel show {view.name}"  # its own process prints nothing
        if is_session and view.state == "starting":
            seconds = "" if view.uptime_seconds is None else f" since {view.uptime_seconds:.0f} s"
            told = (
                f"its process is loading Python, modules and startup files{seconds}, and does not "
                "answer yet"
            )
            step = f"pxctl restart {view.unit}"
    hint, told = None if pivot is None else pivot.facts.get("hint"), f"{told}."
    beside = "".join(f" Beside that: {warning}." for warning in view.warnings)
    is_unresponsive = view.state == "unresponsive"
    if failed_run is not None and view.state in _UP and not is_unresponsive:
        told = f"it is up, but its {_how_run_failed(failed_run)}."
        hint = failed_run.facts.get("hint")
    elif failed_run is not None:
        beside = f" Its {_how_run_failed(failed_run)}.{beside}"
    if view.silent is not None:
        told = f"{view.silent}."
        hint = view.silent_hint
    if view.preparing is not None:
        told = f"{view.preparing}."
        hint = f"pxctl wait {view.unit}"
    if view.failure is not None:
        told, hint = view.failure["detail"], view.failure.get("hint")
    return f"{view.unit} is {view.state}: {told}{beside}", hint if isinstance(
        hint, str
    ) and hint else step


async def _stderr_tail(call: ApiCall, unit: str, instance: instances.InstanceRow | None) -> str:
    if instance is None or instance.log_position is None:
        return ""
    reader, begin, end = (
        LogReader.of(call.context.placement.log_dir, unit),
        instance.log_position,
        instance.log_end,
    )
    end = await asyncio.to_thread(reader.end) if end is None else end
    tail = await asyncio.to_thread(reader.tail_bytes, begin, end, Stream.STDERR, _TAIL_BYTES)
    return tail.decode("utf-8", errors="replace")
