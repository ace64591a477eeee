"""From the slot to a running agent: budget, private files, claim, process.

Law: the row says `running` before anything is spawned, and who it became right after (D1, E3); until then nothing of
it has happened, and a replaced control plane finds it in line as it was. Each step that fails makes an outcome with
the path or name that was tried, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from supervisord_py.errors import ConflictError, StartFailedError
from supervisord_py.ledger import pipe_executions, pipe_history
from supervisord_py.ledger.pipe_state import StateChange
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.execution import ErrorType, Outcome, Status
from supervisord_py.pipes.launch import LaunchOrder, prepare
from supervisord_py.pipes.running import run_terms
from supervisord_py.pipes.running.freezing import OUTPUT_FOLDER
from supervisord_py.pipes.running.run_terms import RunTag, RunTerms
from supervisord_py.pipes.running.spool import Spool
from supervisord_py.pipes.scheduler import whole_ms
from supervisord_py.process.instance import spawned_row, starting_row
from supervisord_py.process.model import ChildSpec, ResourceLimit

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_history import UsageSum
    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.launch import LaunchContext, LaunchSpec
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse
    from supervisord_py.process.model import Child


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
_NO_PROGRAM = frozenset((errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR))


class StartRefusedError(Exception):
    """It does not come to run; `outcome` says why."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.outcome = Outcome(Status.FAILED, error_type, message)


@dataclass(frozen=True, slots=True)
class _Ready:
    """All that a spawn needs; `stdin` is open, None for none."""

    prepared: LaunchSpec
    stdin: int | None

    def close(self) -> None:
        """Give stdin back."""
        if self.stdin is not None:
            os.close(self.stdin)


class Starting:
    """Starts agents."""

    def __init__(self, house: RunningHouse) -> None:
        self._house = house

    async def start(self, live: LiveRun) -> Outcome | None:
        """Bring an execution from its slot to a running process.

        Returns:
            None when it runs, or is not wanted any more (`live.turn`); else why it does not.
        """
        try:
            await self._check_budget(live)
            ready = await self._made_ready(live)
            if ready is None:
                return None
            try:
                if not live.turn.is_set():
                    await self._run(live, ready)
            finally:
                ready.close()
        except StartRefusedError as refused:
            return refused.outcome
        return None

    async def _run(self, live: LiveRun, ready: _Ready) -> None:
        live.terms = self._terms(live, ready.prepared)
        live.secrets = tuple(secret.reveal() for secret in ready.prepared.secrets)
        await self._claim(live, live.terms)
        try:
            await self._note(live, await self._spawn(live, ready), ready.prepared)
        finally:
            if ready.stdin is not None:
                await self._house.placement.drop_fd(_stdin_name(live))

    # -- budget ------------------------------------------------------------------------------------------------------

    async def _check_budget(self, live: LiveRun) -> None:
        house, definition, config = self._house, live.definition, self._house.config
        of_all = DailyBudget(config.daily_tokens, config.daily_cost, "the daily budget of all pipes is")
        both: list[tuple[DailyBudget, str | None]] = [(of_all, None)]
        if definition is not None:
            rules = definition.budget
            both.append((DailyBudget(rules.daily_tokens, rules.daily_cost, "the pipe's daily budget is"), live.pipe))
        zone = (definition and definition.timezone) or config.default_timezone or house.shelf.zone
        for budget, pipe in both:
            if budget.is_empty:
                continue
            when = day_start(house.clocks.wall(), zone)
            why = budget_refusal(budget, await pipe_history.usage_since(house.ledger, when, pipe))
            if why is not None:
                raise StartRefusedError(ErrorType.BUDGET_EXCEEDED, why)

    # -- files -------------------------------------------------------------------------------------------------------

    async def _made_ready(self, live: LiveRun) -> _Ready | None:
        """Have everything made that it is to find; None when it is not wanted any more."""
        order = order_of(self._house, live.execution, live.definition)
        try:
            context = await asyncio.to_thread(self._make_folder, order)
            work = await live.attempt(prepare(order, context), until=live.turn)
            return None if work.cancelled() else await asyncio.to_thread(_ready, work.result())
        except CannotRunError as error:
            raise StartRefusedError(error.error_type, error.message) from error
        except OSError as error:
            raise _refused_by_disk(error, str(order.run_dir)) from error

    def _make_folder(self, order: LaunchOrder) -> LaunchContext:
        """Make the execution's folder and its files; return what a start needs. Blocking."""
        spool = Spool(order.run_dir, self._house.config.output.file_bytes)
        try:
            spool.create()
        finally:
            spool.close()  # whoever follows opens them again
        return self._house.shelf.context_now()

    def _patterns(self, live: LiveRun) -> tuple[str, ...]:
        own = live.definition.redact if live.definition else ()
        return (*self._house.config.output.redact, *own)

    # -- process -----------------------------------------------------------------------------------------------------

    async def _claim(self, live: LiveRun, terms: RunTerms) -> None:
        """Say that it runs: in the row, and what that means for its pipe, in one transaction."""
        house = self._house
        now = house.clocks.moment()
        wait_ms = max(0, round((now - live.execution.queued_at) * 1000))
        key = house.placement.new_key()
        timeout, progress = live.execution.plan.timeout_seconds, run_terms.encode(terms)
        running = pipe_executions.Running(now, wait_ms, key, timeout, progress)
        change = StateChange(pipe_name=live.pipe, last_run_at=now)
        life = starting_row(key, live.execution.unit, now, start_method="spawn")
        try:
            await pipe_executions.mark_running(house.ledger, live.id, running, change=change, also=life)
        except ConflictError as error:
            raise StartRefusedError(ErrorType.UNKNOWN, f"not started: {error.detail}") from error
        house.states.take(change)
        live.become(status=Status.RUNNING, started_at=now, queue_wait_ms=wait_ms, instance=key)

    async def _spawn(self, live: LiveRun, ready: _Ready) -> Child:
        house, key, stdin = self._house, live.key, ready.stdin
        live.deadline = house.clocks.boot() + live.execution.plan.timeout_seconds
        try:
            if stdin is not None:
                await house.placement.put_fd(_stdin_name(live), stdin)
            spec = self._spec(live, ready.prepared, None if stdin is None else _stdin_name(live))
            return await house.placement.spawn(key, spec)
        except StartFailedError as error:
            raise _not_spawned(error, ready.prepared.argv[0]) from error
        except OSError as error:
            raise _refused_by_disk(error, str(house.folder(live.id))) from error

    def _terms(self, live: LiveRun, prepared: LaunchSpec) -> RunTerms:
        adapter, stop, config = prepared.adapter, prepared.adapter.stop, self._house.config
        return RunTerms(
            parser=adapter.parser,
            success=adapter.success,
            errors=adapter.errors,
            allow_empty=live.execution.plan.allow_empty,
            settle_seconds=config.settle_seconds if stop.settle_seconds is None else stop.settle_seconds,
            stop_seconds=config.stop_seconds if stop.grace_seconds is None else stop.grace_seconds,
            stop_signal=stop.number,
            patterns=self._patterns(live),
        )

    def _spec(self, live: LiveRun, prepared: LaunchSpec, stdin_name: str | None) -> ChildSpec:
        return ChildSpec(
            unit=live.execution.unit,
            argv=prepared.argv,
            cwd=prepared.cwd,
            env={**prepared.env, **self._house.own},
            limits=(ResourceLimit("core", 0, 0),),
            max_rss_bytes=live.execution.plan.memory_bytes,
            tag=RunTag(live.id, live.deadline).encode(),
            stdin_name=stdin_name,
        )

    async def _note(self, live: LiveRun, child: Child, prepared: LaunchSpec) -> None:
        """Write down who it became."""
        house, who = self._house, child.identity
        live.child = child
        live.heard_at = house.clocks.boot()
        live.deadline = live.heard_at + live.execution.plan.timeout_seconds  # not before it began
        version, session = prepared.version.text, prepared.session_path
        began = whole_ms(child.started_at)
        facts = pipe_executions.Spawned(who.pid, who.start_time, who.boot_id, began, version, session)
        live.become(
            pid=who.pid,
            start_time=who.start_time,
            boot_id=who.boot_id,
            started_at=began,
            agent_version=version,
            session_path=session,
        )
        wait_ms, warnings = live.execution.queue_wait_ms, list(prepared.warnings)
        house.chronicle.say("execution_started", live, pid=who.pid, queue_wait_ms=wait_ms, warnings=warnings)
        await pipe_executions.spawned(house.ledger, live.id, facts, also=spawned_row(child))


