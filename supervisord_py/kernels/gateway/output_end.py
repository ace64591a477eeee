"""Waits for the end of a cell's output, once its reply is there.

Law: who is slow loses nothing. A reply takes another channel than the output and overtakes megabytes of it; how long
those take is the machine's affair. So the kernel is asked for something small: what it publishes of that comes behind
all that the cell published, and when that is heard the end of the output was heard before, or is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.backend import KernelGoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.gateway.conversation import CellTalk, Conversation
    from supervisord_py.kernels.gateway.wire import Message

_LOOK_SECONDS = 1.0


async def await_end(
    talk: CellTalk,
    conversation: Conversation,
    send: Callable[[Message], Awaitable[Any]],
    died: asyncio.Future[Any],
    *,
    idle_seconds: float,
    silent_seconds: float,
) -> None:
    """Return when the end of the output was seen, or will not be.

    Args:
        talk: The cell, whose reply came.
        conversation: To which it belongs.
        send: Sends a message to the kernel.
        died: Done when the kernel is gone.
        idle_seconds: How long the end may take before the kernel is asked.
        silent_seconds: For how long nothing at all may come from the server, before the end counts as lost.
    """

    def is_told() -> bool:
        return talk.progress.is_over or talk.is_passed or died.done()

    await _for_a_while(talk, is_told, idle_seconds)
    if is_told() or conversation.is_broken(talk):
        return
    asked = conversation.request("kernel_info_request", {})
    conversation.mark(asked, talk)
    try:
        with contextlib.suppress(KernelGoneError):
            await send(asked)
        while not (is_told() or conversation.is_broken(talk)) and _silence(conversation) < silent_seconds:
            await _for_a_while(talk, is_told, _LOOK_SECONDS)
    finally:
        conversation.unmark(asked)


def _silence(conversation: Conversation) -> float:
    return 0.0 if conversation.is_deaf else time.monotonic() - conversation.heard_at


async def _for_a_while(talk: CellTalk, is_told: Callable[[], bool], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not is_told():
                await talk.changed.wait()
                talk.changed.clear()
