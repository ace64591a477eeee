"""Shell cells behind the interface of kernels. A session of them has no process between its cells.

Law: bash is looked for when the session starts, so that a machine without it says so before anything is run; every
process is a child of the placement, told to whoever keeps the records right after its spawn and at its end.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.backend import Started
from supervisord_py.kernels.bash.session import BashHandle, Outlets, ShellChild

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ExitRecord

__all__ = ["BashBackend", "ShellChild", "find_shell"]


async def _nobody(_child: ShellChild) -> None:
    """Nobody wants to know."""


def _not_told(_child: ShellChild, _record: ExitRecord, _survivors: tuple[int, ...]) -> None:
    """Nobody wants to know."""


def find_shell(path: str | None) -> str | None:
    """Return where bash is on a PATH, None where it is not."""
    return shutil.which("bash", path=path or os.defpath)


class BashBackend:
    """Runs shell cells.

    Args:
        placement: Where processes come from.
        config: For the time that a stop may take.
        on_child: Awaited right after the spawn of each cell's process.
        on_child_ended: Called with its exit record, and the pids of what of its tree survived, before the placement
            forgets it.
    """

    def __init__(
        self,
        placement: KeeperClient,
        config: KernelsConfig,
        *,
        on_child: Callable[[ShellChild], Awaitable[None]] = _nobody,
        on_child_ended: Callable[[ShellChild, ExitRecord, tuple[int, ...]], None] = _not_told,
    ) -> None:
        self._placement = placement
        self._config = config
        self._outlets = Outlets(on_child, on_child_ended)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings."""
        self._config = config

    async def start(
        self, launch: Launch, *, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> BashHandle:
        """Return a session that may take cells; nothing is spawned yet.

        Raises:
            StartFailedError: There is no bash (reason spawn_failed, stage interpreter).
        """
        del deadline  # nothing is waited for
        handle = BashHandle(self._placement, launch, _shell_for(launch), self._outlets)
        await on_spawned(Started(child=None))
        return handle

    async def attach(self, launch: Launch, child: Child) -> BashHandle:
        """Take over a session whose cell was running (or ended meanwhile): `follow` sees it out."""
        return BashHandle(self._placement, launch, _shell_for(launch), self._outlets, child)

    async def close(self, *, stop: bool) -> None:
        """Nothing is run for the backend itself."""


def _shell_for(launch: Launch) -> str:
    path = launch.env.get("PATH")
    if (shell := find_shell(path)) is not None:
        return shell
    raise StartFailedError(
        f"there is no bash on PATH ({path or os.defpath}), and kernel:{launch.session_id} runs shell cells",
        hint="install bash, or run Python cells: `pxctl exec` without `--bash`",
        unit=f"kernel:{launch.session_id}",
        reason="spawn_failed",
        stage="interpreter",
    )
