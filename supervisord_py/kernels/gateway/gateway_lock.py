"""The lock under which a shared gateway is found, started or stopped: one at a time, among all daemons that share it.

Law: the lock is the kernel's (flock), so it ends with its holder, however that ends; whoever waits gives up in time and
says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from supervisord_py.errors import TimedOutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TRY_SECONDS = 0.05
_BUSY = (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR)


@contextlib.asynccontextmanager
async def gateway_lock(path: Path, seconds: float) -> AsyncIterator[None]:
    """Hold the lock.

    Args:
        path: Of the lock file; its directory exists.
        seconds: How long to wait for it.

    Raises:
        TimedOutError: Another daemon has held it all that time.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _take(fd, path, seconds)
        yield
    finally:
        os.close(fd)


async def _take(fd: int, path: Path, seconds: float) -> None:
    give_up_at = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
        else:
            return
        if asyncio.get_running_loop().time() >= give_up_at:
            raise TimedOutError(
                f"Timed out waiting for shared gateway lock: {path} is held for more than {seconds:g} s.",
                hint="Another daemon is starting the gateway; see its log, and try again.",
            )
        await asyncio.sleep(TRY_SECONDS)
