"""What is known of the imports of a tool, from its own starts (tools/learner.py): what may be
imported ahead of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

SERVES = "px.serves"
"""Stands among the steps where the tool begins to serve, as in tools/learner.py."""
_SHARED = "random"
"""Imported first where it is imported at all: whether a later import draws from its generator
can be seen then.
"""


class Learnt(msgspec.Struct, frozen=True):
    """The installed modules that a tool asks for, in order, up to the first change that its own
    code makes.

    `own`: the files of the tool's own code that ran meanwhile, each with its signature: with other
    code, nothing of this holds. `change`: what the code changed, and before which import; "" where
    nothing is known of one.
    """

    steps: tuple[str, ...] = ()
    own: Mapping[str, str] = {}
    change: str = ""

    def holds(self) -> bool:
        """Tell whether the tool's code is still what it was. Blocking, some microseconds a file."""
        return bool(self.own) and all(signature(path) == known for path, known in self.own.items())


def signature(path: str) -> str:
    """Return what differs once a file is another, or has other content: as `_signature` of
    tools/learner.py.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return "-"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


class Message(msgspec.Struct, frozen=True):
    """What the shim of one instance has told so far.

    `later`: what was asked for after the change.
    """

    modules: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    change: str = ""
    own: Mapping[str, str] = {}


def merge(known: Learnt | None, message: Message) -> Learnt:
    """Return what holds after another start, or more of the same one."""
    steps = tuple(name for name in message.steps if name != _SHARED)
    has_random = _SHARED in message.modules
    own, change = dict(message.own), message.change
    if known is not None and _is_same_code(known, message):
        own = {**known.own, **own}
        change = change or known.change
        has_random = has_random or _SHARED in known.steps
        before = tuple(name for name in known.steps if name != _SHARED)
        # Another order of what requests import says nothing against the one that was seen first.
        # What is asked for after a change is out, also where it came before it in another start.
        extends = steps[: len(before)] == before and not known.change
        steps = steps if extends else _until_first(before, message.later)
    if not set(steps) - {SERVES}:
        return Learnt((), own, change)
    return Learnt((_SHARED, *steps) if has_random else steps, own, change)


def _is_same_code(known: Learnt, message: Message) -> bool:
    both = known.own.keys() & message.own.keys()
    return bool(both) and all(known.own[path] == message.own[path] for path in both)


def _until_first(steps: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    for position, name in enumerate(steps):
        if name in later:
            return steps[:position]
    return steps
