"""When is what we know of a tool out of date? Stamps of the few files that matter, cheap enough to take at every look.

A *signature* decides whether a tool is read again; a *digest* decides whether a running instance is stale. The digest
holds the bytes of the declaration and the stamps of what an instance loads once: entrypoint, `.env`, `.venv`.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MANIFEST = "tool.json"
SIDECAR = "pxd.json"
DOTENV = ".env"
VENV = ".venv"

Stamp: TypeAlias = tuple[int, int, int] | None
"""(mtime in ns, size, inode) of a file; None where there is none or it cannot be looked at."""

_DECLARATION = (MANIFEST, SIDECAR)
_LOADED_ONCE = (DOTENV, f"{VENV}/pyvenv.cfg")


def stamp(path: str) -> Stamp:
    """Take the stamp of one file, following links."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def signature(folder: Path, sources: Sequence[str]) -> tuple[Stamp, ...]:
    """Stamp everything whose change means that the tool must be read again; `sources` are relative to the folder."""
    root = str(folder)
    names = (*_DECLARATION, *_LOADED_ONCE, *sources)
    return tuple(stamp(f"{root}/{name}") for name in names)


def newest(stamps: Iterable[Stamp]) -> float:
    """Return the latest modification among stamps in unix seconds, 0 for none.

    A file changed within the resolution of its clock after it was read keeps its stamp; whoever read it that soon
    after the change must not trust the stamp.
    """
    return max((each[0] for each in stamps if each is not None), default=0) / 1e9


def digest(folder: Path, declarations: Sequence[bytes], sources: Sequence[str]) -> str:
    """Return the SHA-256 (hex) that changes when a running instance becomes stale."""
    total = hashlib.sha256()
    for raw in declarations:
        total.update(f"{len(raw)}:".encode())
        total.update(raw)
    for name in (*_LOADED_ONCE, *sources):
        total.update(f"{name}={stamp(f'{folder}/{name}')}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
