"""Events that start pipes: which pattern fits, and what is a loop. Pure.

An occurrence of an event starts a pipe once, whichever of its patterns fit: the claim is (pipe, event, key). A pipe
never starts itself, and an event does not come back to a pipe that had a part in causing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from supervisord_py.errors import BadRequestError
from supervisord_py.pipes.definition import EventPattern
from supervisord_py.pipes.scheduling.schedule import ScheduleError
from supervisord_py.pipes.scheduling.wall import nearest_name, shown

if TYPE_CHECKING:
    from collections.abc import Collection

FILE_CHANGED = "file_changed"
_ENDS_OF_PIPES = ("pipe_completed", "pipe_failed")
PUBLISHED = (*_ENDS_OF_PIPES, "tool_failed", FILE_CHANGED)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_SUBJECT = 1024
_OWN = ("pipe.md", "output", ".env")
"""In a pipe's folder, what the pipe itself or its owner writes: no news to it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened.

    Attributes:
        name: The word before the colon.
        subject: What it happened to: a pipe, a tool, an absolute path; None where there is none.
        key: Which occurrence: an execution's id, a path with its time and size, what a webhook's caller gives.
        chain: The pipes whose executions led to it, one by the other, the last one its source; empty when nobody knows.
    """

    name: str
    subject: str | None
    key: str
    chain: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As patterns and claims name it."""
        return self.name if self.subject is None else f"{self.name}:{self.subject}"


def parse_pattern(text: str) -> EventPattern:
    """Read an event of the front matter: `pipe_completed:NAME`, `file_changed:inbox/**/*.md`, `my_event`.

    Raises:
        ScheduleError: The name is no name, or a known event lacks its subject.
    """
    plain = text.strip()
    name, colon, subject = plain.partition(":")
    if not _NAME.fullmatch(name):
        raise ScheduleError(
            f"{shown(plain)} is no event", hint="write for example `pipe_completed:NAME` or `file_changed:inbox/*.md`"
        )
    subject = subject.strip()
    if (colon and not subject) or len(subject) > _LONGEST_SUBJECT or (name == FILE_CHANGED and not subject):
        raise ScheduleError(
            f"{shown(plain)} does not say of what", hint=f"write for example `{name}:NAME`, or `{name}:*` for any"
        )
    near = nearest_name(name, PUBLISHED, cutoff=0.85)
    if colon and near and near != name:
        raise ScheduleError(f"{shown(name)} is no event that happens here", hint=f"did you mean `{near}:{subject}`?")
    return EventPattern(name, subject if colon else None)


def check_published(name: str) -> None:
    """Refuse the name of an event that nobody outside may publish, or that no pipe can wait for.

    Raises:
        BadRequestError: It is one of those.
    """
    hint = "give it a name of its own: letters, digits, `.`, `_` and `-`, at most 128, for example deploy_done"
    if name.partition(":")[0] in PUBLISHED:
        raise BadRequestError(f"{shown(name)} is told by what happens here, and by nobody else", hint=hint)
    if not _NAME.fullmatch(name):
        raise BadRequestError(f"{shown(name)} is no name of an event", hint=hint)


def misses(pattern: EventPattern, pipes: Collection[str]) -> bool:
    """Say whether a pattern waits for the end of a pipe, and none of `pipes` is the one."""
    subject = pattern.subject
    if pattern.event not in _ENDS_OF_PIPES or subject is None or subject in pipes:
        return False
    named = _glob(subject, names=True)
    return not ("*" in subject or "?" in subject) or not any(named.fullmatch(each) for each in pipes)


def matches(pattern: EventPattern, event: Event, folder: str) -> bool:
    """Say whether the event is one of the pattern's. `folder` is the pipe's: its relative paths begin there."""
    if pattern.event != event.name:
        return False
    if event.name == FILE_CHANGED:
        path = event.subject or ""
        return not _own(path, folder) and _glob(_absolute(pattern.subject or "", folder)).fullmatch(path) is not None
    if pattern.subject is None:
        return True
    return event.subject is not None and _glob(pattern.subject, names=True).fullmatch(event.subject) is not None


def loop(pipe: str, event: Event) -> str | None:
    """Return why an event may not start a pipe that had a part in it, or None."""
    if pipe not in event.chain:
        return None
    if event.chain[-1] == pipe:
        return f"{event.text} is its own doing: a pipe does not start itself"
    way = " -> ".join((*event.chain[event.chain.index(pipe) :], pipe))
    return f"{event.text} would go round in a loop ({way}): suppressed"


def watch_root(pattern: EventPattern, folder: str) -> str:
    """Return the deepest folder that holds everything a `file_changed` pattern can mean."""
    parts: list[str] = []
    for part in PurePosixPath(_absolute(pattern.subject or "", folder)).parts[:-1]:
        if "*" in part or "?" in part:
            break
        parts.append(part)
    return str(PurePosixPath(*parts))


def goes_below(pattern: EventPattern, folder: str) -> bool:
    """Say whether a `file_changed` pattern can mean files in folders below its root."""
    whole = _absolute(pattern.subject or "", folder)
    return "**" in whole or "/" in whole.removeprefix(watch_root(pattern, folder)).strip("/")


def is_own(pattern: EventPattern, folder: str) -> bool:
    """Say whether a pattern means nothing but what the pipe itself, or its owner, writes in its folder."""
    return pattern.event == FILE_CHANGED and _own(_absolute(pattern.subject or "", folder), folder)


def _absolute(subject: str, folder: str) -> str:
    """Return the path of a pattern, `.` and `..` resolved by name; what ends with a slash is all below that folder."""
    parts: list[str] = []
    for part in PurePosixPath(folder, subject).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    if subject.endswith("/"):
        parts.append("**")
    return "/" + "/".join(parts)


def _own(path: str, folder: str) -> bool:
    inside = PurePosixPath(path)
    return inside.is_relative_to(folder) and inside.relative_to(folder).parts[:1] in [(each,) for each in _OWN]


def _glob(pattern: str, *, names: bool = False) -> re.Pattern[str]:
    """Return the expression of `*`, `?` and `**`; of names there are no folders, so a star is anything."""
    within = "." if names else "[^/]"
    pieces = []
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern):
        match piece:
            case "**/":
                pieces.append("(?:.*/)?")
            case "**":
                pieces.append(".*")
            case "*":
                pieces.append(f"{within}*")
            case "?":
                pieces.append(within)
            case _:
                pieces.append(re.escape(piece))
    return re.compile("".join(pieces), re.DOTALL)
