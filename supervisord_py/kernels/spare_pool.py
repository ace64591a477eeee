"""The spares of one control plane: makes and ends what `spare_rules` decides, and gives one away when it fits.

Law: nobody ever waits for a spare, and no trouble with one reaches a call: whatever fails here is logged, and the start
goes on afresh. One that was taken is replaced when no cell runs. When this ends, no spare is left.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.backend import SpareView
from supervisord_py.kernels.spare import Spare, UnfitError, unit_of
from supervisord_py.kernels.spare_rules import Bounds, Make, Shelf, recipe_of
from supervisord_py.process.host import check_room
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child

_log = structlog.get_logger(__name__)
_TROUBLE = (UnfitError, PxError, OSError, TimeoutError, ValueError, KeyError, TypeError)
"""What may go wrong with another process that may say anything."""


class Activity:
    """Whether somebody waits for a kernel: for its start, or for a cell.

    Attributes:
        quiet_since: Loop time; None while somebody waits.
        news: Set when that changed to quiet, or something else is to be looked at.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self.quiet_since: float | None = asyncio.get_running_loop().time()
        self.news = asyncio.Event()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Count one who waits."""
        self._waiting += 1
        self.quiet_since = None
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.quiet_since = asyncio.get_running_loop().time()
                self.news.set()


class SparePool:
    """Made where the loop runs; end it with `close`."""

    def __init__(self, placement: KeeperClient, config: KernelsConfig) -> None:
        self._placement = placement
        self._config = config
        self.activity = Activity()
        self._shelf = Shelf(_bounds(config))
        self._spares: dict[int, Spare] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._work: asyncio.Task[None] | None = None

    def views(self) -> tuple[SpareView, ...]:
        """Return the spares there are."""
        ready = self._shelf.ready
        each = sorted(self._spares.items())
        return tuple(SpareView(it.recipe.interpreter, it.pid, serial in ready) for serial, it in each)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: spares beyond them are ended."""
        self._config = config
        self._shelf.bound(_bounds(config))
        self.activity.news.set()

    def want(self, launch: Launch) -> None:
        """A kernel was started, or will be, from such a launch: have a spare for the next one."""
        recipe = recipe_of(launch)
        if recipe is None or not self._config.spares:
            return
        self._shelf.used(recipe, asyncio.get_running_loop().time())
        self.activity.news.set()
        if self._work is None:
            self._work = self._run(self._keep())

    async def take(self, launch: Launch, argv: tuple[str, ...]) -> Child | None:
        """Return the child that a spare became under the launch's key; None where a fresh start is needed."""
        recipe = recipe_of(launch)
        serial = None if recipe is None else self._shelf.take(recipe)
        if serial is None:
            return None
        spare = self._spares.pop(serial)
        self._lives.pop(serial).cancel()
        try:
            child = await spare.become(launch, argv)
        except BaseException as trouble:
            self._run(self._end(spare, Reason.REPLACED))
            if not isinstance(trouble, _TROUBLE) or isinstance(trouble, KeeperLostError):
                raise
            unit = f"kernel:{launch.session_id}"
            _log.warning("kernel_spare_not_taken", unit=unit, instance=spare.key, why=_words(trouble))
            return None
        _log.info("kernel_spare_taken", unit=f"kernel:{launch.session_id}", instance=launch.instance, spare=spare.key)
        return child

    async def close(self) -> None:
        """End every spare, and what is under way."""
        if self._work is not None:
            self._work.cancel()
        for life in self._lives.values():
            life.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- at work -----------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Do what is to be done, whenever that may be."""
        loop = asyncio.get_running_loop()
        while True:
            self.activity.news.clear()
            for step in self._shelf.steps(loop.time(), self.activity.quiet_since):
                if isinstance(step, Make):
                    self._make(step)
                else:
                    self._lives[step.serial].cancel()
            until = self._shelf.wake_at(self.activity.quiet_since)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self.activity.news.wait()

    def _make(self, make: Make) -> None:
        spare = self._spares[make.serial] = Spare(self._placement, make.recipe)
        life = self._lives[make.serial] = self._run(self._life(make.serial, spare))
        life.add_done_callback(lambda _: self._left(make.serial))

    async def _life(self, serial: int, spare: Spare) -> None:
        """Have one spare until it ends; cancelled when it is given away or given up."""
        where = {"interpreter": spare.recipe.interpreter, "instance": spare.key}
        try:
            check_room(unit_of(spare.recipe))
            async with asyncio.timeout(self._config.start_seconds):
                await spare.warm_up()
            self._shelf.warm(serial, asyncio.get_running_loop().time())
            self.activity.news.set()
            _log.info("kernel_spare_ready", **where)
            await spare.died()
            _log.warning("kernel_spare_died", **where)
        except _TROUBLE as trouble:
            _log.warning("kernel_spare_not_made", why=_words(trouble), **where)

    def _left(self, serial: int) -> None:
        """See to what is left of a spare, unless it was given away."""
        spare = self._spares.pop(serial, None)
        if spare is not None:
            del self._lives[serial]
            self._shelf.lost(serial)
            self.activity.news.set()
            self._run(self._end(spare, Reason.STOPPED))

    async def _end(self, spare: Spare, reason: Reason) -> None:
        try:
            await spare.end(reason)
        except PxError as error:
            _log.warning("kernel_spare_not_ended", instance=spare.key, detail=error.detail)

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kernel_spares_broke", exc_info=error)


def _words(trouble: BaseException) -> str:
    return str(trouble) or type(trouble).__name__


def _bounds(config: KernelsConfig) -> Bounds:
    return Bounds(count=config.spares, idle_seconds=config.spare_idle_seconds)
