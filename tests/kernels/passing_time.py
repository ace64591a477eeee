"""Time that passes at a word: a deadline is over once what it cuts off has begun, however slow the machine is."""

from __future__ import annotations

import asyncio

import pytest

from kernels.kernel_rig import eventually
from kernels.room_house import RoomHouse
from supervisord_py.process import clock

PATIENT = {"ladder_again_seconds": 60.0, "ladder_terminate_seconds": 120.0, "ladder_kill_seconds": 180.0}
"""A ladder of which a cell that yields meets the first rung alone, however long its kernel is held up."""


class PassingTime:
    """Puts forward the clock of the running loop, and the one that counts suspend. Make it on the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = 0.0
        loop, now = asyncio.get_running_loop(), clock.now
        of_loop = loop.time
        monkeypatch.setattr(loop, "time", lambda: of_loop() + self._seconds)
        monkeypatch.setattr(clock, "now", lambda: now() + self._seconds)

    def jump(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._seconds += seconds

    async def over(self, house: RoomHouse, seconds: float = 60.0) -> None:
        """Let it have passed when nobody waits for the keeper or the disk: they need no time, and would be called late.

        Args:
            house: Whose.
            seconds: How much; a call has 60 where nothing else is said.
        """
        await house.ledger.flush()
        keeper = house.rig.placement
        await eventually(lambda: not keeper._pending, "the keeper's answers")
        self.jump(seconds)
