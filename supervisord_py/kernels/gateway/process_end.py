"""Hears of the end of a process on this machine that is not our child: in milliseconds where pidfds are, else soon.

Law: the callback is called once, on the loop, and never after the watch was given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from supervisord_py.process import identity
from supervisord_py.process.spec import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.process.spec import Identity

LOOK_SECONDS = 0.25


def watch_end(who: Identity, ended: Callable[[], None]) -> Callable[[], None]:
    """Call `ended` when exactly this process is gone; returns what gives up the watch."""
    try:
        fd = os.pidfd_open(who.pid)
    except (AttributeError, OSError):
        return _look_again_and_again(who, ended)
    if identity.liveness(who) is Liveness.DEAD:  # its pid may have been another's when it was opened
        os.close(fd)
        return _look_again_and_again(who, ended)
    loop = asyncio.get_running_loop()
    is_open = True

    def give_up() -> None:
        nonlocal is_open
        if is_open:
            is_open = False
            with contextlib.suppress(RuntimeError):
                loop.remove_reader(fd)
            os.close(fd)

    def tell() -> None:
        give_up()
        ended()

    loop.add_reader(fd, tell)
    return give_up


def _look_again_and_again(who: Identity, ended: Callable[[], None]) -> Callable[[], None]:
    async def look() -> None:
        while identity.liveness(who) is not Liveness.DEAD:  # noqa: ASYNC110 - nobody tells: the process is not ours
            await asyncio.sleep(LOOK_SECONDS)
        ended()

    task = asyncio.create_task(look(), name=f"watch of process {who.pid}")
    return ending(task)


def ending(task: asyncio.Task[None]) -> Callable[[], None]:
    """Return what cancels a task."""

    def cancel() -> None:
        task.cancel()

    return cancel
