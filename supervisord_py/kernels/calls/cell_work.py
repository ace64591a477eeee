"""One cell from its dispatch to its result: sent, followed or ended, judged, measured, written down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import structlog

from supervisord_py.kernels.backend import ExecuteRequest
from supervisord_py.kernels.calls.call_rules import judge
from supervisord_py.kernels.cell import Variables
from supervisord_py.kernels.cell_files import held_to_cap
from supervisord_py.kernels.lives.cell_run import CellRun
from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import KernelHandle
    from supervisord_py.kernels.calls.call_rules import Judgement
    from supervisord_py.kernels.calls.cells_house import CellsHouse
    from supervisord_py.kernels.cell import CallEvent, CellResult
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.hosting.kernel_pool import KernelPool
    from supervisord_py.kernels.hosting.live_session import LiveSession
    from supervisord_py.kernels.lives.cell_run import CellEnd
    from supervisord_py.kernels.lives.kernel_life import KernelLife
    from supervisord_py.kernels.lives.memory_watch import MemoryWatch
    from supervisord_py.ledger.kernels import KernelCellRow

NOTE_SECONDS = 0.05
"""A cell on a gateway that takes longer is noted there, in a file; until then its row in the ledger says what runs."""
END_SECONDS = 15.0
"""How long a cell waits for the word on how its kernel ended."""
_log = structlog.get_logger(__name__)


class CellHouse(Protocol):
    """What cells need from around them: the room."""

    @property
    def pool(self) -> KernelPool:
        """The sessions."""

    @property
    def cells_house(self) -> CellsHouse:
        """Rows and files of cells."""

    @property
    def memory(self) -> MemoryWatch:
        """Who measures."""

    @property
    def config(self) -> KernelsConfig:
        """Settings in force."""


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """A cell that is over.

    Attributes:
        result: For whoever asked.
        judged, end: What it means.
        over_memory: The kernel is over its soft limit now.
    """

    result: CellResult
    judged: Judgement
    end: CellEnd
    over_memory: bool


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is told of a cell.

    Attributes:
        sent: Called right before it is sent: its row is there.
        wake: Called when there is news in its files.
    """

    sent: Callable[[], None]
    wake: Callable[[], None]


class CellWork:
    """Performs cells on one kernel of one session."""

    def __init__(self, house: CellHouse, session: LiveSession, life: KernelLife, handle: KernelHandle) -> None:
        self._house = house
        self._session = session
        self._life = life
        self._handle = handle
        self._noting: asyncio.TimerHandle | None = None

    def begin(self, sent: KernelCellRow, deadline: float, tell: Callable[[CallEvent], None]) -> CellRun:
        """Note that a cell is under way; `deadline` is loop time."""
        life = self._life
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        life.cell, life.cell_deadline, life.busy = sent.id, clock.now() + left, True
        life.judged.clear()
        self._session.has_cells = True
        run = self._session.run = CellRun(life, self._handle, sent.id, tell)
        return run

    async def perform(
        self, run: CellRun, sent: KernelCellRow, deadline: float, audience: Audience | None = None
    ) -> CellOutcome:
        """Send a cell and wait for its end, or make it end; return what came of it.

        Args:
            run: Its run.
            sent: The cell.
            deadline: Loop time after which it is made to end.
            audience: None for a cell that an earlier control plane sent: it is only followed, and how long it took, its
                own files tell.
        """
        try:
            end, duration = await self._see_end(run, sent, deadline, audience)
            if end.steps:
                self._say_climbed(sent, end)
            await self._until_known(end)
            judged = judge(end, self._life.ended)
            self._life.exiting = self._life.exiting or judged.exited
        finally:
            self._life.busy = False
            self._life.judged.set()
        is_over = self._life.is_over
        over_memory, result = await asyncio.gather(  # the keeper measures while we read
            self._house.memory.is_over(self._life),
            self._house.cells_house.finish(sent, judged, end, duration, kernel_is_over=is_over),
        )
        if end.gone is not None and not is_over:
            self._house.pool.run_task(self._seal_later(sent, result))
        if judged.error is not None or result.status is not judged.status:
            judged = replace(judged, status=result.status, error=result.error)
        return CellOutcome(result, judged, end, over_memory)

    async def _see_end(
        self, run: CellRun, sent: KernelCellRow, deadline: float, audience: Audience | None
    ) -> tuple[CellEnd, float | None]:
        """Return how it ended, and after how many seconds."""
        loop, times = asyncio.get_running_loop(), self._house.config.ladder
        try:
            self._note()
            request = self._request(sent)
            if audience is None:
                async with held_to_cap(request):
                    return await run.run(self._handle.follow(request, _nobody), deadline, times), None
            await self._house.cells_house.dispatch(sent)
            audience.sent()
            began = loop.time()
            async with held_to_cap(request):
                end = await run.run(self._handle.execute(request, audience.wake), deadline, times)
            return end, loop.time() - began
        finally:
            self._session.run = None
            if self._noting is not None:
                self._noting.cancel()

    def _note(self) -> None:
        """Have it noted until when the cell may run, for a control plane that comes after us.

        The keeper is told before the cell is sent: this goes out while the row is on its way to the disk.
        """
        if self._life.is_ours:
            self._house.pool.note(self._life)
        else:
            loop = asyncio.get_running_loop()
            self._noting = loop.call_later(NOTE_SECONDS, self._house.pool.note, self._life)

    async def _seal_later(self, sent: KernelCellRow, result: CellResult) -> None:
        """Close the files of a cell that was given up once its kernel is over, too."""
        await self._life.told.wait()
        await self._house.cells_house.seal(sent, result)

    def _say_climbed(self, sent: KernelCellRow, end: CellEnd) -> None:
        cut = end.cut.value if end.cut else None
        steps = [{"action": it.action, "after_seconds": it.after_seconds} for it in end.steps]
        chronicle = self._house.pool.chronicle
        kept = Variables.LOST.value if end.is_stateless else end.variables.value
        chronicle.say("interrupted_cell", self._life, None, cell=sent.id, why=cut, steps=steps, variables=kept)

    def _request(self, sent: KernelCellRow) -> ExecuteRequest:
        config = self._house.config
        output = config.output
        folder = config.cells_dir / sent.session
        return ExecuteRequest(sent.id, sent.code, folder, output.preview_bytes, output.cell_bytes)

    async def _until_known(self, end: CellEnd) -> None:
        """Of a kernel that is gone or doomed: tell the set, and wait for the word on how it ended."""
        if not self._life.ending:
            if end.gone is None and end.variables is Variables.KEPT:
                return
            if end.is_stateless and not self._handle.died.done():
                return  # only the process of this cell ended
            self._house.pool.life_died(self._life)
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._life.told.wait()
        except TimeoutError:
            _log.warning("kernel_end_unknown", unit=self._life.unit, instance=self._life.key)


def _nobody() -> None:
    """Nobody follows the output of a cell whose client is gone."""
