"""Looks after one run: its time, its silence after a resume, its ceilings, its row.

Law: a timeout counts suspended time, and is checked by looking, not by one long sleep: the timers of the loop do not
count suspend. A look costs nothing where nothing has happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.ledger import pipe_executions
from supervisord_py.pipes.outcome import Cause, ceiling_exceeded
from supervisord_py.pipes.running.freezing import too_late
from supervisord_py.pipes.scheduler import Resumes

if TYPE_CHECKING:
    from supervisord_py.pipes.running.following import Following
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse

LOOK_SECONDS = 1.0
CHARACTERS_A_SECOND = 32 * 1024
"""So much text of a run goes into its row: a full one, at each look, would wear out the disk for hours."""


class Watching:
    """Looks after one run."""

    def __init__(self, house: RunningHouse, live: LiveRun, following: Following, settle_seconds: float) -> None:
        self._house = house
        self._live = live
        self._following = following
        self._settle_seconds = settle_seconds
        self._resumes = Resumes(house.clocks)
        self._settling: asyncio.TimerHandle | None = None
        self._is_stale = False
        self._write_at = 0.0

    # -- at every piece of output ------------------------------------------------------------------------------------

    def heard(self) -> None:
        """Look at what the agent has said."""
        self._is_stale = True
        usage = self._following.summary.usage
        if usage != self._live.execution.usage:
            self._live.become(usage=usage)
            sentence = ceiling_exceeded(usage, self._live.execution.plan)
            if sentence is not None:
                self._live.end(Cause.BUDGET, sentence)
        self._look_at_settled()

    def _look_at_settled(self) -> None:
        is_settled = self._following.summary.settled
        if is_settled and self._settling is None:
            self._house.chronicle.say("execution_settled", self._live)
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(self._settle_seconds, self._live.end, Cause.SETTLED)
        elif not is_settled:
            self.close()

    def close(self) -> None:
        """Disarm what is armed."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    # -- now and then ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until cancelled."""
        clocks, live = self._house.clocks, self._live
        while True:
            left = live.deadline - clocks.boot() if live.is_wanted else LOOK_SECONDS
            await asyncio.sleep(min(LOOK_SECONDS, max(0.0, left)))
            self._look_at_time()
            if self._is_stale and clocks.awake() >= self._write_at:
                self._is_stale = False
                await self.write_output()

    def _look_at_time(self) -> None:
        live, now = self._live, self._house.clocks.boot()
        self._resumes.look()
        if now >= live.deadline:
            live.end(Cause.TIMEOUT, too_late(live.execution.plan))
        resumed_at = self._resumes.resumed_at
        patience = self._house.config.scheduler.wake_silence_seconds
        if resumed_at is not None and live.heard_at <= resumed_at and now - resumed_at >= patience:
            live.end(Cause.SILENT, f"said nothing for {patience:g} s after the machine woke up")

    async def write_output(self) -> None:
        """Bring the row up to date; the more there is to write, the more seldom."""
        output = await asyncio.to_thread(output_of, self._following, self._house.config.output.row_bytes)
        self._live.has_given(output, self._following.transcript.summary.usage)
        characters = len(output.stdout or "") + len(output.stderr or "")
        self._write_at = self._house.clocks.awake() + characters / CHARACTERS_A_SECOND
        try:
            await pipe_executions.set_output(self._house.ledger, self._live.id, output)
        except PxError:
            self._is_stale = True  # the end of the run says all of it again


def output_of(following: Following, row_bytes: int) -> pipe_executions.Output:
    """Return what the row is to say of the output so far. Blocking."""
    found = following.transcript
    return following.spool.output(
        row_bytes, lost_bytes=found.lost_bytes, invalid_utf8=not found.is_utf8, usage=found.summary.usage
    )
