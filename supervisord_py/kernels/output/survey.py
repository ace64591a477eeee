"""The first look over a cell's records: what was cleared, which displays were written over, how it ended. Pure.

Law: what is shown follows from the records alone, so looking again, later or in another process, shows the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.kernels.output.records import Capped, Clear, Display, End, Raised, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisord_py.kernels.cell import CellError
    from supervisord_py.kernels.output.records import Record


@dataclass(slots=True)
class Survey:
    """What must be known before the records are shown in order.

    Attributes:
        visible_from: Byte of the stream at which what was not cleared begins.
        visible_after: Offset of the record that cleared; -1 where nothing was.
        latest: `{display_id: offset of its last update}`.
        displayed: Ids that were displayed, cleared ones included.
        error: What was raised last.
        end, capped: As the records say.
    """

    visible_from: int = 0
    visible_after: int = -1
    latest: dict[str, int] = field(default_factory=dict)
    displayed: set[str] = field(default_factory=set)
    error: CellError | None = None
    end: End | None = None
    capped: Capped | None = None

    def is_shown(self, record: Display) -> bool:
        """Say whether a display has a place of its own; an update only has where its id was never displayed here."""
        name = record.display_id
        if not record.update:
            return True
        return name is not None and name not in self.displayed and self.latest[name] == record.place.offset


def survey(records: Iterable[Record], total_bytes: int) -> Survey:
    """Look over all records of a cell whose stream has `total_bytes` now."""
    found = Survey()
    pending: Clear | None = None
    for record in records:
        if isinstance(record, Clear):
            pending = record
        if pending is not None and _is_due(pending, record):
            _clear(found, pending)
            pending = None
        _note(found, record)
    if pending is not None and total_bytes > pending.at:
        _clear(found, pending)
    return found


def _is_due(pending: Clear, record: Record) -> bool:
    """Say whether what was to be cleared is so by now: at once, or, when it waits, as something new came."""
    return not pending.wait or record.at > pending.at or isinstance(record, Display | Result | Raised)


def _clear(found: Survey, clear: Clear) -> None:
    found.visible_from, found.visible_after = clear.at, clear.place.offset


def _note(found: Survey, record: Record) -> None:
    match record:
        case Display(update=True, display_id=str() as name):
            found.latest[name] = record.place.offset
        case Display(display_id=str() as name):
            found.displayed.add(name)
        case Raised(error=error):
            found.error = error
        case Capped():
            found.capped = record
        case End():
            found.end = record
        case _:
            pass
