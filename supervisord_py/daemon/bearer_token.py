"""Tokens in files of ours that nobody else can read: that of the optional loopback listener, and those of gateways.

The listener's is made when missing. One that others may read is refused, because it may have been read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_NAME = "api.token"  # noqa: S105 - the name of a file
TOKEN_BYTES = 32
MIN_LETTERS = 16
_MAX_BYTES = 4096


def read_or_make_token(path: Path) -> str:
    """Return the token in `path`; make the file (0600) with a fresh one when it is not there.

    Raises:
        ConfigError: The file is not ours alone, too short to be a secret, or cannot be read or made.
    """
    hint = f"rm {path} and `pxctl daemon restart` make a new one"
    with contextlib.suppress(FileExistsError):
        try:
            return _make(path)
        except FileExistsError:
            raise
        except OSError as error:
            raise _unusable(path, f"cannot be made: {error.strerror}", hint) from error
    return _read(path, hint, MIN_LETTERS)


def read_token(path: Path) -> str:
    """Return the token that somebody else's server gave, whatever its length.

    Raises:
        ConfigError: The file is not ours alone, holds no token, or cannot be read.
    """
    return _read(path, f"put the token into it, and close it to others: chmod 600 {path}", 1)


def _make(path: Path) -> str:
    token = secrets.token_urlsafe(TOKEN_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, f"{token}\n".encode())
    finally:
        os.close(fd)
    return token


def _read(path: Path, hint: str, least: int) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}", hint) from error
    try:
        seen = os.fstat(fd)
        content = os.read(fd, _MAX_BYTES)
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}", hint) from error
    finally:
        os.close(fd)
    if seen.st_uid not in {os.geteuid(), 0} or seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = f"mode {stat.S_IMODE(seen.st_mode):04o}, uid {seen.st_uid}"
        raise _unusable(path, f"may be read by others ({mode})", hint)
    token = content.decode("utf-8", "replace").strip()
    if len(token) < least or not token.isascii() or not token.isprintable():
        raise _unusable(path, f"holds no token of at least {least} printable ASCII letters", hint)
    return token


def _unusable(path: Path, why: str, hint: str) -> ConfigError:
    return ConfigError(f"the token file {path} {why}", hint=hint, file=str(path))