def _ready(prepared: LaunchSpec) -> _Ready:
    """Open what its stdin will be. Blocking."""
    file = prepared.stdin_file
    return _Ready(prepared, None if file is None else os.open(file, os.O_RDONLY | os.O_CLOEXEC))


def _stdin_name(live: LiveRun) -> str:
    """Return under which name the keeper holds its stdin until it has it."""
    return f"stdin:{live.key}"


def order_of(house: RunningHouse, execution: Execution, definition: PipeDefinition | None) -> LaunchOrder:
    """Return what an adapter is to make ready for an execution."""
    folder = definition.folder if definition else house.config.pipes_dir / execution.pipe_name
    return LaunchOrder(
        execution_id=execution.id,
        pipe_name=execution.pipe_name,
        folder=folder,
        run_dir=house.folder(execution.id),
        output_dir=Path(execution.output_dir or folder / OUTPUT_FOLDER / str(execution.id)),
        prompt=execution.rendered_prompt or "",
        plan=execution.plan,
        preset=execution.preset,
        socket=house.config.socket,
        session_dir=house.config.executions_dir / "sessions" / execution.pipe_name,
        token_file=house.config.api_token_file,
    )


def _refused_by_disk(error: OSError, path: str) -> StartRefusedError:
    kind = ErrorType.DISK_FULL if error.errno in _FULL else ErrorType.CONFIG_ERROR
    return StartRefusedError(kind, f"cannot write {error.filename or path}: {error.strerror or error}")


def _not_spawned(error: StartFailedError, program: str) -> StartRefusedError:
    is_program = error.extra.get("stage") == "exec" and error.extra.get("errno") in _NO_PROGRAM
    kind = ErrorType.AGENT_NOT_FOUND if is_program else ErrorType.UNKNOWN
    return StartRefusedError(kind, f"cannot start {program}: {error.detail}")


@dataclass(frozen=True, slots=True)
class DailyBudget:
    """Ceilings of a day; None for none. `whose` names them in the refusal."""

    tokens: int | None
    cost: float | None
    whose: str

    @property
    def is_empty(self) -> bool:
        """Whether anything goes."""
        return self.tokens is None and self.cost is None


def day_start(now: float, zone: str) -> float:
    """Return when the present day began in a zone, Unix seconds."""
    local = datetime.fromtimestamp(now, ZoneInfo(zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def budget_refusal(budget: DailyBudget, used: UsageSum) -> str | None:
    """Return why nothing more may be started today, None while something is left."""
    if budget.tokens is not None and used.total_tokens >= budget.tokens:
        return f"{budget.whose} used up: {used.total_tokens} tokens today of {budget.tokens}"
    if budget.cost is not None and used.cost >= budget.cost:
        return f"{budget.whose} used up: {used.cost:.4f} USD today of {budget.cost:g}"
    return None
