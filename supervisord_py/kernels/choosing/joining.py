"""Waiting for work that is shared: who gives up leaves it running for the others; its own end is told as what it is."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from supervisord_py.errors import ShuttingDownError

T = TypeVar("T")


async def join(task: asyncio.Task[T], what: str) -> T:
    """Return the outcome of a shared task, which goes on when the caller is cancelled.

    Args:
        task: Cancelled only by the end of the control plane.
        what: That is done, for people: "the question to /usr/bin/python3".

    Raises:
        ShuttingDownError: The control plane ended it.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ours = asyncio.current_task()
        if task.cancelled() and ours is not None and not ours.cancelling():
            raise ShuttingDownError(f"the daemon is stopping; {what} was not finished") from None
        raise
