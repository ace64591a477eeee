"""Requests and answers over a kernel's websocket, and the one cell that is on its way.

Law: every request gets its answer or, when the kernel is lost, `KernelGoneError`. What a kernel publishes is recorded
in the order of its coming, before the next message is read; a cell's end is recorded after the last of its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.foreign_requests import ForeignRequests
from supervisord_py.kernels.gateway import wire
from supervisord_py.kernels.gateway.cell_progress import CellProgress, Heard, state_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from supervisord_py.kernels.output.recorder import CellRecorder

REMEMBERED_CELLS = 16
"""Cells whose late output is still recorded."""
UNCLAIMED_CHARACTERS = 64 * 1024 * 1024
_OTHER_CHARACTERS = 1024
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class CellTalk:
    """One cell: what came of it so far, and who is told.

    Attributes:
        wake: Called whenever there is news in the cell's files.
        recorder: Writes the cell's files; None where the kernel does.
        changed: Set whenever something came that may end it.
        sent_after: How many breaks there had been when it was sent; None before, -1 when another control plane did.
        is_unheard: It is over, and its reply is lost.
        is_passed: What the kernel published after it was heard.
        backlog: What came before anybody listened for it, not yet dealt with.
    """

    progress: CellProgress
    wake: Callable[[], None]
    recorder: CellRecorder | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    sent_after: int | None = None
    is_unheard: bool = False
    is_passed: bool = False
    backlog: deque[wire.Message] = field(default_factory=deque)


class Unclaimed:
    """Messages of cells that an earlier control plane sent, until somebody follows them. Bounded: the rest is lost."""

    def __init__(self, limit: int = UNCLAIMED_CHARACTERS) -> None:
        self._room = limit
        self._messages: list[wire.Message] = []

    def keep(self, message: wire.Message) -> None:
        """Keep a message; output only while there is room."""
        text = message.content.get("text")
        self._room -= len(text) if isinstance(text, str) else _OTHER_CHARACTERS
        if self._room > 0 or message.channel == "shell" or message.type == "status":
            self._messages.append(message)

    def of(self, msg_id: str) -> list[wire.Message]:
        """Return what came for a cell."""
        return [each for each in self._messages if each.parent_id == msg_id]


class Conversation:
    """What is said between us and one kernel; the websocket's `Listener`.

    Args:
        session: Name of the websocket's session, the same for the whole life of the kernel.
        on_gone: Told once, why, when the kernel is lost.
        on_back: Told when the connection is open again after a break.
    """

    def __init__(self, session: str, on_gone: Callable[[str], None], on_back: Callable[[], None]) -> None:
        self.foreign = ForeignRequests()
        self.heard_at = time.monotonic()
        self.breaks = 0
        """How often the connection broke."""
        self.is_deaf = False
        """Whether nobody reads at present what the server says."""
        self.is_settled = False
        """Whether the start is over: from then on a `starting` on iopub is another process."""
        self.unclaimed: Unclaimed | None = None
        """Where messages wait for whoever follows their cell; None where nobody will."""
        self._session = session
        self._on_gone = on_gone
        self._on_back = on_back
        self._answers: dict[str, asyncio.Future[wire.Message]] = {}
        self._cells: dict[str, CellTalk] = {}
        self._marks: dict[str, CellTalk] = {}
        self._lost: str | None = None

    def request(self, kind: str, content: Mapping[str, Any], msg_id: str = "", channel: str = "shell") -> wire.Message:
        """Return a new request of this conversation."""
        date = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return wire.request(
            kind, content, msg_id=msg_id or uuid.uuid4().hex, session=self._session, date=date, channel=channel
        )

    def expect(self, message: wire.Message) -> asyncio.Future[wire.Message]:
        """Return the future of the answer to a request that is about to be sent."""
        answer: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            answer.set_exception(KernelGoneError(self._lost))
            return answer
        msg_id = str(message.header["msg_id"])
        self._answers[msg_id] = answer
        answer.add_done_callback(lambda _: self._answers.pop(msg_id, None))
        return answer

    def mark(self, message: wire.Message, talk: CellTalk) -> None:
        """What the kernel publishes of this request, which is about to be sent, comes behind all of the cell."""
        self._marks[str(message.header["msg_id"])] = talk

    def unmark(self, message: wire.Message) -> None:
        """Nobody waits for that any more."""
        self._marks.pop(str(message.header["msg_id"]), None)

    async def begin(self, msg_id: str, wake: Callable[[], None], recorder: CellRecorder | None) -> CellTalk:
        """Listen for a cell that is about to be sent."""
        talk = CellTalk(CellProgress(msg_id), wake, recorder)
        self._cells[msg_id] = talk
        if self.unclaimed is not None:
            talk.backlog.extend(self.unclaimed.of(msg_id))
            self.unclaimed = None
        while talk.backlog:
            await self._hear_cell(talk, talk.backlog[0])
            talk.backlog.popleft()
        while len(self._cells) > REMEMBERED_CELLS:
            old = self._cells.pop(next(iter(self._cells)))
            if old.recorder is not None:
                await asyncio.to_thread(old.recorder.close)
        return talk

    def end(self, talk: CellTalk) -> None:
        """A cell is over: earlier requests of others are, too."""
        self.foreign.settle()
        talk.wake()

    async def close(self) -> None:
        """Let go of the files."""
        cells, self._cells = self._cells, {}
        for talk in cells.values():
            if talk.recorder is not None:
                await asyncio.to_thread(talk.recorder.close)

    # -- what the websocket says -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """While this lasts nobody reads what the server says: silence meanwhile is ours, and tells nothing of it."""
        self.heard_at = time.monotonic()
        self.is_deaf = True
        try:
            yield
        finally:
            self.is_deaf = False
            self.heard_at = time.monotonic()

    async def heard(self, message: wire.Message) -> None:
        """Deal with a message."""
        if (state := state_lost(message)) is not None or self._is_new_process(message):
            self.gone(f"its process ended (its server says {state or 'starting'!r})")
            return
        if (talk := self._cells.get(message.parent_id)) is not None:
            if talk.backlog:
                talk.backlog.append(message)
            else:
                await self._hear_cell(talk, message)
        elif message.channel == "iopub" and (passed := self._marks.pop(message.parent_id, None)) is not None:
            passed.is_passed = True
            passed.changed.set()
        elif message.type.endswith("_reply") and (answer := self._answers.get(message.parent_id)) is not None:
            answer.set_result(message)
        elif self.unclaimed is not None and message.parent.get("session") == self._session:
            self.unclaimed.keep(message)
        elif message.type == "status":
            self._hear_status(message)

    def broke(self) -> None:
        """The connection broke: a cell on its way may lack some output from here on."""
        self.breaks += 1

    def is_broken(self, talk: CellTalk) -> bool:
        """Say whether the connection broke since a cell was sent."""
        return talk.sent_after is not None and talk.sent_after != self.breaks

    @property
    def is_waiting(self) -> bool:
        """Whether a cell has not ended."""
        return any(talk.progress.reply is None for talk in self._cells.values())

    def unheard(self) -> None:
        """The server says that the kernel idles: replies that a break took will not come."""
        for talk in self._cells.values():
            if self.is_broken(talk) and talk.progress.reply is None:
                talk.is_unheard = True
                talk.changed.set()

    async def back(self) -> None:
        """The connection is there again."""
        self._on_back()

    def gone(self, why: str) -> None:
        """The kernel is lost: whoever waits hears of it. Only the first reason counts."""
        if self._lost is not None:
            return
        self._lost = why
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(KernelGoneError(why))
                answer.exception()  # it is nobody's fault when the one who asked has gone already
        for talk in self._cells.values():
            talk.changed.set()
        self._on_gone(why)

    # -- one message -------------------------------------------------------------------------------------------------

    async def _hear_cell(self, talk: CellTalk, message: wire.Message) -> None:
        heard = talk.progress.take(message)
        if heard is Heard.NOTHING:
            return
        if heard is Heard.NEWS and talk.recorder is not None:
            await asyncio.to_thread(talk.recorder.take, message.type, message.content)
        talk.changed.set()
        if heard is not Heard.REPLY:
            talk.wake()

    def _is_new_process(self, message: wire.Message) -> bool:
        is_start = message.type == "status" and message.content.get("execution_state") == "starting"
        return self.is_settled and message.channel == "iopub" and is_start

    def _hear_status(self, message: wire.Message) -> None:
        if message.parent.get("msg_type") == "execute_request" and message.parent.get("session") != self._session:
            self.foreign.note(str(message.content.get("execution_state")), message.parent_id, time.time())
