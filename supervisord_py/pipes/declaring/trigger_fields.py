"""`trigger`: the events that start a pipe. Pure.

Written as `trigger: {events: [...]}`, or short as a list or one word; an item may also be a pair, since
`- pipe_completed: x` with a space is one to YAML.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.nodes import Items, Node, Scalar, Table, kind_of
from supervisord_py.pipes.declaring.problems import nearest_of, shown
from supervisord_py.pipes.scheduling.events import parse_pattern
from supervisord_py.pipes.scheduling.grammar import ScheduleError

if TYPE_CHECKING:
    from supervisord_py.pipes.declaring.field_reader import Fields
    from supervisord_py.pipes.definition import EventPattern

PUBLISHED = ("pipe_completed", "pipe_failed", "tool_failed", "file_changed")
"""Events that the daemon itself publishes; any other word is one of `POST /api/events/{name}`."""

_EVENTS = "events"
_FOREIGN = ("custom", "sources")
_CLOSE = 0.85
_CALL = re.compile(r"[A-Za-z_]+\(.*\)", re.DOTALL)
"""Such an event is another program's; nothing here makes it happen."""
_HINT = "write trigger: {events: [pipe_completed:other]}"


def read_events(fields: Fields, own_name: str) -> tuple[EventPattern, ...]:
    """Read the patterns in the order of the file, each once."""
    found: dict[EventPattern, None] = {}
    for text, node in _words(fields):
        if _CALL.fullmatch(text):
            fields.warn(f"line {node.place.line}: trigger: {shown(text)} never happens here")
            continue
        pattern = _pattern(fields, text, node)
        if pattern is not None:
            found[pattern] = None
            _doubt(fields, pattern, own_name)
    return tuple(found)


def _words(fields: Fields) -> list[tuple[str, Node]]:
    node = fields.node("trigger")
    if not isinstance(node, Table):
        return _listed(fields, node)
    listed: list[tuple[str, Node]] = []
    for each in node.entries:
        if each.key == _EVENTS:
            listed = _listed(fields, each.value)
        elif each.key in _FOREIGN:
            fields.warn(f"line {each.place.line}: trigger.{each.key} has no effect here; events start this pipe")
        else:
            fields.complain("trigger", f"{each.key!r} is not known", _HINT, each.value)
    return listed


def _listed(fields: Fields, node: Node | None) -> list[tuple[str, Node]]:
    if node is None:
        return []
    found: list[tuple[str, Node]] = []
    for each in node.items if isinstance(node, Items) else (node,):
        word = _word(each)
        if word is None:
            fields.complain("trigger", f"an event is a word, not {kind_of(each)}", _HINT, each)
        elif word:
            found.append((word, each))
    return found


def _word(node: Node) -> str | None:
    match node:
        case Scalar():
            return "" if node.is_null else node.text.strip()
        case Table(entries=(pair,)) if isinstance(pair.value, Scalar):
            return f"{pair.key}:{pair.value.text.strip()}"
        case _:
            return None


def _pattern(fields: Fields, text: str, node: Node) -> EventPattern | None:
    try:
        return parse_pattern(text)
    except ScheduleError as error:
        fields.complain("trigger", error.detail, error.hint or _HINT, node)
        return None


def _doubt(fields: Fields, pattern: EventPattern, own_name: str) -> None:
    if pattern.event not in PUBLISHED:
        nearest = nearest_of(pattern.event, PUBLISHED, _CLOSE)
        if nearest is not None:
            fields.warn(f"trigger: nobody publishes {pattern.event!r} by itself; did you mean {nearest!r}?")
    elif pattern.event.startswith("pipe_") and pattern.subject == own_name:
        fields.warn(f"trigger: {pattern.text!r} is this pipe itself, which never starts itself")
