"""What changes while the API runs: what is counted, work under way, and the calls whose course clients follow.

Law: work that must not die with its client (a stop, a pin) runs as a task of `Live`; everything else ends when the
client goes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from supervisord_py.errors import InterruptedRunError, PxError
from supervisord_py.kernels.cell import CallEvent
from supervisord_py.ledger.events import Event

T = TypeVar("T")
Document = dict[str, Any]
Work = Callable[[Callable[[CallEvent], None]], Coroutine[Any, Any, Document]]
_LAST_CHANCE_SECONDS = 10.0
_DRAIN_SHARE = 0.8  # of what requests get when the control plane is replaced: the rest is for telling that it is
_log = structlog.get_logger(__name__)


class Live:
    """What changes while the API runs."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()  # set when followed streams must end
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once work whose course is followed is to be left, because we are replaced."""
        self.requests: Counter[tuple[str, int]] = Counter()  # answers by route and status
        self.events: Counter[tuple[str, str, str]] = Counter()  # by kind of the unit, word, reason
        self.cold_starts: dict[str, list[float]] = {}  # by kind of the unit: how many, and their sum in seconds
        self.channels: Counter[str] = Counter()  # open WebSockets of Jupyter's clients by session
        self.held: dict[str, HeldCall] = {}  # told as server-sent events, by the id under which clients come back
        self._tasks: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[Any]] = set()

    def count(self, event: Event) -> None:
        """Take an event into what metrics tell."""
        kind = (event.unit or "daemon").partition(":")[0]
        self.events[kind, event.event, str(event.reason or event.facts.get("error_type") or "")] += 1
        if isinstance(milliseconds := event.facts.get("cold_start_ms"), int | float):
            known = self.cold_starts.setdefault(kind, [0, 0.0])
            known[0] += 1
            known[1] += milliseconds / 1000

    def end_streams(self, drain_seconds: float) -> None:
        """Have followed streams end; work whose course is followed has a part of that time, then it is left."""
        self.closing.set()
        asyncio.get_running_loop().call_later(drain_seconds * _DRAIN_SHARE, self.given_up.set_result, None)

    def leave(self, work: asyncio.Task[Any]) -> None:
        """Let go of work whose owner ends it: we neither wait for it nor cancel it."""
        self._left.add(work)
        work.add_done_callback(self._left.discard)
        work.add_done_callback(_log_failure)

    async def outlive_client(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, which goes on when the client does not wait for it."""
        task = self._begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    def detach(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin `work` that nobody waits for."""
        self._begin(work).add_done_callback(_log_failure)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Wait for no client any more; give work without one a last chance, then cancel it."""
        for held in list(self.held.values()):
            held.let_go()
        if tasks := set(self._tasks):
            _, late = await asyncio.wait(tasks, timeout=_LAST_CHANCE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.info("detached_work_failed", error=str(task.exception()))


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, whatever it is; a cancellation of the caller still gets through."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


class HeldCall:
    """One work, what happened in it, and who follows it.

    `path`: of the request; `work` is given what takes its events, and returns the last document; `ends_with_client`: it
    is cancelled when nobody follows it any more; `interrupted` makes what is said when it is left as we are replaced.
    """

    def __init__(
        self,
        live: Live,
        path: str,
        work: Work,
        interrupted: Callable[[], InterruptedRunError],
        *,
        ends_with_client: bool,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.path = path
        self.is_told = False
        self.events: list[CallEvent] = []
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._interrupted = interrupted
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
        """Wait until more than so many events are there, or no more will come; at most so many seconds."""
        if len(self.events) <= known:
            signs: set[asyncio.Future[Any]] = {self._news, self.work, self._live.given_up}
            await asyncio.wait(signs, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def result(self) -> Document:
        """Return what came of it. Raises PxError: it failed, was cut off, or goes on without us."""
        if not self.work.done():
            raise self._interrupted()
        return self.work.result()

    @asynccontextmanager
    async def followed(self, hold_seconds: float) -> AsyncIterator[None]:
        """Follow it while the block lasts; for so long it is then kept for a client that may come back."""
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
        """Nobody comes back: the work ends where it ends with its client; the room says so where we are replaced."""
        self._live.held.pop(self.id, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._ends_with_client and not self._live.closing.is_set():
            self.work.cancel()
        if not (self.is_told and self.work.done()):
            self._live.leave(self.work)
