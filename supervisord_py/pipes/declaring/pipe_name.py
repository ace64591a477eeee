"""What may a pipe be called? One path component that every system can hold: the name of its folder. Pure."""

from __future__ import annotations

import re

from supervisord_py.pipes.declaring.problems import shown

MAX_NAME = 100
RULE = "letters, digits, dots, hyphens and underscores, a letter or digit first"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WRONG = re.compile(r"[^A-Za-z0-9._-]")
_ROUTES = frozenset({"queue", "new", "schedule"})
"""`/api/pipes/queue` and its like are routes."""
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
"""No file of that name can be made on Windows, where a synchronised folder may also lie."""


def name_trouble(name: str) -> str | None:
    """Say why a name cannot be a pipe's, as the rest of a sentence; None when it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not _NAME.fullmatch(name):
        wrong = _WRONG.search(name)
        what = f"holds {shown(wrong[0])}" if wrong else f"begins with {shown(name[0])}"
        return f"{what}; a name is made of {RULE}"
    if name.endswith("."):
        return "ends with a dot"
    word = name.lower().partition(".")[0]
    if name in _ROUTES or word in _DEVICES:
        return "is reserved"
    return None
