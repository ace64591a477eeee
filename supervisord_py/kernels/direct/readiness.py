"""Is a kernel there? It is when it answered on shell and its iopub was heard: only then no output can be missed.

A kernel_info_request is queued before the kernel binds and goes out the moment it does. iopub counts as heard by a
welcome (ipykernel 7) or by the `idle` of such a request; a subscription may arrive after that idle was sent, so the
request is sent again until one comes through.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisord_py.kernels.direct.conversation import Exchange
    from supervisord_py.kernels.direct.line import Line

AGAIN_SECONDS = 0.05
UNANSWERED_SECONDS = 1.0
"""An unanswered request waits in the queue of the socket: another one is only for a kernel that bound twice."""
_ANSWERED = "it answers, but its output channel was not heard"
_SILENT = "it does not answer"


class Readiness:
    """Watches for the readiness of one kernel.

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
