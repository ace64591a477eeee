"""What a route is given: the rooms, one request, and what lives while the API runs: counts, work,
followed calls.

Work that must not die with its client (a stop, a pin) runs as a task of `Live`; everything else
ends when the client goes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from aiohttp import web

from supervisord_py.api.auth import TcpAccess
from supervisord_py.api.bodies import BodyBudget, HeldBody, receive
from supervisord_py.api.jupyter_seats import Seats
from supervisord_py.api.unit_counts import UnitCounts
from supervisord_py.errors import InterruptedRunError, PxError
from supervisord_py.kernels.room import Kernels
from supervisord_py.kernels.session import CallEvent
from supervisord_py.ledger.store import Ledger
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.events import EventStream
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.tools.service import Tools

T = TypeVar("T")
Document = dict[str, Any]
Told = Callable[[CallEvent], None]
Work = Callable[[Told], Coroutine[Any, Any, Document]]
_LAST_CHANCE_SECONDS = 10.0
# of what requests get when the control plane is replaced: the rest is for telling that it is
_DRAIN_SHARE = 0.8
_log = structlog.get_logger(__name__)


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values out of the settings, and the places that routes read and write."""

    daemon_id: str
    socket: str
    tools_dir: Path
    started_at: float  # of the control plane, Unix seconds
    system: bool = False  # run for the whole machine
    max_body_bytes: int = 16 * 1024 * 1024  # largest request body
    # longest silence on a followed stream, so that a lost client is noticed
    stream_heartbeat_seconds: float = 15.0
    drain_seconds: float = 5.0  # what requests under way get when the control plane is replaced
    tcp: TcpAccess | None = None  # the loopback listener, or None when there is none


class ApiContext(msgspec.Struct, frozen=True, kw_only=True):
    launcher: Tools
    kernels: Kernels
    pipes: Pipes
    ledger: Ledger
    events: EventStream
    placement: KeeperClient
    control: Any  # daemon/control_plane.py's ControlPlane, which nothing here may import
    config: ApiConfig
    # process lives cut off before this start: `{instance, unit, pid}`
    interrupted: Sequence[Document] = ()


_HAS_BEGUN: web.RequestKey[bool] = web.RequestKey("px.has_begun", bool)


class ApiCall(NamedTuple):
    """One request with everything that its route may use."""

    request: web.Request
    context: ApiContext
    live: Live
    held: HeldBody

    async def body(self) -> bytes:
        """Return the body of the request. Errors as of `bodies.receive`."""
        return await receive(self.request, self.held, self.context.config.max_body_bytes)

    def mark_begun(self) -> None:
        """Note that the work may have an effect from here on: its Idempotency-Key is never free
        again.

        Call it right before the first step that cannot be taken back, such as sending the input to
        a tool.
        """
        self.request[_HAS_BEGUN] = True

    @property
    def has_begun(self) -> bool:
        return bool(self.request.get(_HAS_BEGUN, False))


class Live:
    def __init__(self, drain_seconds: float, bodies: BodyBudget) -> None:
        self._drain_seconds = drain_seconds
        self.bodies = bodies
        self.closing = asyncio.Event()  # set when followed streams must end
        # Done once work whose course is followed is to be left, because we are replaced.
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests: Counter[tuple[str, int]] = Counter()  # answers by route and status
        self.units = UnitCounts()  # what happened to each unit
        self.seats = Seats()  # connections of Jupyter's clients that outlive their WebSockets
        self.channels: Counter[str] = Counter()  # open WebSockets of Jupyter's clients by session
        # told as server-sent events, by the id under which clients come back
        self.held: dict[str, HeldCall] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[Any]] = set()

    async def end_streams(self, _: web.Application) -> None:
        """Have followed streams end; work whose course is followed has a part of the time, then
        it is left.
        """
        self.closing.set()
        asyncio.get_running_loop().call_later(
            self._drain_seconds * _DRAIN_SHARE, self.given_up.set_result, None
        )

    def detach(
        self, work: Coroutine[Any, Any, T] | asyncio.Task[T], *, owned: bool = False
    ) -> asyncio.Task[T]:
        """Have `work` go on whether or not anybody waits for it; what is `owned` by a room is
        ended by that alone.
        """
        task, tasks = asyncio.ensure_future(work), self._left if owned else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_log_failure)
        return task

    async def finish(self, _: web.Application) -> None:
        """Wait for no client any more; give work without one a last chance, then cancel it."""
        await self.seats.close()
        for held in list(self.held.values()):
            held.let_go()
        if tasks := set(self._tasks):
            _done, late = await asyncio.wait(tasks, timeout=_LAST_CHANCE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.info("work_failed", error=str(task.exception()))


class HeldCall:
    """One work, what happened in it, and who follows it; it may end (`ends_with_client`) when
    nobody does any more.

    `path`: of the request; `work` is given what takes its events, and returns the last document.
    """

    def __init__(self, live: Live, path: str, work: Work, *, ends_with_client: bool) -> None:
        self.id = secrets.token_hex(8)
        self.path = path
        self.is_told = False
        self.events: list[CallEvent] = []
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._live = live
        self._ends_with_client = ends_with_client
        self._followers = 0
        self._timer: asyncio.TimerHandle | None = None
        self.work = asyncio.create_task(work(self._tell))

    def _tell(self, event: CallEvent) -> None:
        self.events.append(event)
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    async def until_more(self, known: int, seconds: float | None = None) -> None:
        """Wait until more than so many events are there, or no more will come; at most so many
        seconds.
        """
        if len(self.events) <= known:
            signs: set[asyncio.Future[Any]] = {self._news, self.work, self._live.given_up}
            await asyncio.wait(signs, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def result(self) -> Document:
        """Return what came of it. Raises PxError: it failed, was cut off, or goes on without us."""
        if not self.work.done():
            told = (
                "The control plane is being replaced; what runs in the kernel goes on, what comes "
                "behind is not run."
            )
            hint = "pxctl kernel list; what cells give stays at /api/kernels/ID/cells"
            raise InterruptedRunError(told, hint=hint)
        return self.work.result()

    @asynccontextmanager
    async def followed(self, hold_seconds: float) -> AsyncIterator[None]:
        """Follow it while the block lasts; for so long it is then kept for a client that may
        come back.
        """
        self._live.held[self.id] = self
        self._followers += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        except PxError:
            self.is_told = True
            raise
        finally:
            self._followers -= 1
            if not self._followers:
                comes_back = not self.is_told and not self._live.closing.is_set()
                seconds = hold_seconds if comes_back else 0.0
                self._timer = asyncio.get_running_loop().call_later(seconds, self.let_go)

    def let_go(self) -> None:
        """Nobody comes back: the work ends where it ends with its client; the room says so where
        we are replaced.
        """
        self._live.held.pop(self.id, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._ends_with_client and not self._live.closing.is_set():
            self.work.cancel()
        if not (self.is_told and self.work.done()):
            self._live.detach(self.work, owned=True)
