"""Where is an agent's program? On the PATH that it would run with, then where its installers put it. File I/O."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.models import COMMAND
from supervisord_py.process.child_environment import DEFAULT_PATH

if TYPE_CHECKING:
    from pathlib import Path

USUAL_PLACES = (
    "~/.local/bin",
    "~/.npm-global/bin",
    "~/.bun/bin",
    "~/.volta/bin",
    "~/.local/share/pnpm",
    "~/.yarn/bin",
    "~/.cargo/bin",
    "~/.opencode/bin",
    "~/.claude/local",
    "/opt/homebrew/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
)
"""A daemon that a service manager started has a short PATH; npm, bun, pip --user and Homebrew install elsewhere."""


def find_executable(name: str, *, path: str, home: str, folder: Path, agent: str) -> str:
    """Return the absolute path of a program.

    Args:
        name: A name, or a path: absolute, or relative to `folder`.
        path: PATH of the agent.
        home: What `~` is.
        folder: The pipe's folder.
        agent: The adapter's name, for the message.

    Raises:
        CannotRunError: `agent_not_found`; the message lists every path that was tried.
    """
    tried = candidates(name, path=path, home=home, folder=folder)
    for each in tried:
        if os.path.isfile(each) and os.access(each, os.X_OK):
            return each
    place = "`command` in pipe.md" if agent == COMMAND else "argv in agents.toml"
    hint = f"install {name}, or write its full path as the first word of {place}"
    if any(os.path.isfile(each) for each in tried):
        hint = f"make it executable: chmod +x {next(each for each in tried if os.path.isfile(each))}"
    raise CannotRunError(
        ErrorType.AGENT_NOT_FOUND,
        f"the program {name!r} of the agent {agent!r} was not found; tried {', '.join(tried)}",
        hint=hint,
    )


def candidates(name: str, *, path: str, home: str, folder: Path) -> tuple[str, ...]:
    """Return every path that a name may mean, best first, each once."""
    if name.startswith("~/"):
        return (os.path.join(home, name[2:]),)
    if os.sep in name:
        return (os.path.normpath(os.path.join(folder, name)),)
    return tuple(os.path.join(place, name) for place in search_path(path, home))


def search_path(path: str, home: str) -> tuple[str, ...]:
    """Return the absolute folders of a PATH and the usual places, each once. What is relative in it is left out."""
    usual = (place.replace("~", home, 1) if place.startswith("~") else place for place in USUAL_PLACES)
    places = [*(path or DEFAULT_PATH).split(os.pathsep), *usual]
    return tuple(dict.fromkeys(place for place in places if os.path.isabs(place)))


def path_with(path: str, executable: str, home: str) -> str:
    """Return a PATH on which a program finds its own runtime: `#!/usr/bin/env node` beside it, or in a usual place."""
    places = dict.fromkeys((path or DEFAULT_PATH).split(os.pathsep))
    more = (os.path.dirname(executable), *search_path("", home))
    return os.pathsep.join([*places, *(place for place in more if place not in places and os.path.isdir(place))])
