"""Names that every cell finds: small helpers for work with files, commands and other cells' output.

`help(read)` and `man px-prelude` tell more. Every helper says what it did in a status event, a display of the type
`application/x-px-status+json`, that a client may show. They are ordinary names: what user code assigns stays, and
`%reset` brings them back.
"""

from __future__ import annotations

import os

from IPython.display import display

from .files import append, diff, read, write  # noqa: TID252
from .outputs import output  # noqa: TID252
from .search import find, grep, tree  # noqa: TID252
from .shell import run  # noqa: TID252
from .told import Text, tell  # noqa: TID252

__all__ = ["append", "diff", "display", "env", "find", "grep", "output", "read", "run", "tree", "write"]


def env(name: str | None = None, value: str | None = None) -> str | None:
    """Return a variable of the environment, set one, or list the names of all.

    Values never get into status events.

    Args:
        name: Which; with none, the names of all are returned, one a line.
        value: Set it to this, for this process and for the commands that it runs.

    Returns:
        The value; None where there is no such variable.

    Example:
        >>> env("PATH")
        >>> env("MODE", "test")
    """
    if name is None:
        names = sorted(os.environ)
        tell("env", action="list", count=len(names), names=names)
        return Text("\n".join(names))
    if value is not None:
        os.environ[name] = value
    tell("env", action="get" if value is None else "set", name=name, found=name in os.environ)
    return os.environ.get(name)
