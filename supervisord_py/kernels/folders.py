"""Which folder a path leads to, whatever it is called meanwhile: device and inode."""

from __future__ import annotations

import os

FolderIdentity = tuple[int, int]
"""Device and inode."""


def identity_of(path: str) -> FolderIdentity | None:
    """Return the folder that a path leads to now; None where there is none, or it cannot be
    looked at. Blocking.
    """
    try:
        if not os.path.isdir(path):
            return None
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_within(path: str, folder: FolderIdentity) -> bool:
    """Say whether a path leads to a folder or to one below it, whatever the two are called now.

    Blocking.
    """
    below: FolderIdentity | None = None
    here = identity_of(path)
    # The root is its own parent, and of a folder that was deleted the parent may not be there.
    while here is not None and here != below:
        if here == folder:
            return True
        path += "/.."
        below = here
        here = identity_of(path)
    return False
