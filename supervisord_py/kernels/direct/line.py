"""The connection to one kernel, opened: what is sent by the wire, and what comes back in the conversation."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.direct.conversation import Conversation, Exchange
    from supervisord_py.kernels.direct.place import Connection
    from supervisord_py.kernels.direct.wire import Wire


AGAIN_SECONDS = 0.05
UNANSWERED_SECONDS = 1.0
"""An unanswered request waits in the queue of the socket: another one is only for a kernel that bound twice."""
_ANSWERED = "it answers, but its output channel was not heard"
_SILENT = "it does not answer"


async def wire_module() -> Any:
    """Return the module `wire`, imported on a thread: zmq and jupyter_client take a quarter of a second.

    A start does it beside the boot of the kernel's own interpreter, which takes about as long.
    """
    return await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.direct.wire")


class NotSentError(ConflictError):
    """A request was not sent: the kernel has not read what was sent before, or the connection is closed."""


def client_name(instance: str) -> str:
    """Return our session's name with a kernel: the same for every control plane that comes to hold it."""
    return f"px-{instance}"


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel's connection.

    Attributes:
        connection: Its file and addresses.
        wire: The sockets.
        talk: The requests under way.
    """

    connection: Connection
    wire: Wire
    talk: Conversation

    def ask(self, channel: str, kind: str, content: Mapping[str, Any] | None = None) -> Exchange:
        """Send a request that is no cell; where it cannot be sent, its reply just never comes."""
        exchange = self.talk.open(self.talk.new_id(), channel)
        try:
            self.wire.send(channel, kind, content or {}, msg_id=exchange.id)
        except NotSentError:
            self.talk.close(exchange)
        return exchange

    def send_cell(self, request: ExecuteRequest, *, recorded_there: bool) -> None:
        """Send a cell; `recorded_there` tells the kernel to write its files.

        Raises:
            NotSentError: It takes no more.
        """
        content = {
            "code": request.code,
            "silent": False,
            "store_history": request.store_history,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
        }
        mark = {
            "cell": request.cell_id,
            "dir": str(request.cells_dir),
            "preview": request.preview_bytes,
            "cap": request.cell_bytes,
        }
        metadata = {"px": mark} if recorded_there else {}
        self.wire.send("shell", "execute_request", content, msg_id=request.cell_id, metadata=metadata)

    async def close(self) -> None:
        """Close the sockets; whoever still waits for a reply is told."""
        self.talk.give_up()
        await self.wire.close()


class Readiness:
    """Watches for the readiness of one kernel: it answered on shell, and its iopub was heard.

    A kernel_info_request is queued before the kernel binds and goes out the moment it does. iopub counts as heard by a
    welcome (ipykernel 7) or by the `idle` of such a request; a subscription may arrive after that idle was sent, so the
    request is sent again until one comes through.

    Attributes:
        seen: What was heard so far, as a clause.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._asked: list[Exchange] = []
        self.seen = _SILENT

    async def wait(self) -> None:
        """Return when it is ready."""
        try:
            self._ask()
            while not self._is_ready():
                missing, patience = self._missing()
                done, _ = await asyncio.wait(missing, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    self._ask()
        finally:
            for exchange in self._asked:
                self._line.talk.close(exchange)

    def _ask(self) -> None:
        self._asked.append(self._line.ask("shell", "kernel_info_request"))

    @property
    def _answered(self) -> bool:
        return any(it.reply.done() for it in self._asked)

    def _is_ready(self) -> bool:
        heard = self._line.talk.welcome.done() or any(it.idle.done() for it in self._asked)
        self.seen = _ANSWERED if self._answered else _SILENT
        return self._answered and heard

    def _missing(self) -> tuple[set[asyncio.Future[Any]], float]:
        """Return what may come next, and how long to wait for it."""
        if self._answered:
            return {self._line.talk.welcome, *(it.idle for it in self._asked)}, AGAIN_SECONDS
        return {it.reply for it in self._asked}, UNANSWERED_SECONDS
