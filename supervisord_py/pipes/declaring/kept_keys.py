"""Keys that have no effect here. They are kept in the file; a warning is said only where a user would be misled. Pure.

A pipe that was written for another program may rely on such a key: on permissions, above all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.nodes import Items, Node, Scalar
from supervisord_py.pipes.declaring.problems import nearest_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.pipes.declaring.nodes import Entry

USED = (
    "name",
    "title",
    "description",
    "schedule",
    "schedule_config",
    "timezone",
    "enabled",
    "run_on_enable",
    "agent",
    "command",
    "model",
    "provider",
    "preset",
    "effort",
    "timeout",
    "history",
    "allow_empty",
    "trigger",
    "retries",
    "budget",
    "limits",
    "redact",
)
"""Keys that mean something here."""

_RIGHTS = "is not enforced here: the agent may do what you may do"
_MISLEADING = {
    "permissions": _RIGHTS,
    "allow-apps": _RIGHTS,
    "deny-apps": _RIGHTS,
    "time-range": _RIGHTS,
    "privacy_filter": "is not applied here: the agent sees what it finds",
    "connections": "are not made here: give the agent what it needs in .env",
    "run_in": "has no effect here: each execution is one of its own",
    "subagent": "has no effect here: the agent has the tools of its own settings",
    "lookback": "has no effect here: the time range of a run begins where the last successful one ended",
    "on_failure": "tells nobody: a pipe with `trigger: pipe_failed:NAME` does (pxctl pipe add example:tell-failure)",
    "config": "is not filled in here: {{...}} in the prompt is passed on as it is",
}
_SILENT = (
    "artifacts",
    "source_slug",
    "installed_version",
    "source_hash",
    "template",
    "icon",
    "featured",
    "category",
    "tags",
    "author",
    "version",
    "license",
    "mute",
    "enterprise_managed",
    "event_read_only",
)
_HARMLESS = frozenset({"false", "no", "off", "admin", "none"})
"""Values of misleading keys that ask for nothing which is not done. (`permissions: none` is checked apart.)"""
_CLOSE = 0.8


def warnings_of(entry: Entry) -> Iterator[str]:
    """Say what is doubtful about a key that is not in USED."""
    sentence = _MISLEADING.get(entry.key)
    if sentence is not None:
        if _asks_for_something(entry):
            yield f"{entry.key} {sentence}"
        return
    if entry.key in _SILENT:
        return
    nearest = nearest_of(entry.key, USED, _CLOSE)
    if nearest is not None:
        yield f"line {entry.place.line}: {shown(entry.key)} has no effect; did you mean {nearest!r}?"


def _asks_for_something(entry: Entry) -> bool:
    value: Node = entry.value
    if isinstance(value, Scalar):
        word = value.text.strip().lower()
        restricts = entry.key == "permissions" and word == "none"
        return restricts or not (value.is_null or word in _HARMLESS)
    return bool(value.items if isinstance(value, Items) else value.entries)
