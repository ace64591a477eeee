"""Values of keys that a run knows, kept for a successor in the keeper's memory: never in a file, row, argv or log.

An anonymous file (memfd_create(2)) is deposited with the keeper under the instance's name; whoever takes the run over
takes it out again, so that what the agent prints from then on is redacted as well.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.process.placement import Placement

_MOST_BYTES = 1024 * 1024


def _name(key: str) -> str:
    return f"veil:{key}"


async def deposit(placement: Placement, key: str, secrets: Sequence[str]) -> None:
    """Have the keeper hold the values; nothing where there are none."""
    if not secrets:
        return
    fd = _anonymous_file()
    try:
        os.write(fd, json.dumps(list(secrets)).encode())
        await placement.put_fd(_name(key), fd)
    finally:
        os.close(fd)


async def recover(placement: Placement, key: str) -> tuple[str, ...]:
    """Return the values that a control plane before this one left; () where it left none."""
    fd = await placement.take_fd(_name(key))
    if fd is None:
        return ()
    try:
        found = json.loads(os.pread(fd, _MOST_BYTES, 0) or b"[]")
    except ValueError:
        found = []
    finally:
        os.close(fd)
    return tuple(str(each) for each in found)


async def drop(placement: Placement, key: str) -> None:
    """Forget them."""
    await placement.drop_fd(_name(key))


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("px-veil", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp()  # its name goes at once: nobody else can open it
    os.unlink(path)
    return fd
