"""What a kernel in the shared gateway left on this machine, and its end.

Law: *stopped* means that nothing of it is left. The gateway ends the kernel's process group; what its cells put into
sessions of their own bears the kernel's mark, and is killed by a child of the keeper's: the control plane kills nobody.
What survives is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from supervisord_py.errors import PxError
from supervisord_py.kernels.gateway.end_marked import settled
from supervisord_py.process.spec import ChildSpec

if TYPE_CHECKING:
    from supervisord_py.process.placement import Placement

SCRIPT = Path(__file__).with_name("end_marked.py")
UNIT = "kernel:gateway-sweep"
MARK = "PX_INSTANCE"
PAUSE_SECONDS = 0.05
LOOKS = 10
"""How often it is looked whether what the gateway was killing is gone by itself."""
SWEEP_SECONDS = 10.0


class Leftovers:
    """Processes of one kernel, found by its mark.

    Args:
        placement: Where the one that kills comes from.
        instance: The mark's value.
    """

    def __init__(self, placement: Placement, instance: str) -> None:
        self._placement = placement
        self._instance = instance

    async def end(self) -> tuple[int, ...]:
        """End what is left; returns the pids of what survives that."""
        left: tuple[int, ...] = ()
        for _ in range(LOOKS):
            left = await asyncio.to_thread(marked, self._instance)
            if not left:
                return ()
            await asyncio.sleep(PAUSE_SECONDS)
        with contextlib.suppress(PxError):
            await self._kill()
        return await asyncio.to_thread(marked, self._instance)

    async def _kill(self) -> None:
        key = self._placement.new_key()
        argv = (sys.executable, "-I", "-S", str(SCRIPT), f"{MARK}={self._instance}")
        await self._placement.spawn(key, ChildSpec(unit=UNIT, argv=argv, cwd="/", env={"PATH": "/usr/bin:/bin"}))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._placement.wait(key)
        finally:
            await self._placement.stop(key, grace_seconds=0, reason="exit")
            await self._placement.release(key)


def marked(instance: str) -> tuple[int, ...]:
    """Return the pids of living processes that bear the mark. Looks at every process: call it on a thread."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = settled(process.pid, process.environ)
            if environment.get(MARK) == instance and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return tuple(found)
