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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple

from aiohttp import web
from msgspec.structs import asdict

from supervisord_py.api.context import Call, cancel_and_wait
from supervisord_py.api.schemas import refuse_value
from supervisord_py.api.streams import JSON, SSE, Decoder, feed, frame, json_answer, until_closing
from supervisord_py.errors import InterruptedRunError, PxError, UnknownUnitError
from supervisord_py.kernels.cell import (
    CallEvent,
    CellDone,
    CellNews,
    CellResult,
    CellStarted,
    KernelStarting,
    Queued,
    RungClimbed,
)
from supervisord_py.kernels.cell_files import CellLog, OutputGoneError, Record, as_event
from supervisord_py.kernels.follow import Bell, Piece, Position, follow

Document = dict[str, Any]
Work = Callable[[Callable[[CallEvent], None]], Coroutine[Any, Any, Document]]
RESUME_SECONDS = 5.0  # how long a call told as server-sent events waits for a client that was cut off
_DRAIN_SHARE = 0.8  # of what requests get when the control plane is replaced: the rest is for telling that it is
_SEEN = re.compile("(?P<call>[0-9a-f]{16}):(?:done|([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-(-1|[0-9]{1,18}))")


class Place(NamedTuple):
    """How much was told: events of the call; of the cell that runs, bytes of its streams, and its last record."""

    events: int = 0
    out: int = 0
    err: int = 0
    record: int = -1


