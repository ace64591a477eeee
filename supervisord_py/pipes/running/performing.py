"""One execution from its slot to its end, or to the moment when this control plane leaves it to the next one.

Law: whatever happens, the row becomes final once, the slot is freed, and what its agent started is gone or named. A
control plane that leaves takes nothing with it: what runs goes on, what is being stopped is stopped by the next one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.pipes.execution import ErrorType, Outcome, Status
from supervisord_py.pipes.launch import recall_secrets
from supervisord_py.pipes.outcome import Cause, ExitInfo, SuccessRule, judge
from supervisord_py.pipes.running.following import Following
from supervisord_py.pipes.running.log_blots import LogBlots
from supervisord_py.pipes.running.run_terms import RunTerms
from supervisord_py.pipes.running.spool import Spool
from supervisord_py.pipes.running.starting import order_of
from supervisord_py.pipes.running.stopping import Stopping, ending_of, life_of_run_ends, told_with_survivors
from supervisord_py.pipes.running.transcript import Transcript, Veiled
from supervisord_py.pipes.running.watching import Watching, output_of
from supervisord_py.pipes.streams import Summary
from supervisord_py.process.logs import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from supervisord_py.ledger.pipe_executions import Output
    from supervisord_py.pipes.running.conclusion import Conclusion
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse
    from supervisord_py.pipes.running.starting import Starting
    from supervisord_py.process.model import Child


_log = structlog.get_logger(__name__)


class Performing:
    """Runs executions.

    Args:
        house: Whose.
        starting: Brings them up.
        conclusion: Records how they ended, and what follows.
    """

    def __init__(self, house: RunningHouse, starting: Starting, conclusion: Conclusion) -> None:
        self._house = house
        self._starting = starting
        self._conclusion = conclusion
        self._stopping = Stopping(house)

    async def perform(self, live: LiveRun) -> None:
        """Run one that got its slot; the slot is freed by the conclusion."""
        await self._guarded(live, self._perform(live))

    async def take_over(self, live: LiveRun) -> None:
        """Go on with one that a control plane before this one began."""
        await self._guarded(live, self.see_through(live))

    async def _guarded(self, live: LiveRun, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except KeeperLostError:
            _log.error("pipe_run_lost", unit=live.execution.unit, execution=live.id)  # the next start tells of it
            live.let_go()
        except Exception as error:
            _log.exception("pipe_run_failed_by_defect", unit=live.execution.unit, execution=live.id)
            await self._rescue(live, error)

    async def _perform(self, live: LiveRun) -> None:
        outcome = None if live.turn.is_set() else await self._starting.start(live)
        if outcome is not None:
            await self._stopping.clear_unstarted(live)
            await self._conclusion.conclude(live, outcome)
        elif live.child is not None:
            await self.see_through(live)
        else:
            await self._unstarted(live)

    async def _unstarted(self, live: LiveRun) -> None:
        """End one that is not wanted any more before it ran; at the end of the daemon it goes on waiting."""
        await self._stopping.clear_unstarted(live)
        if live.cause in {Cause.NOBODY, Cause.SHUTDOWN}:
            live.let_go()
            return
        ending = ExitInfo(live.cause, detail=live.detail)
        await self._conclusion.conclude(live, judge(ending, Summary(), SuccessRule(), allow_empty=False))

    async def _rescue(self, live: LiveRun, error: Exception) -> None:
        """End an execution that something of ours broke."""
        if live.done.is_set():
            return
        detail = error.detail if isinstance(error, PxError) else f"{type(error).__name__}: {error}"
        with suppress(PxError):
            if live.key:
                await self._stopping.stop(live)
                await self._stopping.clear(live)
                await self._stopping.release(live)
        await self._conclusion.conclude(live, Outcome(Status.FAILED, ErrorType.UNKNOWN, detail))

    # -- seeing it through -------------------------------------------------------------------------------------------

    async def see_through(self, live: LiveRun) -> None:
        """Follow a running one, and end it."""
        assert live.child is not None
        terms = live.terms or RunTerms()
        following = live.following = await self._follow(live, live.child, terms)
        watching = Watching(self._house, live, following, terms.settle_seconds)
        following.on_news = watching.heard
        watching.heard()  # who goes on after another may never hear more than what is noted already
        reading = asyncio.ensure_future(following.run())
        looking = asyncio.ensure_future(watching.run())
        try:
            await self._until_it_ends(live, looking, reading)
            if live.is_wanted and live.left.is_set():
                return
            if await self._bring_down(live, terms):
                close = partial(what_it_came_to, live, terms, following, self._house.config.output.row_bytes)
                await self._finish(live, await self._read_out(live, following, reading, close))
        finally:
            watching.close()
            looking.cancel()
            following.leave()
            await asyncio.gather(reading, looking, return_exceptions=True)

    async def _follow(self, live: LiveRun, child: Child, terms: RunTerms) -> Following:
        """Begin to read, or go on where a control plane before this one was."""
        house, secrets = self._house, live.secrets
        if secrets is None:
            order = order_of(house, live.execution, live.definition)
            secrets = await recall_secrets(order, await house.shelf.context())
        reader = LogReader.of(house.placement.log_dir, child.unit)
        spool = Spool(house.folder(live.id), house.config.output.file_bytes)
        veiled = Veiled(secrets, terms.patterns)
        blots = LogBlots(reader, child.log_position, secrets, terms.patterns)
        transcript = Transcript(spool, reader, child.log_position, terms.parser, veiled, blots)
        if live.secrets is None:
            await asyncio.to_thread(lambda: transcript.resume(spool.load_progress()))
        return Following(live, transcript, house.clocks)

    async def _until_it_ends(self, live: LiveRun, *helping: asyncio.Future[Any]) -> None:
        """Wait until it has ended by itself, is to end, or is to be let go; who helps must not end before."""
        waiting = asyncio.ensure_future(self._house.placement.wait(live.key))
        for each in helping:
            each.add_done_callback(lambda _: waiting.cancel())
        await live.attempt(waiting, until=live.turn)
        if not waiting.cancelled():
            live.record = waiting.result()
        for each in helping:
            if each.done():
                each.result()

    async def _bring_down(self, live: LiveRun, terms: RunTerms) -> bool:
        """Stop the tree; False when that is left to the next control plane."""
        stopping = await live.attempt(self._stopping.stop(live, terms), until=live.left)
        if stopping.cancelled():
            return False
        stopping.result()
        return True

    async def _read_out(
        self, live: LiveRun, following: Following, reading: asyncio.Future[Closed | None], close: Callable[[], Closed]
    ) -> Closed:
        """Read what is left, and learn what it came to."""
        following.take_the_rest(close)
        await asyncio.wait((reading,))
        if (error := reading.exception()) is not None:
            _log.error("pipe_output_not_read", unit=live.execution.unit, execution=live.id, exc_info=error)
        elif (closed := reading.result()) is not None:
            return closed
        return await asyncio.to_thread(close)

    async def _finish(self, live: LiveRun, closed: Closed) -> None:
        await self._conclusion.record(live, closed.outcome, closed.output, life_of_run_ends(live))
        await self._stopping.clear_away(live)
        await self._conclusion.after(live, closed.outcome)
        await self._stopping.release(live)


@dataclass(frozen=True, slots=True)
class Closed:
    """How it ended, fit to be stored, and what its row is to say of its output."""

    outcome: Outcome
    output: Output


def what_it_came_to(live: LiveRun, terms: RunTerms, following: Following, row_bytes: int) -> Closed:
    """Judge a run whose process is gone, from all that it has left.

    Args:
        live: Which.
        terms: How it is judged.
        following: Its output, read to the end.
        row_bytes: Of each stream in its row.
    """
    ending = ending_of(live, following)
    outcome = judge(ending, following.summary, terms.success, terms.errors, allow_empty=terms.allow_empty)
    outcome = told_with_survivors(live, outcome)
    message = following.transcript.veil(outcome.error_message)
    return Closed(replace(outcome, error_message=message), output_of(following, row_bytes))
