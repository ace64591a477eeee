"""What was chosen a moment ago, for the same question, while what it looked at is as it was.

Law: an answer is given again only within a few seconds, under the same settings, and if neither the folder, nor the
places of its environments and modules, nor the interpreter changed meanwhile. Looking at them costs microseconds;
choosing anew goes through threads and costs a short call more than its cell. What a kernelspec says is read each time:
who repairs one tries it at once.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from supervisord_py.kernels.choosing.choice import Choice, ChooseRequest
    from supervisord_py.kernels.config import KernelsConfig

KEEP_SECONDS = 5.0
KEEP_MAX = 64
_PLACES = (".", ".venv", ".venv/bin", "venv", "venv/bin", ".pxd", ".pxd/modules")

Look = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _Recent:
    choice: Choice
    config: KernelsConfig
    look: Look
    until: float


class RecentChoices:
    """Choices by what was asked."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Recent] = {}

    def get(self, request: ChooseRequest, config: KernelsConfig) -> Choice | None:
        """Return what was chosen for the same question, if that still holds."""
        recent = self._kept.get(_question(request))
        if recent is None or recent.config is not config or time.monotonic() >= recent.until:
            return None
        return recent.choice if _look(recent.choice, config) == recent.look else None

    def put(self, request: ChooseRequest, config: KernelsConfig, choice: Choice) -> None:
        """Keep a choice for a few seconds."""
        if request.kernelspec is not None:
            return
        now = time.monotonic()
        if len(self._kept) >= KEEP_MAX:
            self._kept = {asked: kept for asked, kept in self._kept.items() if kept.until > now}
        if len(self._kept) < KEEP_MAX:
            self._kept[_question(request)] = _Recent(choice, config, _look(choice, config), now + KEEP_SECONDS)


def _question(request: ChooseRequest) -> Hashable:
    variables = (frozenset(request.extra.items()), frozenset(request.environ.items()))
    return (request.cwd, request.interpreter, request.kernelspec, request.backend, request.language, *variables)


def _look(choice: Choice, config: KernelsConfig) -> Look:
    """Return when the places that decide were changed last, and which they are."""
    paths = [os.path.join(choice.cwd, place) for place in _PLACES]
    paths += [str(config.modules_dir), choice.interpreter or choice.cwd]
    if choice.interpreter is not None:
        paths.append(str(Path(choice.interpreter).parent.parent / "pyvenv.cfg"))
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
