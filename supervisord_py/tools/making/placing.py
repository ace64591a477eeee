"""A new tool folder appears whole or not at all: it is prepared beside its place and renamed into it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError, PxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""


class DiskError(PxError):
    """The tools directory cannot be written."""

    kind = "disk"
    title = "The tools directory cannot be written"


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """Give a path of the same last name that does not exist yet; what is put there becomes `folder` at the end.

    Raises:
        ConflictError: `folder` has come to exist meanwhile.
        DiskError: The directory cannot be written.
    """
    unit = f"tool:{folder.name}"
    nest = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"
    try:
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        os.mkdir(nest, 0o700)
        draft = nest / folder.name
        yield draft
        if os.path.lexists(folder):
            raise ConflictError(f"{folder} is there already", unit=unit)
        os.rename(draft, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConflictError(f"{folder} is there already", unit=unit) from None
        raise DiskError(f"cannot write {folder}: {error.strerror or error}", hint="pxctl doctor", unit=unit) from None
    finally:
        shutil.rmtree(nest, ignore_errors=True)
