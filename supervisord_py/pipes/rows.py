"""Between an execution and its row in the ledger. Pure; a damaged JSON column reads as empty, never as an error."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.ledger.pipe_executions import PipeExecutionRow, UsageRow
from supervisord_py.ledger.pipe_history import Filter
from supervisord_py.pipes.execution import ErrorType, Execution, Group, Plan, Preset, Status, Trigger, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from supervisord_py.pipes.room_requests import ExecutionFilter

    E = TypeVar("E", bound=StrEnum)

_COLUMNS = {each.name for each in fields(PipeExecutionRow)} - {"status", "trigger", "plan", "error_type"}
_SAME = tuple(each.name for each in fields(Execution) if each.name in _COLUMNS)
"""Fields that a row has under the same name and with the same value."""
_USAGE = tuple(each.name for each in fields(Usage))
_PRESET = tuple(each.name for each in fields(Preset))
_PLAN = tuple(each.name for each in fields(Plan))


def row_of(execution: Execution) -> PipeExecutionRow:
    """Return the row of an execution."""
    return PipeExecutionRow(
        **{name: getattr(execution, name) for name in _SAME},
        **{name: getattr(execution.usage, name) for name in _USAGE},
        status=execution.status.value,
        trigger=execution.trigger.value,
        queue_group=execution.group.value,
        agent=execution.plan.agent,
        model=execution.preset.model,
        provider=execution.preset.provider,
        preset_id=execution.preset.id,
        timeout_seconds=execution.plan.timeout_seconds,
        error_type=None if execution.error_type is None else execution.error_type.value,
        plan=_text(execution.plan),
        preset_snapshot=_text(execution.preset),
    )


def execution_of(row: PipeExecutionRow) -> Execution:
    """Return the execution of a row; in lists, where the snapshots are left out, plan and preset know the columns."""
    return Execution(
        **{name: getattr(row, name) for name in _SAME},
        usage=Usage(**{name: getattr(row, name) for name in _USAGE}),
        status=_word(Status, row.status, Status.FAILED),
        trigger=_word(Trigger, row.trigger, Trigger.MANUAL),
        group=_word(Group, row.queue_group, Group.MANUAL),
        plan=_plan(row),
        preset=_preset(row),
        error_type=None if row.error_type is None else _word(ErrorType, row.error_type, ErrorType.UNKNOWN),
    )


def usage_row(usage: Usage) -> UsageRow:
    """Return what was used, as columns."""
    return UsageRow(**{name: getattr(usage, name) for name in _USAGE})


def filter_of(wanted: ExecutionFilter) -> Filter:
    """Return the ledger's filter."""
    return Filter(
        pipe=wanted.pipe,
        statuses=tuple(status.value for status in wanted.statuses),
        since=wanted.since,
        until=wanted.until,
        before_id=wanted.before_id,
        limit=wanted.limit,
    )


def _plan(row: PipeExecutionRow) -> Plan:
    members = {name: value for name, value in _object(row.plan).items() if name in _PLAN}
    members["agent"] = row.agent
    members.setdefault("timeout_seconds", row.timeout_seconds or 300.0)
    members["command"] = tuple(members.get("command") or ())
    members["fallbacks"] = tuple(_preset_of(each) for each in members.get("fallbacks") or ())
    return Plan(**members)


def _preset(row: PipeExecutionRow) -> Preset:
    known = {"id": row.preset_id, "provider": row.provider, "model": row.model}
    return _preset_of({**_object(row.preset_snapshot), **known})


def _preset_of(members: Mapping[str, Any]) -> Preset:
    return Preset(**{name: value for name, value in members.items() if name in _PRESET})


def _word(kind: type[E], text: str, otherwise: E) -> E:
    try:
        return kind(text)
    except ValueError:
        return otherwise


def _text(frozen: Plan | Preset) -> str:
    return json.dumps(_members(frozen), default=_plain, separators=(",", ":"))


def _members(frozen: Plan | Preset) -> dict[str, Any]:
    """Return the fields by name, the values as they are: nobody changes them before they are text."""
    return {name: getattr(frozen, name) for name in (_PLAN if isinstance(frozen, Plan) else _PRESET)}


def _plain(value: object) -> object:
    return _members(value) if isinstance(value, (Plan, Preset)) else str(value)


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
