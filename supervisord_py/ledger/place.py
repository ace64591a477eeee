"""Where the ledger's file lies: whether it can be used there at all, and what becomes of a damaged
one.

A file that cannot be used as it lies there (a folder in its place, no permission) must be put right
by the user: nothing is changed, and the daemon ends with exit code 78. A damaged file is renamed,
never deleted, and an empty one is begun; that is reported until the renamed file is gone. Nothing
here needs SQLite: `pxd` asks before it starts anything.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from supervisord_py.errors import EXIT_BAD_SETTINGS, PxError

SIDE_FILES = ("-wal", "-shm", "-journal")
MOVED = ".corrupt-"  # between the name of the ledger and the time when it was moved aside
_TIME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
PERMANENT = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.ELOOP,
    errno.ENXIO, errno.ENODEV, errno.ENAMETOOLONG, errno.ETXTBSY, errno.EOPNOTSUPP,
})  # fmt: skip
"""What a file cannot be opened or renamed for, and what waiting does not change."""
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class LedgerUnavailableError(
    PxError, kind="ledger_unavailable", title="The ledger cannot be opened", status=503
):
    """The ledger cannot be opened at present, or is closed."""


class LedgerUnusableError(
    LedgerUnavailableError, kind="ledger_unusable", title="The ledger cannot be used"
):
    """The ledger cannot be used as it lies there; trying again without a change is pointless."""

    exit_code = EXIT_BAD_SETTINGS


class MovedLedger(NamedTuple):
    """A damaged ledger that was moved aside."""

    path: Path
    moved_at: float  # Unix seconds


def check_place(path: Path) -> None:
    """Check that the ledger and what SQLite keeps beside it are files that this process may read
    and write, or absent.

    Raises LedgerUnusableError: they are not; OSError: that cannot be found out at present.
    """
    folder = path.parent
    try:
        for suffix in ("", *SIDE_FILES):
            _check_file(path.with_name(path.name + suffix))
        if not os.access(folder, os.W_OK | os.X_OK) and folder.is_dir():
            hint = f"ls -ld {shlex.quote(str(folder))}"
            raise unusable(
                path, f"this user may not write to its folder {folder}, or it is read-only", hint
            )
    except OSError as error:
        raise refusal_of(path, error) from error


def _check_file(part: Path) -> None:
    try:
        mode = os.stat(part).st_mode
    except FileNotFoundError:
        if part.is_symlink():
            raise unusable(part, "it is a link that leads nowhere", _mv(part)) from None
        return
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise unusable(part, f"it is {name}, not a file", _mv(part))
    # Closing a descriptor would drop the locks that SQLite has on the file in this process, so it
    # is not opened.
    if not os.access(part, os.R_OK | os.W_OK):
        hint = f"ls -l {shlex.quote(str(part))}; lsattr {shlex.quote(str(part))}"
        raise unusable(part, "this user may not read and write it, or it is immutable", hint)


def _mv(part: Path) -> str:
    return f"mv {shlex.quote(str(part))} {shlex.quote(f'{part}.aside')} && pxctl daemon start"


def unusable(path: Path, why: str, hint: str) -> LedgerUnusableError:
    return LedgerUnusableError(f"cannot use the ledger {path}: {why}", hint=hint, file=str(path))


def refusal_of(path: Path, error: OSError) -> PxError | OSError:
    """Return what to raise for a system call on the ledger that failed: the error itself where
    it may pass.
    """
    if error.errno not in PERMANENT:
        return error
    hint = f"ls -ld {shlex.quote(str(path.parent))} {shlex.quote(str(path))}"
    detail = f"cannot open the ledger {path}: {error.strerror}"
    return LedgerUnusableError(detail, hint=hint, file=str(path))


def move_aside(path: Path, now: float) -> Path:
    """Rename a damaged ledger to `NAME.corrupt-TIME` (`now`: Unix seconds) with its side files;
    return where it is.

    It may be open. Raises LedgerUnusableError, OSError: it cannot be renamed.
    """
    stamp = f"{datetime.fromtimestamp(now, UTC):{_TIME_FORMAT}}"
    target = path.with_name(f"{path.name}{MOVED}{stamp}")
    try:
        # The main file goes last: if we die in between, the next start finds it, still damaged, and
        # goes on.
        for suffix in (*SIDE_FILES, ""):
            part = path.with_name(path.name + suffix)
            if os.path.lexists(part):
                part.rename(target.with_name(target.name + suffix))
    except OSError as error:
        raise refusal_of(path, error) from error
    return target


def moved_ledgers(path: Path) -> list[MovedLedger]:
    """Return the damaged ledgers that lie beside this one, oldest first.

    Never raises for what it finds.
    """
    prefix = f"{path.name}{MOVED}"
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return []
    moved = []
    for name in names:
        if name.startswith(prefix) and not name.endswith(SIDE_FILES):
            at = _moment_of(name.removeprefix(prefix))
            if at is not None:
                moved.append(MovedLedger(path.with_name(name), at))
    return moved


def _moment_of(text: str) -> float | None:
    try:
        return datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
