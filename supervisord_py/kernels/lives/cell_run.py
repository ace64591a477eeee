"""One cell on one kernel, from its dispatch until it has ended, by itself or by the ladder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.cell import CellStatus, RungClimbed, Variables
from supervisord_py.kernels.lives.ladder import Ladder, Over, Rung, Sight, Take, Wait
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from supervisord_py.kernels.backend import KernelHandle, Reply
    from supervisord_py.kernels.cell import CallEvent, Step
    from supervisord_py.kernels.config import LadderTimes
    from supervisord_py.kernels.lives.kernel_life import KernelLife

LOST_CELL_SECONDS = 5.0
"""How long a kernel that is gone may take to say so of its cell."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CellEnd:
    """How a cell ended.

    Attributes:
        reply: The kernel's word; None when it gave none.
        gone: What said that the kernel is gone.
        cut: TIMED_OUT or CANCELLED when it was made to end.
        variables: What became of the session's state.
        steps: Rungs that were taken.
        is_stateless: There are no variables: a shell cell.
    """

    reply: Reply | None
    gone: PxError | None
    cut: CellStatus | None
    variables: Variables
    steps: tuple[Step, ...] = ()
    is_stateless: bool = False


class CellRun:
    """One run of one cell."""

    def __init__(self, life: KernelLife, handle: KernelHandle, cell_id: str, tell: Callable[[CallEvent], None]) -> None:
        self.cell_id = cell_id
        self.steps: tuple[Step, ...] = ()
        self._life = life
        self._handle = handle
        self._tell = tell
        self._cut: CellStatus | None = None
        self._hurries = 0
        self._is_over = False
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._climbed = asyncio.Condition()

    def cut(self, status: CellStatus, *, rungs: int = 1) -> None:
        """Have the cell end; asked again, the next rung is taken at once. The first status stands."""
        if self._cut is None:
            self._cut = status
            rungs -= 1
        self._hurries += rungs
        if not self._news.done():
            self._news.set_result(None)

    async def until_climbed(self, known: int, seconds: float) -> None:
        """Wait until more than `known` steps are there, or that time is over."""
        try:
            async with asyncio.timeout(seconds), self._climbed:
                await self._climbed.wait_for(lambda: len(self.steps) > known or self._is_over)
        except TimeoutError:
            pass

    async def run(self, work: Coroutine[None, None, Reply], deadline: float, times: LadderTimes) -> CellEnd:
        """Run the cell to its end.

        Args:
            work: The handle's `execute` or `follow` of this cell.
            deadline: Loop time after which it is made to end.
            times: Of the ladder.
        """
        executing = asyncio.ensure_future(work)
        try:
            await self._until_cut_or_ended(executing, deadline)
            if executing.done():
                return self._ended(executing, None)
            self._cut = self._cut or CellStatus.TIMED_OUT
            over, steps = await self._climb(executing, Ladder(times, asyncio.get_running_loop().time()))
            if not executing.done():
                await asyncio.wait({executing}, timeout=LOST_CELL_SECONDS if not over.abandoned else 0)
            return self._ended(executing, over, steps)
        finally:
            if not executing.done():
                executing.cancel()  # abandons the wait, not the cell
                await asyncio.wait({executing})
            self._is_over = True
            await self._say_climbed()

    async def _until_cut_or_ended(self, executing: asyncio.Future[Reply], deadline: float) -> None:
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        news: set[asyncio.Future[Any]] = {executing, self._news}
        await asyncio.wait(news, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    # -- the ladder --------------------------------------------------------------------------------------------------

    async def _climb(self, executing: asyncio.Future[Reply], ladder: Ladder) -> tuple[Over, tuple[Step, ...]]:
        loop = asyncio.get_running_loop()
        while True:
            if self._hurries and not ladder.hurried and ladder.taken:
                self._hurries -= 1
                ladder = ladder.hurry()
            if self._news.done():
                self._news = loop.create_future()
            match ladder.decide(loop.time(), self._sight(executing, ladder)):
                case Over() as over:
                    return over, ladder.steps
                case Take(rung):
                    ladder = await self._take(ladder, rung)
                case Wait(until):
                    await self._until_news(executing, until)

    def _sight(self, executing: asyncio.Future[Reply], ladder: Ladder) -> Sight:
        ended = executing.done()
        gone = self._handle.died.done() or (ended and executing.exception() is not None)
        if self._is_stateless and ended:
            gone = gone or ladder.is_fatal  # a shell cell is a process of its own: with it ends all that was signalled
        return Sight(cell_ended=ended, gone=gone)

    @property
    def _is_stateless(self) -> bool:
        return self._life.session.backend is BackendName.BASH

    async def _take(self, ladder: Ladder, rung: Rung) -> Ladder:
        at = asyncio.get_running_loop().time()
        try:
            action = await self._perform(rung)
            detail = None
        except KeeperLostError:
            raise
        except PxError as error:  # a gateway that does not answer must not stop the ladder
            action, detail = rung.value, error.detail
        taken = ladder.took(rung, at, action, detail)
        for step in taken.steps[len(ladder.steps) :]:
            _log.info("cell_rung", unit=self._life.unit, cell=self.cell_id, action=step.action, detail=step.detail)
            self._tell(RungClimbed(self.cell_id, step))
        self.steps = taken.steps
        await self._say_climbed()
        return taken

    async def _say_climbed(self) -> None:
        async with self._climbed:
            self._climbed.notify_all()

    async def _perform(self, rung: Rung) -> str:
        if rung in {Rung.TERMINATE, Rung.KILL} and not self._is_stateless:
            self._want_its_end()
        match rung:
            case Rung.INTERRUPT | Rung.AGAIN:
                return await self._handle.interrupt()
            case Rung.TERMINATE:
                return await self._handle.terminate()
            case Rung.KILL:
                return await self._handle.kill()

    def _want_its_end(self) -> None:
        timed_out = self._cut is CellStatus.TIMED_OUT
        self._life.wanted = self._life.wanted or (Reason.TIMEOUT if timed_out else Reason.CANCELLED)

    async def _until_news(self, executing: asyncio.Future[Reply], until: float) -> None:
        """Wait for whichever comes first: the end of the cell, of the kernel, one more cancel, the time."""
        left = max(0.0, until - asyncio.get_running_loop().time())
        everything: tuple[asyncio.Future[Any], ...] = (executing, self._handle.died, self._news)
        news = {it for it in everything if not it.done()}
        await asyncio.wait(news, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    # -- its end -----------------------------------------------------------------------------------------------------

    def _ended(self, executing: asyncio.Future[Reply], over: Over | None, steps: tuple[Step, ...] = ()) -> CellEnd:
        reply: Reply | None = None
        gone: PxError | None = None
        if not executing.done():
            gone = KernelGoneError(f"{self._life.unit} did not end in time.", unit=self._life.unit)
        elif (error := executing.exception()) is None:
            reply = executing.result()
        elif isinstance(error, PxError):
            gone = error
        else:
            raise error
        variables = over.variables if over else Variables.LOST if gone else Variables.KEPT
        if self._is_stateless:
            variables = Variables.KEPT
        return CellEnd(reply, gone, self._cut, variables, steps, self._is_stateless)
