"""One execution of a pipe as a row: the value, and the way between it and the table's columns.

Law: a field is a column of the same name; what is large stands last in the table and is left out of lists, so that a
list never touches the pages that it lies on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.instants import optional_text, to_seconds

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from supervisord_py.ledger.store import Ledger

    Operation = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True, slots=True)
class PipeExecutionRow:
    """One execution. Times are Unix seconds; what is not known (yet) is None, large texts are None in lists.

    Attributes:
        status: `queued`, `running`, or a final word.
        queue_group: Whose slots it waits for.
        instance: The placement's key of its process; `pid`, `start_time`, `boot_id` are its identity.
        total_tokens, cost, turns: What was used so far; zero where nobody said.
        plan, preset_snapshot: JSON texts, frozen at the queueing.
        progress: JSON text: what whoever takes it over must know while it runs; gone at its end.
        stdout, stderr: Text up to the cap.
    """

    id: int
    pipe_name: str
    status: str
    trigger: str
    queue_group: str
    queued_at: float
    agent: str = "pi"
    model: str | None = None
    provider: str | None = None
    preset_id: str | None = None
    not_before: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    queue_wait_ms: int | None = None
    duration_ms: int | None = None
    timeout_seconds: float | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    instance: str | None = None
    trigger_event: str | None = None
    trigger_key: str | None = None
    api_port: int | None = None
    context_start: float | None = None
    context_end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    error_type: str | None = None
    error_message: str | None = None
    retry_of: int | None = None
    retry_count: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    turns: int = 0
    output_dir: str | None = None
    session_path: str | None = None
    agent_version: str | None = None
    incomplete: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    lost_bytes: int = 0
    invalid_utf8: bool = False
    plan: str | None = None
    preset_snapshot: str | None = None
    rendered_prompt: str | None = None
    progress: str | None = None
    stdout: str | None = None
    stderr: str | None = None


QUEUED = "queued"
RUNNING = "running"
BLOBS = ("plan", "preset_snapshot", "rendered_prompt", "progress", "stdout", "stderr")
"""The last fields, in order."""
MOMENTS = frozenset({"queued_at", "not_before", "started_at", "finished_at", "context_start", "context_end"})
COLUMNS = tuple(each.name for each in fields(PipeExecutionRow))
_PLACES_OF_MOMENTS = tuple(place for place, name in enumerate(COLUMNS) if name in MOMENTS)
_PLACES_OF_FLAGS = tuple(COLUMNS.index(name) for name in ("incomplete", "invalid_utf8"))
_QUEUED_AT = COLUMNS.index("queued_at")
_ALL = ", ".join(f'"{name}"' for name in COLUMNS)
_LISTED = ", ".join(f'"{name}"' for name in COLUMNS[: -len(BLOBS)])
_INSERT = f"INSERT INTO pipe_executions ({_ALL}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608  # names of our own fields


def together(operation: Operation, also: Operation | None) -> Operation:
    """Return an operation that does both, or neither."""
    if also is None:
        return operation

    def both(connection: sqlite3.Connection) -> None:
        operation(connection)
        also(connection)

    return both


def insert(connection: sqlite3.Connection, row: PipeExecutionRow) -> None:
    """Insert a row."""
    connection.execute(_INSERT, [_cell(name, getattr(row, name)) for name in COLUMNS])


async def whole(ledger: Ledger, where: str, values: Sequence[object]) -> list[PipeExecutionRow]:
    """Return rows with everything."""
    return await ledger.read(lambda connection: _select(connection, _ALL, where, values))


async def listed(ledger: Ledger, where: str, values: Sequence[object]) -> list[PipeExecutionRow]:
    """Return rows without their large texts."""
    return await ledger.read(lambda connection: _select(connection, _LISTED, where, values))


def _select(
    connection: sqlite3.Connection, columns: str, where: str, values: Sequence[object]
) -> list[PipeExecutionRow]:
    return [_row(it) for it in connection.execute(f"SELECT {columns} FROM pipe_executions {where}", values)]  # noqa: S608  # our own words


def _row(cells: Sequence[Any]) -> PipeExecutionRow:
    """Return the value of a row; its cells are in the order of the fields, those of the large texts may be missing."""
    values = list(cells)
    for place in _PLACES_OF_MOMENTS:
        values[place] = to_seconds(values[place])
    for place in _PLACES_OF_FLAGS:
        values[place] = bool(values[place])
    values[_QUEUED_AT] = values[_QUEUED_AT] or 0.0
    return PipeExecutionRow(*values)


def _cell(name: str, value: Any) -> Any:
    if name in MOMENTS:
        return optional_text(value)
    return int(value) if isinstance(value, bool) else value
