"""What a line of a cell's record file says. Pure: bytes in, frozen values out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.cell import CellError, CellStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STATUS_MIME = "application/x-px-status+json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands.

    Attributes:
        offset: Of its line in the record file; names it.
        at: Size of the stream output when it was written.
        time: Unix seconds.
    """

    offset: int
    at: int
    time: float


@dataclass(frozen=True, slots=True)
class Record:
    """Any record. The attributes of `place` are within reach of all."""

    place: Place

    @property
    def at(self) -> int:
        """How many bytes of stream output came before it."""
        return self.place.at


@dataclass(frozen=True, slots=True)
class Begin(Record):
    """The cell was begun."""

    code: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class StreamChange(Record):
    """The bytes from here on were written to `stream`: `stdout` or `stderr`."""

    stream: str


@dataclass(frozen=True, slots=True)
class Display(Record):
    """A rich output; with `update` in the place of the one of the same `display_id`."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    display_id: str | None
    update: bool


@dataclass(frozen=True, slots=True)
class Result(Record):
    """The value of the last expression."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    execution_count: int | None


@dataclass(frozen=True, slots=True)
class Clear(Record):
    """Everything shown so far is to go; with `wait` not before there is something new."""

    wait: bool


@dataclass(frozen=True, slots=True)
class Raised(Record):
    """The cell raised."""

    error: CellError


@dataclass(frozen=True, slots=True)
class Status(Record):
    """A helper of the prelude tells what it did: `{op: …}`."""

    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Capped(Record):
    """The stream output is cut: `lost_bytes` are missing at its end, of a bash cell perhaps some more.

    `by_disk`: the disk did not take them; else it was the cap.
    """

    lost_bytes: int
    by_disk: bool = False


@dataclass(frozen=True, slots=True)
class End(Record):
    """The cell ended. `duration` in seconds."""

    status: CellStatus
    execution_count: int | None
    duration: float | None
    asked_exit: bool
    error: CellError | None


@dataclass(frozen=True, slots=True)
class Late(Record):
    """The bytes from here on came after the end."""


@dataclass(frozen=True, slots=True)
class Unreadable(Record):
    """A line that is torn, too long, or of a kind that is not known here; `size` in bytes."""

    size: int


def parse(line: bytes, offset: int) -> Record | None:
    """Return what a line (without its end) says; None for an empty one."""
    if not line.strip():
        return None
    try:
        return record_of(json.loads(line), offset)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Unreadable(Place(offset, 0, 0.0), len(line))


def record_of(said: Any, offset: int) -> Record:
    """Return what the JSON of a line says; raises whatever it raises where that is no record."""
    place = Place(offset, max(0, int(said["at"])), float(said.get("t") or 0.0))
    return _KINDS[said["kind"]](place, said)


def _error(said: Any) -> CellError | None:
    if said is None:
        return None
    return CellError(str(said.get("name")), str(said.get("value")), tuple(map(str, said.get("traceback") or ())))


def _display(place: Place, said: Any) -> Record:
    name = said.get("display_id")
    data, metadata = dict(said["data"]), dict(said.get("metadata") or {})
    if STATUS_MIME in data:
        return Status(place, dict(data[STATUS_MIME]))
    return Display(place, data, metadata, None if name is None else str(name), said.get("update") is True)


def _result(place: Place, said: Any) -> Record:
    data, metadata = dict(said["data"]), dict(said.get("metadata") or {})
    return Result(place, data, metadata, _count(said))


def _raised(place: Place, said: Any) -> Record:
    return Raised(place, CellError(str(said["name"]), str(said["value"]), tuple(map(str, said.get("traceback") or ()))))


def _end(place: Place, said: Any) -> Record:
    duration = said.get("duration")
    return End(
        place,
        CellStatus(said["status"]),
        _count(said),
        None if duration is None else float(duration),
        said.get("ask_exit") is True,
        _error(said.get("error")),
    )


def _count(said: Any) -> int | None:
    count = said.get("execution_count")
    return None if count is None else int(count)


def _stream(place: Place, said: Any) -> Record:
    return StreamChange(place, "stderr" if said["stream"] == "stderr" else "stdout")


_KINDS: dict[str, Callable[[Place, Any], Record]] = {
    "begin": lambda place, said: Begin(place, str(said["code"]), said.get("pid")),
    "stream": _stream,
    "display": _display,
    "result": _result,
    "clear": lambda place, said: Clear(place, said.get("wait") is True),
    "error": _raised,
    "status": lambda place, said: Status(place, dict(said["event"])),
    "capped": lambda place, said: Capped(place, int(said["lost_bytes"]), said.get("disk") is True),
    "end": _end,
    "late": lambda place, _: Late(place),
}


def as_event(record: Record) -> dict[str, Any] | None:
    """Return the record as clients of a stream are told it (without `id`), None for what they are not told."""
    match record:
        case Display(data=data, metadata=metadata, display_id=name, update=update):
            return {"event": "display", "data": data, "metadata": metadata, "display_id": name, "update": update}
        case Result(data=data, metadata=metadata, execution_count=count):
            return {"event": "result", "data": data, "metadata": metadata, "execution_count": count}
        case Raised(error=error):
            traceback = list(error.traceback)
            return {"event": "error", "name": error.name, "value": error.value, "traceback": traceback}
        case Status(event=event):
            return {"event": "status", "status": event}
        case Clear(wait=wait):
            return {"event": "clear", "wait": wait}
        case Capped():
            return {"event": "notice", "text": capped_words(record)}
        case _:
            return None


def capped_words(capped: Capped) -> str:
    """Say that output is missing."""
    why = "the disk is full or does not work" if capped.by_disk else "its cap"
    return f"the complete output is cut: {capped.lost_bytes} bytes at its end were not kept ({why})"
