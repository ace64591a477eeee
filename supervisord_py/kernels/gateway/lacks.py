"""What a kernel at somebody else's server has not, though the settings promise it: said with its first answer.

Law: what a backend cannot promise is told, where it would matter: limits that are set, modules that are there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig, ProcessLimits


def lacks(place: str, launch: Launch, config: KernelsConfig, cwd: str | None) -> str | None:
    """Return the notice for a new kernel, None when it lacks nothing. Looks at the folders of modules: on a thread.

    Args:
        place: The server's address, as it is shown.
        launch: What was asked for.
        config: With limits and whether there is a prelude.
        cwd: Where the kernel works, as Python writes it; None when it did not say.
    """
    told = [*_elsewhere(place, launch, cwd), *_unlimited(place, config.limits)]
    if config.prelude:
        told += _without_modules(launch.modules)
    return " ".join(told) or None


def unlimited_memory(place: str, limits: ProcessLimits) -> str | None:
    """Return the notice for a kernel whose process cannot be found; None where no limit of memory is set."""
    return " ".join(_unlimited(place, limits, _MEMORY)) or None


_MEMORY = ("soft_memory", "hard_memory")
_RLIMITS = ("open_files", "processes", "cpu_seconds")


def _elsewhere(place: str, launch: Launch, cwd: str | None) -> list[str]:
    if cwd in (None, "", repr(launch.cwd)):
        return []
    return [f"The directory {launch.cwd} does not exist at {place}: the kernel works in {cwd}."]


def _unlimited(place: str, limits: ProcessLimits, names: Sequence[str] = (*_MEMORY, *_RLIMITS)) -> list[str]:
    members = {f"{name}_bytes" if name in _MEMORY else name: name for name in names}
    held = [member for member in members if getattr(limits, member) is not None]
    if not held:
        return []
    told = ", ".join(f"kernels.{members[it]}_mb" if members[it] in _MEMORY else f"kernels.{it}" for it in held)
    return [f"Limits do not hold for a kernel at {place}: {told}."]


def _without_modules(folders: Sequence[str]) -> list[str]:
    full = [folder for folder in folders if _has_modules(folder)]
    if not full:
        return []
    return [f"Kernels of an external gateway have no modules: those of {', '.join(full)} are not there."]


def _has_modules(folder: str) -> bool:
    try:
        return any(name.endswith(".py") for name in os.listdir(folder))
    except OSError:
        return False
