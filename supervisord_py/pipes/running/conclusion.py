"""The end of an execution: its row first, then everything that follows from it.

Law: the first end stands. Whoever waits hears of it when the row is final and the next try, where there is one, is a
row as well; nobody who is told afterwards (other pipes) can hold up the slot.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from supervisord_py.ledger import pipe_executions
from supervisord_py.ledger.pipe_state import StateChange
from supervisord_py.pipes.execution import ErrorType, Status
from supervisord_py.pipes.running.stopping import REASONS
from supervisord_py.pipes.scheduler import whole_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.ledger.pipe_executions import Output
    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.ledger.table import Operation
    from supervisord_py.pipes.execution import Execution, Outcome
    from supervisord_py.pipes.outcome import NextTry
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse


_MARKER = "INCOMPLETE"
_SIZES = ("stdout_bytes", "stderr_bytes", "lost_bytes", "invalid_utf8")
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Aftermath:
    """Who acts when an execution has ended; filled by the room.

    Attributes:
        next_try: Decides what follows; pure.
        try_again: Takes the next try in.
        free: Gives the slot back.
        ended: Told of every end: events for other pipes, claims.
    """

    next_try: Callable[[LiveRun, Outcome], NextTry | None] = lambda _live, _outcome: None
    try_again: Callable[[LiveRun, NextTry], Awaitable[None]] | None = None
    free: Callable[[LiveRun], None] = lambda _: None
    ended: list[Callable[[LiveRun, Outcome, bool], Awaitable[None]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Weighed:
    """What an end means for its pipe, and what follows."""

    change: StateChange
    following: NextTry | None = None


class Conclusion:
    """Records ends."""

    def __init__(self, house: RunningHouse) -> None:
        self._house = house
        self.aftermath = Aftermath()
        self._next: dict[int, NextTry | None] = {}

    async def conclude(self, live: LiveRun, outcome: Outcome) -> None:
        """Record an end of which there is no output, and what follows."""
        await self.record(live, outcome)
        await self.after(live, outcome)

    async def record(
        self, live: LiveRun, outcome: Outcome, output: Output | None = None, also: Operation | None = None
    ) -> None:
        """Make the row final.

        Args:
            live: Whose.
            outcome: How it ended.
            output: What the row is to say of its output.
            also: Written with it.
        """
        house, it = self._house, live.execution
        now = _end_of(live, house.clocks.moment())
        weighed = self.weigh(live, outcome, now)
        change, self._next[live.id] = weighed.change, weighed.following
        finish = pipe_executions.Finish(
            status=outcome.status.value,
            finished_at=now,
            duration_ms=_duration(it, now),
            exit_code=live.record.code if live.record else None,
            signal=live.record.signal if live.record else None,
            error_type=None if outcome.error_type is None else outcome.error_type.value,
            error_message=outcome.error_message,
            incomplete=is_incomplete(outcome) and it.started_at is not None,
            output=output,
            session_path=it.session_path,
            agent_version=it.agent_version,
        )
        if it.output_dir is not None and it.started_at is not None:
            await asyncio.to_thread(_mark if finish.incomplete else _remove_if_empty, it.output_dir, outcome)
        ended = await pipe_executions.finish(house.ledger, live.id, finish, change=change, also=also)
        if ended.first:
            house.states.take(change)
        self._take_over(live, outcome, finish)

    def weigh(self, live: LiveRun, outcome: Outcome, now: float) -> Weighed:
        """Return what an end means; nothing is changed by it."""
        following = self.aftermath.next_try(live, outcome)
        row = self._house.states.get(live.pipe)
        change = counted(row, live.execution, outcome, now, goes_on=following is not None)
        return Weighed(change, following)

    @staticmethod
    def _take_over(live: LiveRun, outcome: Outcome, finish: pipe_executions.Finish) -> None:
        output, sizes = finish.output, dict[str, int]()
        if output is not None:
            live.texts = (output.stdout, output.stderr)
            sizes = {name: getattr(output, name) for name in _SIZES}
        live.become(
            **sizes,
            status=outcome.status,
            finished_at=finish.finished_at,
            duration_ms=finish.duration_ms,
            exit_code=finish.exit_code,
            signal=finish.signal,
            error_type=outcome.error_type,
            error_message=outcome.error_message,
            incomplete=finish.incomplete,
            position=None,
        )

    # -- what follows ------------------------------------------------------------------------------------------------

    async def after_refusal(self, live: LiveRun, outcome: Outcome, weighed: Weighed) -> None:
        """Do what follows from a row that was inserted as a final one, with what it means for its pipe."""
        self._next[live.id] = weighed.following
        await self.after(live, outcome)

    async def after(self, live: LiveRun, outcome: Outcome) -> None:
        """Do what follows from an end whose row is final."""
        self._say(live, outcome)
        following = self._next.pop(live.id, None)
        try:
            if following is not None and self.aftermath.try_again is not None:
                await _safely(live, self.aftermath.try_again(live, following))
            for told in self.aftermath.ended:
                await _safely(live, told(live, outcome, following is not None))
        finally:
            self._house.roster.remove(live)
            self.aftermath.free(live)
            live.done.set()
            live.bell.close()

    async def after_another(self, live: LiveRun, outcome: Outcome, *, has_next: bool) -> None:
        """Do what follows from an end that a control plane before this one recorded, and came no further."""
        self._next[live.id] = None if has_next else self.aftermath.next_try(live, outcome)
        await self.after(live, outcome)

    def _say(self, live: LiveRun, outcome: Outcome) -> None:
        it = live.execution
        reason = REASONS[live.cause] if not live.is_wanted else None
        facts = {
            "error_type": None if outcome.error_type is None else outcome.error_type.value,
            "error_message": outcome.error_message,
            "exit_code": it.exit_code,
            "duration_ms": it.duration_ms,
        }
        self._house.chronicle.say(f"execution_{outcome.status.value}", live, reason, **facts)


async def _safely(live: LiveRun, work: Awaitable[None]) -> None:
    """Do one of the things that follow; that it fails must not keep the others from being done."""
    try:
        await work
    except Exception:
        _log.exception("pipe_aftermath_failed", unit=live.execution.unit, execution=live.id)


def _end_of(live: LiveRun, now: float) -> float:
    """Return when it ended: as the keeper saw it, who was there when perhaps no control plane was."""
    if live.record is None:
        return now
    return whole_ms(min(now, max(live.record.ended_at, live.execution.started_at or 0.0)))


def _duration(execution: Execution, now: float) -> int | None:
    return None if execution.started_at is None else max(0, round((now - execution.started_at) * 1000))


def _remove_if_empty(output_dir: str, _outcome: Outcome) -> None:
    with suppress(OSError):
        os.rmdir(output_dir)


def _mark(output_dir: str, outcome: Outcome) -> None:
    """Leave a file in the output folder of an execution that was cut off: what else lies there may be half-done."""
    if not os.path.isdir(output_dir):
        return
    words = outcome.error_message or Status(outcome.status).value
    with suppress(OSError), open(os.path.join(output_dir, _MARKER), "x", encoding="utf-8") as file:
        file.write(f"{words}\n")


_NOT_ITS_OWN = frozenset((ErrorType.CANCELLED, ErrorType.SHUTDOWN, ErrorType.INTERRUPTED))


def counted(row: PipeStateRow, execution: Execution, outcome: Outcome, now: float, *, goes_on: bool) -> StateChange:
    """Return what becomes of the pipe's state.

    Args:
        row: What was known of the pipe.
        execution: That has ended.
        outcome: How.
        now: Unix seconds.
        goes_on: Another try follows by itself.
    """
    pipe = execution.pipe_name
    if outcome.status is Status.COMPLETED:
        end = execution.context_end
        return StateChange(pipe_name=pipe, last_success_at=now, consecutive_failures=0, last_context_end=end)
    if outcome.error_type in _NOT_ITS_OWN or goes_on:
        return StateChange(pipe_name=pipe)
    return StateChange(pipe_name=pipe, consecutive_failures=row.consecutive_failures + 1)


def is_incomplete(outcome: Outcome) -> bool:
    """Say whether what it wrote may be half-done: it was cut off, by us or by a crash."""
    if outcome.status in {Status.TIMED_OUT, Status.CANCELLED}:
        return True
    return outcome.error_type in {
        ErrorType.CRASH,
        ErrorType.INTERRUPTED,
        ErrorType.SHUTDOWN,
        ErrorType.BUDGET_EXCEEDED,
        ErrorType.RESOURCE_LIMIT,
    }
