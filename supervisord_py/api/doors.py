"""One table of routes behind two doors: what a path means on the Unix socket and on the loopback listener. Pure.

Jupyter's clients know one place for their API, `/api/kernels` and its like, and a token for it: on the loopback
listener these paths mean Jupyter's API. Ours is behind `/px/api/…` there, and so it is on the Unix socket, so that a
client need not know by which door it came in. Jupyter's has the prefix `/jupyter` on both.
"""

from __future__ import annotations

from enum import Enum, auto

JUPYTER = "/jupyter"
PX = "/px"
_JUPYTER_OWN = ("/api/kernelspecs", "/api/kernels")


class Door(Enum):
    """By which listener a request came in."""

    UNIX = auto()
    TCP = auto()


def routed_path(path: str, door: Door) -> str:
    """Return the path by which the table of routes knows it; `path` may end in a query."""
    bare, question, query = path.partition("?")
    if bare.startswith(f"{PX}/api/"):
        bare = bare.removeprefix(PX)
    elif door is Door.TCP and _is_jupyters(bare):
        bare = JUPYTER + bare
    return bare + question + query


def _is_jupyters(path: str) -> bool:
    return path in {"/api", "/api/"} or any(path == own or path.startswith(f"{own}/") for own in _JUPYTER_OWN)
