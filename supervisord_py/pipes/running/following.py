"""Reads one agent's output as it comes, until nothing more will.

Law: a look never waits for a follower, a full disk never ends the run: the reading stands still, by and by the child,
and goes on when there is room. Only when the process is gone and the disk still takes nothing is the rest given up,
and counted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.performing import Closed
    from supervisord_py.pipes.running.spool import Spool
    from supervisord_py.pipes.running.transcript import News, Transcript
    from supervisord_py.pipes.scheduler import Clocks
    from supervisord_py.pipes.streams import Summary

FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.25
GROWTH = 1.5
DISK_PAUSE_SECONDS = 0.5
LAST_TRIES = 4
"""How often the rest is tried against a disk that takes nothing, once the process is gone."""
_log = structlog.get_logger(__name__)


class Following:
    """Follows one run.

    Args:
        live: Whose output.
        transcript: What is made of it.
        clocks: For the moment when something was last heard.
    """

    def __init__(self, live: LiveRun, transcript: Transcript, clocks: Clocks) -> None:
        self.transcript = transcript
        self.trouble: str | None = None
        """Why the disk takes nothing at present."""
        self.on_news: Callable[[], None] = _nothing
        """Called after every step that found something; must not block."""
        self._live = live
        self._clocks = clocks
        self._wake = asyncio.Event()
        self._close: Callable[[], Closed] | None = None
        self._is_left = False

    @property
    def spool(self) -> Spool:
        """The files."""
        return self.transcript.spool

    @property
    def summary(self) -> Summary:
        """What the agent said so far."""
        return self.transcript.summary

    def take_the_rest(self, close: Callable[[], Closed]) -> None:
        """The process is gone: read to the end, and return; `close`, which may block, says what it all came to."""
        self._close = close
        self._wake.set()

    def leave(self) -> None:
        """Return after the present step: a successor goes on."""
        self._is_left = True
        self._wake.set()

    async def run(self) -> Closed | None:
        """Follow to the end, and return what it came to; None when it was left before."""
        try:
            return await self._read_on()
        finally:
            self.spool.close()

    async def _read_on(self) -> Closed | None:
        pause = FIRST_PAUSE_SECONDS
        await self._pause(pause)  # nobody says anything at once
        while not self._is_left:
            if self._close is not None:
                return await self._read_to_the_end(self._close)
            news = await asyncio.to_thread(self.transcript.step)
            self._announce(news)
            pause = FIRST_PAUSE_SECONDS if news.moved else min(LONGEST_PAUSE_SECONDS, pause * GROWTH)
            if news.trouble is not None:
                await self._pause(DISK_PAUSE_SECONDS)
            elif news.at_end:
                await self._pause(pause)
        return None

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _announce(self, news: News) -> None:
        self._note_trouble(news.trouble)
        if news.moved:
            self._live.heard_at = self._clocks.boot()
            self.on_news()
            self._live.bell.ring()

    def _note_trouble(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            unit = self._live.execution.unit
            if trouble is None:
                _log.warning("pipe_output_taken_again", unit=unit, execution=self._live.id)
            else:
                _log.error("pipe_output_not_taken", unit=unit, execution=self._live.id, detail=trouble)
        self.trouble = trouble

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _read_to_the_end(self, close: Callable[[], Closed]) -> Closed:
        tries = LAST_TRIES
        while tries:
            news, closed = await asyncio.to_thread(self._last_look, close)
            if closed is not None:
                self._announce(news)
                return closed
            self._announce(news)
            if news.trouble is not None:
                tries = LAST_TRIES if news.moved else tries - 1
                await asyncio.sleep(DISK_PAUSE_SECONDS if tries else 0)
        closed = await asyncio.to_thread(self._give_up, close)
        self.on_news()
        self._live.bell.ring()
        return closed

    def _last_look(self, close: Callable[[], Closed]) -> tuple[News, Closed | None]:
        """Read on; at the end of the log take the end of the stream, and say what it all came to. Blocking."""
        news = self.transcript.step()
        if news.trouble is not None or not news.at_end:
            return news, None
        trouble = self._take_the_end()
        return replace(news, moved=True, trouble=trouble), close() if trouble is None else None

    def _give_up(self, close: Callable[[], Closed]) -> Closed:
        self.transcript.give_up(self._log_end)
        return close()

    def finish_once(self) -> str | None:
        """Write what waits, read what is left, and take the end; return why that did not go. Blocking."""
        while True:
            news = self.transcript.step()
            if news.trouble is not None:
                return news.trouble
            if news.at_end:
                return self._take_the_end()

    def _take_the_end(self) -> str | None:
        left = self._log_end - self.transcript.position
        return f"{left} bytes wait in the keeper for its own disk" if left > 0 else self.transcript.finish()

    @property
    def _log_end(self) -> int:
        """Where the log ends with all that the process wrote, what is not on disk yet included; 0 if nobody knows."""
        return self._live.record.log_end if self._live.record is not None else 0


def _nothing() -> None:
    """Tell nobody."""
