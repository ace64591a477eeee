"""A folder read into a definition. Whatever is wrong with it becomes a broken pipe, never an exception. Blocking."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.fields import DEFAULT_AGENT, Identity, define
from supervisord_py.pipes.declaring.files import PIPE_FILE, BlindError, decode, read_bounded
from supervisord_py.pipes.declaring.front_matter import parse
from supervisord_py.pipes.declaring.problems import DeclarationError
from supervisord_py.pipes.models import BrokenPipe, ConfigProblem
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.pipes.models import Declared, Fingerprint

MAX_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WRONG = re.compile(r"[^A-Za-z0-9._-]")
_ROUTES = frozenset({"queue", "new", "schedule"})
"""`/api/pipes/queue` and its like are routes."""


def name_trouble(name: str) -> str | None:
    """Say why a folder's name cannot be a pipe's, as the rest of a sentence; None when it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not _NAME.fullmatch(name):
        wrong = _WRONG.search(name)
        what = f"holds {shown(wrong[0])}" if wrong else f"begins with {shown(name[0])}"
        return f"{what}; a name is made of letters, digits, dots, hyphens and underscores, a letter or digit first"
    return "is reserved" if name in _ROUTES else None


def read_pipe(folder: Path, *, limit_bytes: int, default_agent: str = DEFAULT_AGENT) -> Declared:
    """Read the pipe of a folder.

    Args:
        folder: Its name is the pipe's.
        limit_bytes: Of `pipe.md`.
        default_agent: Of a pipe that names none.
    """
    try:
        return look_at_pipe(folder, limit_bytes=limit_bytes, default_agent=default_agent)
    except BlindError as error:
        return BrokenPipe(folder.name, folder, ConfigProblem(str(error), "try again", str(folder / PIPE_FILE)))


def look_at_pipe(folder: Path, *, limit_bytes: int, default_agent: str) -> Declared:
    """Read the pipe of a folder, if it can be looked at.

    Raises:
        BlindError: It cannot for now; it may be as it was.
    """
    try:
        found = read_bounded(folder / PIPE_FILE, limit_bytes)
    except DeclarationError as error:
        return BrokenPipe(folder.name, folder, error.problems[0])
    trouble = name_trouble(folder.name)
    if trouble:
        problem = ConfigProblem(f"the folder's name {shown(folder.name)} {trouble}", "rename the folder", str(folder))
        return BrokenPipe(folder.name, folder, problem, found.fingerprint)
    return declare(found.raw, folder=folder, fingerprint=found.fingerprint, default_agent=default_agent)


def declare(raw: bytes, *, folder: Path, fingerprint: Fingerprint, default_agent: str = DEFAULT_AGENT) -> Declared:
    """Read the bytes of a `pipe.md` that lies, or is to lie, in `folder`; touches no file."""
    file = folder / PIPE_FILE
    try:
        front = parse(decode(raw, str(file)), str(file))
    except DeclarationError as error:
        return BrokenPipe(folder.name, folder, error.problems[0], fingerprint, error.problems[1:])
    return define(front, Identity(folder.name, folder, file, fingerprint, default_agent))
