"""Work on a session whose course is told to its client: events as they happen, `done` with what came of it at last.

Laws:
- Telling never waits. What a cell gives stays in its files until a follower has room for it; only events are kept here,
  of which a call has a handful for each cell.
- What fails before anything happened has an answer with its own status; later, the problem is the last item.
- When the control plane is replaced, the work is given a part of the time that requests get, then left to the room.
- Each server-sent event has an id; a request with `Last-Event-ID` is told the rest, and runs nothing again. Who does
  not come back in time has left: what ends with its client is cancelled then.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aiohttp import web

from supervisord_py.api.context import cancel_and_wait
from supervisord_py.api.schemas import refuse_value
from supervisord_py.api.streams import SSE, Decoder, frame, open_stream, pick, send_all
from supervisord_py.errors import PxError, UnknownUnitError
from supervisord_py.kernels.cell import CellDone, CellNews, CellStarted, KernelStarting, Notice, Queued, RungClimbed
from supervisord_py.kernels.cell_files import CellLog, OutputGoneError, Record, as_event
from supervisord_py.kernels.follow import Bell, Piece, Position, follow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

    from supervisord_py.api.context import Call, Live
    from supervisord_py.errors import InterruptedRunError
    from supervisord_py.kernels.cell import CallEvent, CellResult

T = TypeVar("T")
Document = dict[str, Any]
RESUME_SECONDS = 5.0  # how long a call told as server-sent events waits for a client that was cut off
_DRAIN_SHARE = 0.8  # of what requests get when the control plane is replaced: the rest is for telling that it is
_DONE = "done"
_SEEN = re.compile("(?P<call>[0-9a-f]{16}):(?:done|([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-(-1|[0-9]{1,18}))")


class Place(NamedTuple):
    """How much was told: events of the call; of the cell that runs, bytes of its streams, and its last record."""

    events: int = 0
    out: int = 0
    err: int = 0
    record: int = -1


class HeldCall:
    """One work, what happened in it, and who follows it.

    Args:
        call: Its request; who comes back asks at its path.
        work: Told what takes its events; returns the document that is told at the end.
        interrupted: What is said where it goes on without us.
        ends_with_client: It is cancelled when nobody follows it any more.
        hold_seconds: How long it may have no follower; 0 where nobody can come back.
    """

    def __init__(
        self,
        call: Call,
        work: Callable[[Callable[[CallEvent], None]], Coroutine[Any, Any, Document]],
        interrupted: InterruptedRunError,
        *,
        ends_with_client: bool,
        hold_seconds: float,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.path = call.request.path
        self.cells_dir = call.context.config.cells_dir
        self.interrupted = interrupted
        self.is_told = False
        self.events: list[CallEvent] = []
        self.news = Bell()
        self.bells: dict[str, Bell] = {}
        self._live: Live = call.live
        self._ends_with_client = ends_with_client
        self._hold_seconds = hold_seconds
        self._followers = 0
        self._timer: asyncio.TimerHandle | None = None
        self.work = asyncio.create_task(work(self._tell))
        self.work.add_done_callback(self._close)

    def _tell(self, event: CallEvent) -> None:
        if isinstance(event, CellNews):
            self.bell(event.id).ring()
            return
        if isinstance(event, CellDone):
            self.bell(event.result.id).close()
        self.events.append(event)
        self.news.ring()

    def _close(self, _: asyncio.Task[Document]) -> None:
        for bell in (*self.bells.values(), self.news):
            bell.close()

    def bell(self, cell_id: str) -> Bell:
        """Return what rings when a cell has put something into its files."""
        return self.bells.setdefault(cell_id, Bell(is_closed=self.news.is_closed))

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follow it while the block lasts."""
        self._live.held[self.id] = self
        self._followers += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers:
                if self._hold_seconds > 0 and not self.is_told and not self._live.closing.is_set():
                    self._timer = asyncio.get_running_loop().call_later(self._hold_seconds, self.let_go)
                else:
                    self.let_go()
                    if self._ends_with_client and not self._live.closing.is_set():
                        await asyncio.wait({self.work})

    def let_go(self) -> None:
        """Nobody comes back: the work ends where it ends with its client; the room says so where we are replaced."""
        self._live.held.pop(self.id, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._ends_with_client and not self._live.closing.is_set():
            self.work.cancel()
        self._live.leave(self.work)


async def tell(
    call: Call,
    media: str,
    work: Callable[[Callable[[CallEvent], None]], Coroutine[Any, Any, Document]],
    *,
    interrupted: InterruptedRunError,
    ends_with_client: bool,
) -> web.StreamResponse:
    """Run work and answer with a stream of `media` (NDJSON or SSE) of what happens; see HeldCall for the arguments.

    Raises PxError: it failed.
    """
    hold_seconds = RESUME_SECONDS if media == SSE else 0.0
    held = HeldCall(call, work, interrupted, ends_with_client=ends_with_client, hold_seconds=hold_seconds)
    return await _follow(call, media, held, Place())


async def resume(call: Call, seen: str) -> web.StreamResponse:
    """Answer with the rest of the stream whose event `seen` is the last that the client has.

    Raises UnknownUnitError: it is not there any more; BadRequestError: that is no such id.
    """
    found = _SEEN.fullmatch(seen)
    if found is None:
        raise refuse_value("Last-Event-ID", seen, "must be the id of the last event")
    if found[2] is None:
        return web.Response(status=web.HTTPNoContent.status_code)  # what tells clients of SSE not to come back
    held = call.live.held.get(found["call"])
    if held is None or held.path != call.request.path:
        raise UnknownUnitError(
            "The stream to be resumed is not there any more; nothing was run again.",
            hint="what its cells gave is at GET /api/kernels/{k}/cells; run again without Last-Event-ID",
        )
    return await _follow(call, SSE, held, Place(*map(int, found.groups()[1:])))


async def _follow(call: Call, media: str, held: HeldCall, place: Place) -> web.StreamResponse:
    async with held.followed(), _patience(call, held.work) as given_up:
        try:
            while not held.events and not held.news.is_closed:
                await held.news.after(held.news.rings)
            if place == Place() and held.work.done():
                held.work.result()  # where it failed, its problem is the answer
            response = await open_stream(call, media)
            follower = _Follower(held, place)

            def framed(document: Document) -> bytes:
                place = "-".join(map(str, follower.place))
                return frame(media, document, identifier=f"{held.id}:{place}", event=document["event"])

            await send_all(call, response, follower.documents(), framed, given_up)
            done = {"event": "done", "result": came_of(held.work, held.interrupted)}
        except PxError:
            held.is_told = True
            raise
        await response.write(frame(media, done, identifier=f"{held.id}:{_DONE}", event="done"))
        await response.write_eof()
        held.is_told = True
    return response


@asynccontextmanager
async def running(call: Call, work: Coroutine[Any, Any, T]) -> AsyncIterator[tuple[asyncio.Task[T], asyncio.Event]]:
    """Run the work while the block lasts. Who leaves early cancels it, unless we are replaced.

    The event is set when the time for an orderly end is over and the work is to be left.
    """
    task = asyncio.create_task(work)
    try:
        async with _patience(call, task) as given_up:
            yield task, given_up
    finally:
        if not task.done():
            if call.live.closing.is_set():
                call.live.leave(task)
            else:
                await cancel_and_wait(task)


@asynccontextmanager
async def _patience(call: Call, work: asyncio.Task[Any]) -> AsyncIterator[asyncio.Event]:
    given_up = asyncio.Event()

    async def lose() -> None:
        await call.live.closing.wait()
        await asyncio.wait({work}, timeout=call.context.config.drain_seconds * _DRAIN_SHARE)
        given_up.set()

    losing = asyncio.create_task(lose())
    try:
        yield given_up
    finally:
        await cancel_and_wait(losing)


def came_of(work: asyncio.Task[T], interrupted: InterruptedRunError) -> T:
    """Return what came of the work.

    Raises PxError: it failed, or was cut off; InterruptedRunError: the given one: it goes on without us.
    """
    if not work.done():
        raise interrupted
    return work.result()


class _Follower:
    """One client on its way through the call."""

    def __init__(self, held: HeldCall, place: Place) -> None:
        self._call = held
        self._events = place.events
        self._told = {"stdout": place.out, "stderr": place.err}
        self._record = place.record

    @property
    def place(self) -> Place:
        """How much was told."""
        return Place(self._events, self._told["stdout"], self._told["stderr"], self._record)

    async def documents(self) -> AsyncGenerator[Document, None]:
        """Yield what is to be told from the place on, up to the end of the call."""
        call = self._call
        ends = [event for event in call.events[: self._events] if isinstance(event, CellDone | CellStarted)]
        started = ends[-1] if ends and isinstance(ends[-1], CellStarted) else None
        while True:
            if started is not None:
                async with aclosing(self._cell(started)) as found:
                    async for given in found:
                        yield {"event": given["event"], "id": started.id, **given}
            rings, started = call.news.rings, None
            if self._events >= len(call.events):
                if call.news.is_closed:
                    return
                await call.news.after(rings)
                continue
            event = call.events[self._events]
            self._events += 1
            if isinstance(event, CellStarted):
                started, self._told, self._record = event, {"stdout": 0, "stderr": 0}, -1
            yield event_document(event)

    async def _cell(self, started: CellStarted) -> AsyncGenerator[Document, None]:
        """Yield what a cell gives up to its end, and between that what else happens to it."""
        log = CellLog(self._call.cells_dir / started.session_id, started.id)
        begin = Position(self._told["stdout"], self._told["stderr"], self._record)
        items, decoder = follow(log, self._call.bell(started.id), begin), Decoder(in_order=True)
        async with aclosing(self._with_events(items)) as found:
            async for item in found:
                if isinstance(item, dict):
                    yield item
                elif isinstance(item, Piece):
                    for document in self._passed(decoder.take(item.stream, item.offset, item.data)):
                        yield document
                else:
                    self._record = max(self._record, item.offset)
                    if (told := as_event(item)) is not None:
                        yield told
        for document in self._passed(decoder.rest()):
            yield document

    def _passed(self, outputs: list[Document]) -> list[Document]:
        """Go past pieces of output."""
        for output in outputs:
            self._told[output["stream"]] += output["end"] - output["offset"]
        return outputs

    async def _with_events(
        self, items: AsyncGenerator[Piece | Record, None]
    ) -> AsyncGenerator[Piece | Record | Document, None]:
        """Yield the items of a cell, and as soon as they come the events that are told meanwhile."""
        upcoming: asyncio.Task[Piece | Record | None] | None = None
        news: asyncio.Task[Any] | None = None
        try:
            while True:
                bell = self._call.news
                rings, over = bell.rings, bell.is_closed
                for event in self._call.events[self._events :]:
                    if isinstance(event, CellDone | CellStarted):
                        break
                    self._events += 1
                    yield event_document(event)
                upcoming = upcoming or asyncio.create_task(_next(items))
                news = news or asyncio.create_task(bell.after(rings))
                await asyncio.wait({upcoming} if over else {upcoming, news}, return_when=asyncio.FIRST_COMPLETED)
                news = None if news.done() else news
                if upcoming.done():
                    item, upcoming = upcoming.result(), None
                    if item is None:
                        return
                    yield item
        finally:
            for task in (upcoming, news):
                if task is not None:
                    await cancel_and_wait(task)
            await items.aclose()


async def _next(items: AsyncGenerator[Piece | Record, None]) -> Piece | Record | None:
    """Return the next item; None at the end, also where the files of the cell are gone or never were."""
    with suppress(OutputGoneError):
        return await anext(items, None)
    return None


def event_document(event: CallEvent) -> Document:
    """Return an event of a call as its followers are told it; news is not: they find it in the cell's files."""
    match event:
        case Queued():
            return {"event": "queued", "position": event.position}
        case KernelStarting():
            return {"event": "starting", "kernel": event.session_id, "interpreter": event.interpreter}
        case CellStarted():
            known = pick(event, "index", "count", "id", "title")
            return {"event": "cell_started", **known, "kernel": event.session_id, "code": event.code}
        case RungClimbed():
            return {"event": "rung", "id": event.id, **pick(event.step, "action", "after_seconds", "detail")}
        case CellDone():
            return {"event": "cell_done", "cell": cell_document(event.result)}
        case Notice():
            return {"event": "notice", "text": event.text}
        case CellNews():
            raise TypeError("news is no event for followers")


def cell_document(cell: CellResult) -> dict[str, Any]:
    """Return what came of one cell."""
    return {
        **pick(cell, "id", "title", "status", "text", "outputs", "error", "truncated", "artifact", "total_bytes"),
        **pick(cell, "total_lines", "shown_bytes", "duration_seconds", "variables", "execution_count", "steps"),
        **pick(cell, "lossy", "notices"),
        "duration": cell.duration_seconds,
    }
