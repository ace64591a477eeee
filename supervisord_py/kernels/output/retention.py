"""Whose files go: by age, by the quota of a session, by the quota of all. Pure.

Law: what runs is never taken, whatever it weighs; of the rest the oldest go first, and no more than is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisord_py.kernels.config import OutputLimits

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class KeptCell:
    """All files of one cell.

    Attributes:
        size: Bytes of all of them.
        changed_at: Unix seconds of the last change of any of them.
        running: They may still grow.
    """

    session_id: str
    cell_id: str
    size: int
    changed_at: float
    running: bool = False


def doomed(cells: Iterable[KeptCell], limits: OutputLimits, now: float) -> tuple[KeptCell, ...]:
    """Return the cells whose files are to go, oldest first.

    Args:
        cells: All that are kept, in any order.
        limits: `keep_days`, `session_bytes`, `total_bytes`.
        now: Unix seconds.
    """
    by_age = sorted(cells, key=lambda cell: (cell.changed_at, cell.session_id, cell.cell_id))
    going: set[KeptCell] = set()
    for cell in by_age:
        if not cell.running and now - cell.changed_at > limits.keep_days * DAY_SECONDS:
            going.add(cell)
    sessions: dict[str, list[KeptCell]] = {}
    for cell in by_age:
        sessions.setdefault(cell.session_id, []).append(cell)
    for of_session in sessions.values():
        _shrink(of_session, going, limits.session_bytes)
    _shrink(by_age, going, limits.total_bytes)
    return tuple(cell for cell in by_age if cell in going)


def _shrink(by_age: list[KeptCell], going: set[KeptCell], quota: int) -> None:
    """Doom the oldest until the rest is within the quota."""
    left = sum(cell.size for cell in by_age if cell not in going)
    for cell in by_age:
        if left <= quota:
            return
        if cell.size and not cell.running and cell not in going:
            going.add(cell)
            left -= cell.size
