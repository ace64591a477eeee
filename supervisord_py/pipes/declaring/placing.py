"""A new pipe folder appears whole or not at all: it is prepared in a hidden folder beside its place and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from supervisord_py.errors import BadRequestError, ConflictError
from supervisord_py.pipes.declaring.files import DiskError
from supervisord_py.pipes.declaring.pipe_name import name_trouble
from supervisord_py.pipes.declaring.problems import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""


def place_for(pipes_dir: Path, name: str, command: str) -> Path:
    """Return the folder of a pipe that is to be made; `command` is what the hint shows.

    Raises:
        BadRequestError: No pipe can have that name.
        ConflictError: There is one.
    """
    trouble = name_trouble(name)
    if trouble:
        raise BadRequestError(f"{shown(name)} cannot be a pipe's name: it {trouble}", hint=command)
    folder = pipes_dir / name
    if os.path.lexists(folder):
        raise _taken(folder)
    return folder


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """Give a path of the same last name that does not exist yet; what is put there becomes `folder` at the end.

    Raises:
        ConflictError: `folder` has come to exist meanwhile.
        DiskError: The directory cannot be written.
    """
    nest = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"
    try:
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        os.mkdir(nest, 0o700)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        draft = nest / folder.name
        yield draft
        if os.path.lexists(folder):
            raise _taken(folder)
        os.rename(draft, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _taken(folder) from None
        raise _unwritable(folder, error) from None
    finally:
        shutil.rmtree(nest, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> DiskError:
    detail = f"cannot write {folder}: {error.strerror or error}"
    return DiskError(detail, hint="pxctl doctor", unit=f"pipe:{folder.name}")


def _taken(folder: Path) -> ConflictError:
    hint = (
        f"pxctl pipe remove {folder.name}, or another name: pipe add --name {folder.name}-2, pipe new {folder.name}-2"
    )
    return ConflictError(f"{folder} is there already", hint=hint, unit=f"pipe:{folder.name}")
