"""The file of a pipe on the disk: read whole and bounded, written whole or not at all, through links. Blocking."""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.pipes.declaring.front_matter import Lines
from supervisord_py.pipes.declaring.problems import DeclarationError
from supervisord_py.pipes.definition import ConfigProblem, Fingerprint

if TYPE_CHECKING:
    from pathlib import Path

PIPE_FILE = "pipe.md"
MODE = 0o600
_CURE = "save the file as UTF-8"
_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLIND = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
"""Errors that say nothing about the file: nothing to look with, or a network disk that is away."""


class BlindError(Exception):
    """It could not be looked at, which says nothing about what is there."""


class DiskError(PxError):
    """A file or folder of a pipe cannot be written."""

    kind = "disk"
    title = "The pipes directory cannot be written"


@dataclass(frozen=True, slots=True)
class FileRead:
    """The bytes of a file, and what tells that it has changed."""

    raw: bytes
    fingerprint: Fingerprint


def read_bounded(file: Path, limit_bytes: int) -> FileRead:
    """Read a regular file of at most `limit_bytes`; never blocks on a FIFO or a device.

    Raises:
        DeclarationError: Missing, unreadable, not a regular file, or too large.
        BlindError: It cannot be looked at for now.
    """
    try:
        found, raw = _read_bounded(file, limit_bytes)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _BLIND:
            raise BlindError(f"cannot read {file}: {error.strerror}") from None
        raise DeclarationError(_unreadable(file, error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise DeclarationError(ConfigProblem("is not a regular file", "put a text file in its place", str(file)))
    if len(raw) > limit_bytes:
        hint = "put long texts into files beside it"
        raise DeclarationError(ConfigProblem(f"is larger than {limit_bytes} bytes", hint, str(file)))
    return FileRead(raw, fingerprint_of(found, raw))


def _read_bounded(file: Path, limit_bytes: int) -> tuple[os.stat_result, bytes]:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        return found, opened.read(limit_bytes + 1) if stat.S_ISREG(found.st_mode) else b""


def fingerprint_of(found: os.stat_result, raw: bytes) -> Fingerprint:
    """Return the fingerprint of a file. The change time is the inode's: no program can set it back."""
    return Fingerprint(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, hashlib.sha256(raw).hexdigest())


def read_text(file: Path, limit_bytes: int) -> str:
    """Read a file as it is, byte order mark and line ends included.

    Raises:
        DeclarationError: It cannot be read, or is no UTF-8.
    """
    try:
        return decode(read_bounded(file, limit_bytes).raw, str(file))
    except BlindError as error:
        raise DeclarationError(ConfigProblem(str(error), "try again", str(file))) from None


def decode(raw: bytes, file: str) -> str:
    """Return the text, a byte order mark and line ends included.

    Raises:
        DeclarationError: With line and column of the first byte that is wrong.
    """
    if raw.startswith(_WIDE):
        raise DeclarationError(ConfigProblem("the file is UTF-16 or UTF-32", _CURE, file, 1, 1))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        place = Lines(before).place(len(before))
        detail = f"byte 0x{raw[error.start]:02X} is no UTF-8"
        raise DeclarationError(ConfigProblem(detail, _CURE, file, place.line, place.column)) from None
    nul = text.find("\0")
    if nul >= 0:
        place = Lines(text).place(nul)
        problem = ConfigProblem("a NUL byte stands in the text", "take it out", file, place.line, place.column)
        raise DeclarationError(problem)
    return text


def write_pipe(file: Path, text: str) -> None:
    """Replace a file atomically. A link stays one: what it leads to is replaced, and keeps mode and owner.

    Raises:
        DiskError: It cannot be written; the old file is as it was.
    """
    target = os.path.realpath(file)
    draft = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{secrets.token_hex(6)}")
    try:
        _write_draft(draft, target, text.encode())
        os.replace(draft, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        detail = f"cannot write {file}: {error.strerror or error}"
        raise DiskError(detail, hint="pxctl doctor", unit=f"pipe:{file.parent.name}") from None


def _write_draft(draft: str, target: str, raw: bytes) -> None:
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    with os.fdopen(descriptor, "wb") as opened:
        try:
            before = os.stat(target)
        except FileNotFoundError:
            before = None
        if before is not None:
            # The owner first: a change of owner takes set-user bits away, and root alone may give files away.
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
        opened.write(raw)
        opened.flush()
        os.fsync(descriptor)


def _unreadable(file: Path, error: OSError | ValueError) -> ConfigProblem:
    number = error.errno if isinstance(error, OSError) else None
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    hints = {
        errno.ENOENT: f"write a {PIPE_FILE}, or mend the link that leads nowhere",
        errno.EACCES: f"let its owner read it: chmod u+rX {file.parent} {file}",
        errno.ELOOP: "mend the link, which leads in a circle",
    }
    return ConfigProblem(f"cannot be read: {words}", hints.get(number or 0, "pxctl doctor"), str(file))
