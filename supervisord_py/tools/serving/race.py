"""Waiting for whichever comes first, with nothing left running afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def first_of(*contestants: Coroutine[Any, Any, T]) -> T:
    """Run all at once and return the first result; the others are cancelled and have ended when this returns.

    Raises:
        Exception: what the first one raised, if it failed instead.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(contestant) for contestant in contestants]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return next(task for task in tasks if task in done).result()
