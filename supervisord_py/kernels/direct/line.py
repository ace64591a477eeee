"""The connection to one kernel, opened: what is sent by the wire, and what comes back in the conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.direct.conversation import Conversation, Exchange
    from supervisord_py.kernels.direct.place import Connection
    from supervisord_py.kernels.direct.wire import Wire


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
