"""A copy of the version that serves, to go back to when the next one does not come up
(keeper/handover.py).

An upgrade overwrites the files of the version that runs, so the way back needs files of its own:
`STATE/versions/<version>/supervisord_py/`. Only the version that serves is kept.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import structlog

from supervisord_py import __version__

PACKAGE = Path(__file__).parent.parent
STAMP_NAME = "stamp"
_log = structlog.get_logger(__name__)


def keep_version(folder: Path) -> None:
    """Keep a copy of this version in `folder`, and no other. Takes some tens of milliseconds; for a
    thread.

    Where it cannot be kept the daemon works without a way back, which the log says.
    """
    if PACKAGE.is_relative_to(folder):
        return  # this is the copy
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = folder / __version__
        if not _is_kept(kept):
            _copy(folder, kept)
        for other in folder.iterdir():
            if other.name != __version__:
                shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        _log.warning("version_not_kept", folder=str(folder), detail=str(error))


def _copy(folder: Path, kept: Path) -> None:
    """Copy the package, whole or not at all. Raises OSError."""
    stamp = _stamp()
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=folder))
    try:
        for path in _files():
            target = draft / PACKAGE.name / path.relative_to(PACKAGE)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(path, target)  # with our umask, not with the modes of the installation
        (draft / STAMP_NAME).write_text(stamp)
        if (
            _stamp() != stamp
            or f'__version__ = "{__version__}"' not in (PACKAGE / "__init__.py").read_text()
        ):
            _log.warning(
                "version_not_kept", folder=str(folder), detail="another version is being installed"
            )
            return
        shutil.rmtree(kept, ignore_errors=True)
        draft.rename(kept)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_kept(kept: Path) -> bool:
    stamp = kept / STAMP_NAME
    return stamp.is_file() and stamp.read_text() == _stamp()


def _files() -> list[Path]:
    return sorted(
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def _stamp() -> str:
    """Return a text that changes with any file of the package."""
    parts = []
    for path in _files():
        status = path.stat()
        parts.append(f"{path.relative_to(PACKAGE)} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(parts)