class HeldCall:
    """One work, what happened in it, and who follows it.

    `ends_with_client`: it is cancelled when nobody follows it any more, which it may be for `hold_seconds`. `given_up`
    is set once it is to be left, because we are replaced; `interrupted` makes what is said then.
    """

    def __init__(
        self,
        call: Call,
        work: Work,
        interrupted: Callable[[], InterruptedRunError],
        *,
        ends_with_client: bool,
        hold_seconds: float,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.path = call.request.path
        self.cells_dir = call.context.config.cells_dir
        self.is_told = False
        self.events: list[CallEvent] = []
        self.news = Bell()
        self.bells: dict[str, Bell] = {}
        self.given_up = asyncio.Event()
        self._interrupted = interrupted
        self._live = call.live
        self._ends_with_client = ends_with_client
        self._hold_seconds = hold_seconds
        self._drain_seconds = call.context.config.drain_seconds * _DRAIN_SHARE
        self._followers = 0
        self._timer: asyncio.TimerHandle | None = None
        self.work = asyncio.create_task(work(self._tell))
        self.patience = asyncio.create_task(self._lose_patience())
        self.work.add_done_callback(self._close)

    async def _lose_patience(self) -> None:
        await self._live.closing.wait()
        await asyncio.wait({self.work}, timeout=self._drain_seconds)
        self.given_up.set()

    def _tell(self, event: CallEvent) -> None:
        if isinstance(event, CellNews):
            self.bell(event.id).ring()
            return
        if isinstance(event, CellDone):
            self.bell(event.result.id).close()
        self.events.append(event)
        self.news.ring()

    def _close(self, _: asyncio.Task[Document]) -> None:
        self.patience.cancel()
        for bell in (*self.bells.values(), self.news):
            bell.close()

    def bell(self, cell_id: str) -> Bell:
        """Return what rings when a cell has put something into its files."""
        return self.bells.setdefault(cell_id, Bell(is_closed=self.news.is_closed))

    def result(self) -> Document:
        """Return what came of it. Raises PxError: it failed, was cut off, or goes on without us."""
        if not self.work.done():
            raise self._interrupted()
        return self.work.result()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follow it while the block lasts."""
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
                seconds = self._hold_seconds if comes_back else 0.0
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


async def tell(
    call: Call, media: str, work: Work, interrupted: Callable[[], InterruptedRunError], *, ends_with_client: bool
) -> web.StreamResponse:
    """Run work; answer with what came of it, or with a stream of what happens. See HeldCall for the arguments.

    `work` is given what takes its events, and returns the last document. Raises PxError: it failed.
    """
    hold_seconds = RESUME_SECONDS if media == SSE else 0.0
    held = HeldCall(call, work, interrupted, ends_with_client=ends_with_client, hold_seconds=hold_seconds)
    return await _follow(call, media, held, Place())


async def resume(call: Call, seen: str) -> web.StreamResponse:
    """Answer with the rest of the stream whose event `seen` is the last that the client has."""
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
    async with held.followed():
        if media == JSON:
            await asyncio.wait({held.work, held.patience}, return_when=asyncio.FIRST_COMPLETED)
            answer = json_answer(document := held.result())
            held.is_told = True
            if (cold := document.get("cold_start_ms")) is not None:
                answer.headers["X-Px-Cold-Start"] = str(cold)
            return answer
        while not held.events and not held.news.is_closed:
            await held.news.after(held.news.rings)
        if place == Place() and held.work.done():
            held.work.result()  # where it failed, its problem is the answer
        response = await feed(call, media, _frames(media, held, place), closing=asyncio.Event())
        held.is_told = True
        return response


async def _frames(media: str, held: HeldCall, place: Place) -> AsyncGenerator[bytes, None]:
    async with aclosing(until_closing(_documents(held, place), held.given_up)) as items:
        async for item in items:
            if item is not None:
                at = "-".join(map(str, item[0]))
                yield frame(media, item[1], identifier=f"{held.id}:{at}", event=item[1]["event"])
    done = {"event": "done", "result": held.result()}
    yield frame(media, done, identifier=f"{held.id}:done", event="done")


async def _documents(held: HeldCall, place: Place) -> AsyncGenerator[tuple[Place, Document], None]:
    """Yield what is to be told from a place on up to the end of the call, each with the place behind it.

    A cell's end is told when its files were read to their end; what else happens meanwhile, as soon as it does.
    """
    events, told, record = place.events, [place.out, place.err], place.record
    edges = [event for event in held.events[:events] if isinstance(event, CellDone | CellStarted)]
    started = edges[-1] if edges and isinstance(edges[-1], CellStarted) else None
    items: AsyncGenerator[Piece | Record, None] | None = None
    upcoming: asyncio.Task[Piece | Record | None] | None = None
    decoder = Decoder(in_order=True)
    try:
        while True:
            rings, over = held.news.rings, held.news.is_closed
            for event in held.events[events:]:
                if started is not None and isinstance(event, CellDone | CellStarted):
                    break
                events += 1
                if isinstance(event, CellStarted):
                    started, told, record = event, [0, 0], -1
                yield Place(events, told[0], told[1], record), event_document(event)
            if started is None:
                if over:
                    return
                await held.news.after(rings)
                continue
            if items is None:
                log = CellLog(held.cells_dir / started.session_id, started.id)
                items = follow(log, held.bell(started.id), Position(told[0], told[1], record))
            upcoming = upcoming or asyncio.create_task(_next(items))
            ring = asyncio.create_task(held.news.after(rings))
            await asyncio.wait({upcoming} if over else {upcoming, ring}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(ring)
            if not upcoming.done():
                continue
            item, upcoming = upcoming.result(), None
            found = decoder.rest() if item is None else []
            if isinstance(item, Piece):
                found = decoder.take(item.stream, item.offset, item.data)
            elif item is not None:
                record = max(record, item.offset)
                found = [] if (document := as_event(item)) is None else [document]
            for given in found:
                if "event" not in given:
                    told[given["stream"] == "stderr"] += given["end"] - given["offset"]
                yield Place(events, told[0], told[1], record), {"event": "output", "id": started.id, **given}
            if item is None:
                items = started = None
    finally:
        if upcoming is not None:
            await cancel_and_wait(upcoming)
        if items is not None:
            await items.aclose()


async def _next(items: AsyncGenerator[Piece | Record, None]) -> Piece | Record | None:
    """Return the next item; None at the end, also where the files of the cell are gone or never were."""
    with suppress(OutputGoneError):
        return await anext(items, None)
    return None


def event_document(event: CallEvent) -> Document:
    """Return an event of a call as its followers are told it."""
    match event:
        case Queued():
            return {"event": "queued", **asdict(event)}
        case KernelStarting():
            return {"event": "starting", "kernel": event.session_id, "interpreter": event.interpreter}
        case CellStarted(session_id=kernel):
            known = asdict(event)
            del known["session_id"]
            return {"event": "cell_started", **known, "kernel": kernel}
        case RungClimbed():
            return {"event": "rung", "id": event.id, **asdict(event.step)}
        case CellDone():
            return {"event": "cell_done", "cell": cell_document(event.result)}
    return {"event": "notice", **asdict(event)}


def cell_document(cell: CellResult) -> Document:
    """Return what came of one cell."""
    return {**asdict(cell), "duration": cell.duration_seconds}
