"""What followers of a call are told, in order: its events, and between them what its cells put into their files.

Law: telling never waits. What a cell gives stays in its files until a follower has room for it; only events are kept
here, of which a call has a handful for each cell. So a client that does not read keeps nobody waiting but its own
answer, and one that was cut off is told the rest from where it was.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.api.call import cancel_and_wait
from supervisord_py.api.kernel_documents import event_document
from supervisord_py.kernels.cell import CallEvent, CellDone, CellNews, CellStarted
from supervisord_py.kernels.cell_files import CellLog, OutputGoneError, Record, as_event
from supervisord_py.kernels.follow import Bell, Piece, Position, follow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

_PLACE = re.compile("([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-(-1|[0-9]{1,18})")


class StreamPlace(NamedTuple):
    """A place in the course of a call, from which it can be told on.

    Attributes:
        events: How many of the call's events were told.
        out, err: Of the cell that runs: how many bytes of its streams were told.
        record: Which of its records was told last: where its line begins; -1 for none.
    """

    events: int = 0
    out: int = 0
    err: int = 0
    record: int = -1

    def __str__(self) -> str:
        return "-".join(map(str, self))


START = StreamPlace()


def read_place(text: str) -> StreamPlace | None:
    """Return the place that a text says, None where it says none."""
    found = _PLACE.fullmatch(text)
    return None if found is None else StreamPlace(*map(int, found.groups()))


Document = dict[str, Any]
Told = tuple[Document, StreamPlace]
"""What is told, and where the course is after it."""


class CallFeed:
    """One call, for any number of followers.

    Args:
        cells_dir: Where the files of cells are, by session; those of a cell that begins may not be there yet.
    """

    def __init__(self, cells_dir: Path) -> None:
        self._cells_dir = cells_dir
        self._events: list[CallEvent] = []
        self._bells: dict[str, Bell] = {}
        self._begun = asyncio.Event()
        self.news = Bell()
        """Rung when there is an event, and closed with the call."""

    # -- who tells ---------------------------------------------------------------------------------------------------

    def tell(self, event: CallEvent) -> None:
        """Take an event of the call."""
        match event:
            case CellNews(id=cell_id):
                self.bell(cell_id).ring()
                return
            case CellDone(result=result):
                self.bell(result.id).close()
            case _:
                pass
        self._events.append(event)
        self._begun.set()
        self.news.ring()

    def close(self) -> None:
        """The call is over: who follows gets what there is, then the end."""
        for bell in self._bells.values():
            bell.close()
        self._begun.set()
        self.news.close()

    # -- who follows -------------------------------------------------------------------------------------------------

    async def begun(self) -> None:
        """Wait for the first event, or for the end without any."""
        await self._begun.wait()

    def documents(self, place: StreamPlace) -> AsyncGenerator[Told, None]:
        """Yield what is to be told from a place on, up to the end of the call."""
        return _Follower(self, place).documents()

    def event(self, number: int) -> CallEvent | None:
        """Return an event by its number; None where there is none yet."""
        return self._events[number] if number < len(self._events) else None

    def running_after(self, number: int) -> CellStarted | None:
        """Return the cell that runs after that many events."""
        for event in reversed(self._events[:number]):
            if isinstance(event, CellDone | CellStarted):
                return event if isinstance(event, CellStarted) else None
        return None

    def bell(self, cell_id: str) -> Bell:
        """Return what rings when a cell has put something into its files."""
        bell = self._bells.get(cell_id)
        if bell is None:
            bell = self._bells[cell_id] = Bell(is_closed=self.news.is_closed)
        return bell

    def log(self, started: CellStarted) -> CellLog:
        """Return the files of a cell."""
        return CellLog(self._cells_dir / started.session_id, started.id)


class _Follower:
    """One client on its way through the call."""

    def __init__(self, feed: CallFeed, place: StreamPlace) -> None:
        self._feed = feed
        self._events = place.events
        self._told = {"stdout": place.out, "stderr": place.err}
        self._record = place.record
        self._held: Piece | None = None

    @property
    def _place(self) -> StreamPlace:
        return StreamPlace(self._events, self._told["stdout"], self._told["stderr"], self._record)

    async def documents(self) -> AsyncGenerator[Told, None]:
        started = self._feed.running_after(self._events)
        while True:
            if started is not None:
                async with aclosing(self._cell(started)) as found:
                    async for given in found:
                        yield {"event": given["event"], "id": started.id, **given}, self._place
            rings, started = self._feed.news.rings, None
            event = self._feed.event(self._events)
            if event is None and self._feed.news.is_closed:
                return
            if event is None:
                await self._feed.news.after(rings)
                continue
            self._events += 1
            if isinstance(event, CellStarted):
                started, self._told, self._record = event, {"stdout": 0, "stderr": 0}, -1
            document = event_document(event)
            if document is not None:
                yield document, self._place

    async def _cell(self, started: CellStarted) -> AsyncGenerator[Document, None]:
        """Yield what a cell gives up to its end, and between that what else happens to it."""
        begin = Position(self._told["stdout"], self._told["stderr"], self._record)
        items = follow(self._feed.log(started), self._feed.bell(started.id), begin)
        async with aclosing(self._with_events(items)) as found:
            async for item in found:
                if isinstance(item, dict):
                    yield item
                elif isinstance(item, Piece):
                    for document in self._output(item):
                        yield document
                else:
                    self._record = max(self._record, item.offset)
                    if (told := as_event(item)) is not None:
                        yield told
        for document in self._rest():
            yield document

    def _output(self, piece: Piece) -> Iterator[Document]:
        """Go past a piece up to the end of its last whole character; the rest is told with the next piece.

        Where the other stream's bytes come first, it is told as the bytes that it is: nothing is told out of its order.
        """
        if self._held is not None and self._held.stream == piece.stream:
            piece, self._held = Piece(piece.stream, self._held.offset, self._held.data + piece.data), None
        yield from self._rest()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(piece.data[-4:])
        whole = len(piece.data) - len(decoder.getstate()[0])
        if whole < len(piece.data):
            self._held = Piece(piece.stream, piece.offset + whole, piece.data[whole:])
        self._told[piece.stream] += whole
        if whole:
            yield _output_event(Piece(piece.stream, piece.offset, piece.data[:whole]))

    def _rest(self) -> Iterator[Document]:
        """Tell the beginning of a character whose end did not come."""
        held, self._held = self._held, None
        if held is not None:
            self._told[held.stream] += len(held.data)
            yield _output_event(held)

    async def _with_events(
        self, items: AsyncGenerator[Piece | Record, None]
    ) -> AsyncGenerator[Piece | Record | Document, None]:
        """Yield the items of a cell, and as soon as they come the events that are told meanwhile."""
        upcoming: asyncio.Task[Piece | Record | None] | None = None
        news: asyncio.Task[Any] | None = None
        try:
            while True:
                rings, over = self._feed.news.rings, self._feed.news.is_closed
                for document in self._besides():
                    yield document
                upcoming = upcoming or asyncio.create_task(_next(items))
                news = news or asyncio.create_task(self._feed.news.after(rings))
                await asyncio.wait({upcoming} if over else {upcoming, news}, return_when=asyncio.FIRST_COMPLETED)
                news = None if news.done() else news
                if not upcoming.done():
                    continue
                item, upcoming = upcoming.result(), None
                if item is None:
                    return
                yield item
        finally:
            for task in (upcoming, news):
                if task is not None:
                    await cancel_and_wait(task)
            await items.aclose()

    def _besides(self) -> Iterator[Document]:
        """Go past the events that belong into the middle of a cell."""
        while (event := self._feed.event(self._events)) is not None and not isinstance(event, CellDone | CellStarted):
            self._events += 1
            document = event_document(event)
            if document is not None:
                yield document


async def _next(items: AsyncGenerator[Piece | Record, None]) -> Piece | Record | None:
    """Return the next item; None at the end, also where the files of the cell are gone or never were."""
    with suppress(OutputGoneError):
        return await anext(items, None)
    return None


def _output_event(piece: Piece) -> Document:
    event = {"event": "output", "stream": piece.stream, "offset": piece.offset}
    try:
        return {**event, "text": piece.data.decode()}
    except UnicodeDecodeError:
        return {**event, "base64": base64.b64encode(piece.data).decode()}
