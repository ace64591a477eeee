"""One cell on one kernel: sent, followed, made to end by the ladder, judged, measured, written down."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError
from supervisord_py.kernels.call_rules import CellOutcome, judge
from supervisord_py.kernels.cell import CellNews, CellStatus, RungClimbed, Variables
from supervisord_py.kernels.cell_files import held_to_cap
from supervisord_py.kernels.ladder import Ladder, Over, Rung
from supervisord_py.process import clock
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from supervisord_py.kernels.backend import Reply
    from supervisord_py.kernels.cell import CallEvent, CellResult, CellStarted, Step
    from supervisord_py.kernels.kernel_driver import KernelInstance
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.ledger.kernels import KernelCellRow

LOST_CELL_SECONDS = 5.0  # how long a kernel that is gone may take to say so of its cell
NOTE_SECONDS = 0.05
"""A cell on a gateway that takes longer is noted there, in a file; until then its row in the ledger says what runs."""
END_SECONDS = 15.0  # how long a cell waits for the word on how its kernel ended
_log = structlog.get_logger(__name__)


class CellRun:
    """One run of one cell on a session's kernel, from here to the end of that cell.

    Args:
        sent: The cell's row.
        deadline: Loop time after which it is made to end.
        tell: Told of what happens, on the loop.
    """

    def __init__(
        self,
        room: Kernels,
        life: KernelInstance,
        sent: KernelCellRow,
        deadline: float,
        tell: Callable[[CallEvent], None] = lambda _: None,
    ) -> None:
        assert life.handle is not None
        loop = asyncio.get_running_loop()
        self.cell_id = sent.id
        self.steps: tuple[Step, ...] = ()
        self.over_memory = False  # the kernel is over its soft limit after the cell
        self._room, self._life, self._handle = room, life, life.handle
        self._sent, self._deadline, self._tell = sent, deadline, tell
        self._is_stateless = not life.session.keeps_variables
        self._cut: CellStatus | None = None
        self._hurries = 0
        self._is_over = False
        self._news: asyncio.Future[None] = loop.create_future()
        self._climbed = asyncio.Condition()
        life.cell, life.cell_deadline, life.busy = sent.id, clock.now() + (deadline - loop.time()), True
        life.judged.clear()
        life.session.has_cells, life.session.run = True, self

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
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._climbed:
                await self._climbed.wait_for(lambda: len(self.steps) > known or self._is_over)

    async def perform(self, started: CellStarted | None = None) -> tuple[CellResult, CellOutcome]:
        """Send the cell, wait for its end or make it end; return what came of it, and how it ended.

        Args:
            started: Told right before it is sent, when its row is there. None for a cell that an earlier control plane
                sent: it is only followed, and how long it took, its own files tell.
        """
        life, room, sent = self._life, self._room, self._sent
        try:
            end, duration = await self._see_end(started)
            if end.steps:
                self._say_climbed(end)
            await self._until_known(end)
            end = judge(end, life.end)
            life.exiting = life.exiting or end.exited
        finally:
            life.busy = False
            life.judged.set()
        is_over = life.over.is_set()
        self.over_memory, result = await asyncio.gather(  # the keeper measures while we read
            room.pool.is_over_memory(life),
            room.cell_store.finish(sent, end, duration, kernel_is_over=is_over),
        )
        if end.gone is not None and not is_over:
            room.pool.supervisor.task(self._seal_later(result))
        if end.error is not None or result.status is not end.status:
            end = replace(end, status=result.status, error=result.error)
        return result, end

    async def _see_end(self, started: CellStarted | None) -> tuple[CellOutcome, float | None]:
        """Return how it ended, and after how many seconds."""
        loop, room, sent = asyncio.get_running_loop(), self._room, self._sent
        noting: asyncio.TimerHandle | None = None
        output = room.config.output
        request = ExecuteRequest(
            sent.id, sent.code, room.config.cells_dir / sent.session, output.preview_bytes, output.cell_bytes
        )
        try:
            # Noted until when it may run, for a control plane that comes after us: the keeper is told before the cell
            # is sent, while the row is on its way to the disk.
            if self._life.is_ours:
                room.pool.note(self._life)
            else:
                noting = loop.call_later(NOTE_SECONDS, room.pool.note, self._life)
            if started is not None:
                await room.cell_store.dispatch(sent)
                self._tell(started)
            news, began = CellNews(sent.id), loop.time()
            async with held_to_cap(request):
                work = self._handle.follow if started is None else self._handle.execute
                end = await self._run(work(request, lambda: self._tell(news)))
            return end, None if started is None else loop.time() - began
        finally:
            self._life.session.run = None
            if noting is not None:
                noting.cancel()

    async def _run(self, work: Coroutine[None, None, Reply]) -> CellOutcome:
        loop = asyncio.get_running_loop()
        executing = asyncio.ensure_future(work)
        over: Over | None = None
        try:
            left = max(0.0, self._deadline - loop.time())
            news: set[asyncio.Future[Any]] = {executing, self._news}
            await asyncio.wait(news, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not executing.done():
                self._cut = self._cut or CellStatus.TIMED_OUT
                over = await self._climb(executing, Ladder(self._room.config.ladder, loop.time()))
                if not executing.done():
                    await asyncio.wait({executing}, timeout=LOST_CELL_SECONDS if not over.abandoned else 0)
            return self._ended(executing, over)
        finally:
            if not executing.done():
                executing.cancel()  # abandons the wait, not the cell
                await asyncio.wait({executing})
            self._is_over = True
            async with self._climbed:
                self._climbed.notify_all()

    def _ended(self, executing: asyncio.Future[Reply], over: Over | None) -> CellOutcome:
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
        return CellOutcome(reply, gone, self._cut, variables, self.steps, self._is_stateless)

    async def _seal_later(self, result: CellResult) -> None:
        """Close the files of a cell that was given up once its kernel is over, too."""
        await self._life.over.wait()
        await self._room.cell_store.seal(self._sent, result)

    def _say_climbed(self, end: CellOutcome) -> None:
        cut = end.cut.value if end.cut else None
        steps = [{"action": it.action, "after_seconds": it.after_seconds} for it in end.steps]
        kept = Variables.LOST.value if end.is_stateless else end.variables.value
        self._room.pool.supervisor.say(
            "interrupted_cell", self._life, None, cell=self.cell_id, why=cut, steps=steps, variables=kept
        )

    async def _until_known(self, end: CellOutcome) -> None:
        """Of a kernel that is gone or doomed: tell the set, and wait for the word on how it ended."""
        if not self._life.ending:
            if end.gone is None and end.variables is Variables.KEPT:
                return
            if end.is_stateless and not self._handle.died.done():
                return  # only the process of this cell ended
            self._room.pool.life_died(self._life)
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._life.over.wait()
        except TimeoutError:
            _log.warning("kernel_end_unknown", unit=self._life.unit, instance=self._life.key)

    # -- the ladder --------------------------------------------------------------------------------------------------

    async def _climb(self, executing: asyncio.Future[Reply], ladder: Ladder) -> Over:
        loop = asyncio.get_running_loop()
        while True:
            if self._hurries and not ladder.hurried and ladder.taken_at:
                self._hurries -= 1
                ladder.hurried += 1
            if self._news.done():
                self._news = loop.create_future()
            ended = executing.done()
            gone = self._handle.died.done() or (ended and executing.exception() is not None)
            if self._is_stateless and ended:
                gone = gone or ladder.is_fatal  # a shell cell is a process of its own: with it ends what was signalled
            match ladder.decide(loop.time(), cell_ended=ended, gone=gone):
                case Over() as over:
                    return over
                case Rung() as rung:
                    await self._take(ladder, rung)
                case until:
                    await self._until_news(executing, until)

    async def _take(self, ladder: Ladder, rung: Rung) -> None:
        at = asyncio.get_running_loop().time()
        try:
            action = await self._perform(rung)
            detail = None
        except KeeperLostError:
            raise
        except PxError as error:  # a gateway that does not answer must not stop the ladder
            action, detail = rung.value, error.detail
        step = ladder.took(at, action, detail)
        _log.info("cell_rung", unit=self._life.unit, cell=self.cell_id, action=step.action, detail=step.detail)
        self._tell(RungClimbed(self.cell_id, step))
        self.steps = ladder.steps
        async with self._climbed:
            self._climbed.notify_all()

    async def _perform(self, rung: Rung) -> str:
        if rung in {Rung.TERMINATE, Rung.KILL} and not self._is_stateless:
            timed_out = self._cut is CellStatus.TIMED_OUT
            self._life.wanted = self._life.wanted or (Reason.TIMEOUT if timed_out else Reason.CANCELLED)
        match rung:
            case Rung.INTERRUPT | Rung.AGAIN:
                return await self._handle.interrupt()
            case Rung.TERMINATE:
                return await self._handle.terminate()
            case Rung.KILL:
                return await self._handle.kill()

    async def _until_news(self, executing: asyncio.Future[Reply], until: float) -> None:
        """Wait for whichever comes first: the end of the cell, of the kernel, one more cancel, the time."""
        left = max(0.0, until - asyncio.get_running_loop().time())
        everything: tuple[asyncio.Future[Any], ...] = (executing, self._handle.died, self._news)
        news = {it for it in everything if not it.done()}
        await asyncio.wait(news, timeout=left, return_when=asyncio.FIRST_COMPLETED)
