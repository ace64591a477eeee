"""Everything private that is written for one execution: 0700 folders, 0600 files, each whole; and taken away again.

Below the execution's folder: `prompt.md`, and `agent/` with what the adapter's program reads as its own configuration.
Writing again replaces what is there. Nothing of a user's own configuration is ever opened. Blocking.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.command_line import needs
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.templates import fill, fill_json
from supervisord_py.pipes.execution import ErrorType

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.pipes.agents.spec import AgentSpec
    from supervisord_py.pipes.agents.templates import Values


@dataclass(frozen=True, slots=True)
class FileText:
    """One file to be written, below `agent/`."""

    path: str
    text: str


def file_texts(spec: AgentSpec, values: Values) -> tuple[FileText, ...]:
    """Return what the adapter's files hold for this execution.

    Raises:
        CannotRunError: `config_error`: a file needs a value that nobody gave.
    """
    found = []
    for file in spec.files:
        if any(values.get(gap) is None for gap in file.when):
            continue
        for gap in file.needs:
            if values.get(gap) is None:
                raise needs(spec.name, gap)
        if file.text is None:
            found.append(FileText(file.path, json.dumps(fill_json(file.json, values), indent=2) + "\n"))
        else:
            found.append(FileText(file.path, fill(file.text, values) or ""))
    return tuple(found)


AGENT_DIR = "agent"
PROMPT_FILE = "prompt.md"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_run_files(run_dir: Path, prompt: str, files: tuple[FileText, ...] | None) -> None:
    """Write the prompt and the adapter's files; None makes no folder for any, () an empty one.

    Raises:
        CannotRunError: `disk_full`, or `config_error` where the folder cannot be written.
    """
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        cleanup(run_dir)
        agent_dir = run_dir / AGENT_DIR
        if files is not None:
            agent_dir.mkdir(mode=0o700)
        _write(run_dir / PROMPT_FILE, prompt)
        for file in files or ():
            target = agent_dir / file.path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(target, file.text)
    except OSError as error:
        raise _cannot_write(error, run_dir) from error


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder that the agent is to find: its output, its sessions.

    Raises:
        CannotRunError: `disk_full`, or `config_error` where it cannot be made or written.
    """
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise _cannot_write(error, folder) from error


def cleanup(run_dir: Path) -> None:
    """Remove what `write_run_files` wrote; what is not there is no error."""
    shutil.rmtree(run_dir / AGENT_DIR, ignore_errors=True)
    with contextlib.suppress(OSError):
        (run_dir / PROMPT_FILE).unlink()


def _write(path: Path, text: str) -> None:
    """Write a new file, private from its first instant under any umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text.encode("utf-8", "surrogatepass"))


def _cannot_write(error: OSError, folder: Path) -> CannotRunError:
    kind = ErrorType.DISK_FULL if error.errno in _FULL else ErrorType.CONFIG_ERROR
    where = error.filename or folder
    hint = "free some space" if kind is ErrorType.DISK_FULL else "look at its owner and mode"
    return CannotRunError(kind, f"{where} cannot be written: {error.strerror or error}", hint=hint)
