"""What followers of a call are told, in order: its events, and between them what its cells put into their files.

Law: telling never waits. What a cell gives stays in its files until the client has room for it; only events wait here,
of which a call has a handful for each cell. So a client that does not read keeps nobody waiting but its own answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from supervisord_py.api.call import cancel_and_wait
from supervisord_py.api.kernel_documents import event_document
from supervisord_py.kernels.cell import CallEvent, CellDone, CellNews, CellStarted
from supervisord_py.kernels.output.bell import Bell
from supervisord_py.kernels.output.cell_log import CellLog, OutputGoneError
from supervisord_py.kernels.output.follow import Decoder, Piece, follow
from supervisord_py.kernels.output.records import Record, as_event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

Document = dict[str, Any]


class CallFeed:
    """One call on its way to one client.

    Args:
        cells_dir: Where the files of cells are, by session; those of a cell that begins may not be there yet.
    """

    def __init__(self, cells_dir: Path) -> None:
        self._cells_dir = cells_dir
        self._events: deque[CallEvent] = deque()
        self._bells: dict[str, Bell] = {}
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        self._over = False

    def tell(self, event: CallEvent) -> None:
        """Take an event of the call."""
        match event:
            case CellNews(id=cell_id):
                self._bell(cell_id).ring()
                return
            case CellDone(result=result):
                self._bell(result.id).close()
            case _:
                pass
        self._events.append(event)
        self._begun.set()
        self._news.set()

    def close(self) -> None:
        """The call is over: who follows gets what there is, then the end."""
        self._over = True
        for bell in self._bells.values():
            bell.close()
        self._begun.set()
        self._news.set()

    async def begun(self) -> None:
        """Wait for the first event, or for the end without any."""
        await self._begun.wait()

    async def documents(self) -> AsyncGenerator[Document, None]:
        """Yield what is to be told, up to the end of the call."""
        while True:
            while self._events:
                event = self._events.popleft()
                document = event_document(event)
                if document is not None:
                    yield document
                if isinstance(event, CellStarted):
                    async with aclosing(self._cell(event)) as found:
                        async for document in found:
                            yield document
            if self._over:
                return
            self._news.clear()
            await self._news.wait()

    def _bell(self, cell_id: str) -> Bell:
        bell = self._bells.get(cell_id)
        if bell is None:
            bell = self._bells[cell_id] = Bell()
            if self._over:
                bell.close()
        return bell

    async def _cell(self, started: CellStarted) -> AsyncGenerator[Document, None]:
        """Yield what a cell gives up to its end, and between that what else happens to it."""
        decoder = Decoder()
        log = CellLog(self._cells_dir / started.session_id, started.id)
        async with aclosing(self._with_events(follow(log, self._bell(started.id)))) as items:
            async for item in items:
                document = item if isinstance(item, dict) else _item_document(item, decoder)
                if document is not None:
                    yield {"event": document["event"], "id": started.id, **document}
        for rest in decoder.rest():
            yield {"event": rest["event"], "id": started.id, **rest}
        self._bells.pop(started.id, None)

    async def _with_events(
        self, items: AsyncGenerator[Piece | Record, None]
    ) -> AsyncGenerator[Piece | Record | Document, None]:
        """Yield the items of a cell, and as soon as they come the events that are told meanwhile."""
        upcoming: asyncio.Task[Piece | Record | None] | None = None
        news: asyncio.Task[Any] | None = None
        try:
            while True:
                for document in self._besides():
                    yield document
                self._news.clear()
                upcoming = upcoming or asyncio.create_task(_next(items))
                news = news or asyncio.create_task(self._news.wait())
                await asyncio.wait({upcoming, news}, return_when=asyncio.FIRST_COMPLETED)
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
        """Take out the events that belong into the middle of a cell."""
        while self._events and not isinstance(self._events[0], CellDone | CellStarted):
            document = event_document(self._events.popleft())
            if document is not None:
                yield document


async def _next(items: AsyncGenerator[Piece | Record, None]) -> Piece | Record | None:
    """Return the next item; None at the end, also where the files of the cell are gone or never were."""
    with suppress(OutputGoneError):
        return await anext(items, None)
    return None


def _item_document(item: Piece | Record, decoder: Decoder) -> Document | None:
    if not isinstance(item, Piece):
        return as_event(item)
    document = decoder.event(item)
    return document if document.get("text") or document.get("base64") else None
