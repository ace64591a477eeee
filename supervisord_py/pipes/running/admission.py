"""Who runs next: performs what the queue decides.

Law: nobody is admitted before the gate is open (the API listens, G1) nor after the end has begun. Every end frees its
slot, whatever became of the execution.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisord_py.pipes.execution import Status
from supervisord_py.pipes.queueing.queue import Queue, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from supervisord_py.pipes.config import SlotLimits
    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse

LOOK_AGAIN_SECONDS = 30.0
"""A timer of the loop does not count suspend, and the wall clock may be set: the longest time between two looks."""


class Admission:
    """The lines and their slots.

    Args:
        house: Whose executions.
        perform: Runs one to its end; started as a task.
    """

    def __init__(self, house: RunningHouse, perform: Callable[[LiveRun], Coroutine[None, None, None]]) -> None:
        self._house = house
        self._perform = perform
        self._is_open = False
        self._timer: asyncio.TimerHandle | None = None
        self.queue = Queue(house.config.slots)

    def open_gate(self) -> None:
        """Begin to admit."""
        self._is_open = True
        self.look()

    def close_gate(self) -> None:
        """Admit nobody any more; who waits goes on waiting."""
        self._is_open = False
        self._disarm()

    def push(self, live: LiveRun) -> None:
        """Put one in line, and admit whoever can be."""
        self._house.roster.add(live)
        self.queue.push(_waiting(live))
        if self._admit() or self.queue.last != live.id:
            self._tell_places()

    def adopt(self, live: LiveRun) -> None:
        """Count one that runs already."""
        self._house.roster.add(live)
        self.queue.adopt(_waiting(live))

    def leave_line(self, live: LiveRun) -> bool:
        """Take one out of the line; False where it is not in it (any more)."""
        removed = self.queue.remove(live.id)
        if removed:
            self.look()
        return removed

    def ended(self, live: LiveRun) -> None:
        """Free what it held, and admit whoever can be."""
        self.queue.ended(live.id)
        self.look()

    def resize(self, limits: SlotLimits) -> None:
        """Take new limits."""
        self.queue.resize(limits)
        self.look()

    def look(self) -> None:
        """Admit whoever can be, and come back when somebody else might; the line has moved."""
        self._admit()
        self._tell_places()

    def _admit(self) -> bool:
        """Start whoever can be; say whether there was anybody."""
        self._disarm()
        if not self._is_open:
            return False
        admitted = self.queue.admit(self._house.clocks.wall())
        for number in admitted:
            live = self._house.roster.get(number)
            if live is None:
                self.queue.ended(number)
                continue
            self._house.run_execution(self._perform(live), f"pipe:{live.pipe}#{live.id}")
        self._arm()
        return bool(admitted)

    def _tell_places(self) -> None:
        for waiting in self.queue.waiting():
            if (live := self._house.roster.get(waiting.id)) is not None:
                live.bell.ring()

    def _arm(self) -> None:
        deadline = self.queue.next_deadline()
        if deadline is not None:
            seconds = max(0.0, deadline - self._house.clocks.wall())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(seconds, LOOK_AGAIN_SECONDS), self.look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def view(self, execution: Execution) -> Execution:
        """Return an execution with its place in line; who has a slot and is being started is the first."""
        if execution.status is not Status.QUEUED:
            return execution
        return replace(execution, position=self.queue.position(execution.id) or 1)


def _waiting(live: LiveRun) -> Waiting:
    it = live.execution
    return Waiting(it.id, it.pipe_name, it.group, it.queued_at, it.not_before)
