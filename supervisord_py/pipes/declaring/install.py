"""`pxctl pipe add`: a pipe from a folder, a file, an https address or the examples, copied into the pipes directory.

It is made in a hidden folder, validated there, and renamed into its place: whole or not at all. It arrives disabled
(`enabled: false` in the copy), whatever it says itself; nothing that was just downloaded runs by itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import BadRequestError, UnknownUnitError
from supervisord_py.pipes.declaring.decoding import decode
from supervisord_py.pipes.declaring.edit import edit_keys
from supervisord_py.pipes.declaring.fields import DEFAULT_AGENT
from supervisord_py.pipes.declaring.files import PIPE_FILE, BlindError, read_bounded
from supervisord_py.pipes.declaring.pipe_file import declare, read_pipe
from supervisord_py.pipes.declaring.placing import place_for, placed
from supervisord_py.pipes.declaring.problems import DeclarationError, config_error, did_you_mean, error_of, shown
from supervisord_py.pipes.declaring.source import EXAMPLE, is_address, name_from_address, name_from_file
from supervisord_py.pipes.definition import BrokenPipe, Fingerprint, PipeDefinition

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.pipes.declaring.fetch import Fetch

COMMAND = "pxctl pipe add PATH|URL|example:NAME --name my-pipe"

_LEFT_BEHIND = ("output", "logs", "__pycache__", ".git", "run.pid", ".trigger-context.json", ".local-overrides.json")
"""Not copied from the top of a folder: what its runs left, and what belongs to the machine it came from."""
_NOBODY = Fingerprint(0, 0, 0, 0, "")
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class Installed:
    """A pipe that was added; `warnings` are sentences for people."""

    definition: PipeDefinition
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Origin:
    """What is to be copied: the bytes of `pipe.md`, and the folder whose other files come along (None for none).

    `label` is what messages call the file.
    """

    raw: bytes
    name: str
    label: str
    folder: Path | None = None


async def install(
    source: str,
    pipes_dir: Path,
    examples_dir: Path,
    *,
    name: str | None = None,
    fetch: Fetch,
    limit_bytes: int,
    knows_agent: Callable[[str], bool] = lambda _agent: True,
    default_agent: str = DEFAULT_AGENT,
) -> Installed:
    """Add a pipe.

    Args:
        source: Path of a folder with a `pipe.md` or of one Markdown file, `https://...`, or `example:NAME`.
        pipes_dir: Where it goes; made if need be.
        examples_dir: Where the examples of the package lie.
        name: What it is called from now on; None takes the name of its folder, file or address.
        fetch: Reads an address.
        limit_bytes: Of a local `pipe.md`.
        knows_agent: Whether there is an agent of that name; an unknown one is only a warning.
        default_agent: Of a pipe that names none.

    Raises:
        BadRequestError: The source is none, or no name can be made of it.
        UnknownUnitError: There is no such example.
        ConflictError: There is a pipe of that name.
        ConfigError: It is broken; nothing was added.
        PxError: It cannot be fetched, or not be written; nothing was added.
    """
    if is_address(source):
        found_name = name or name_from_address(source)
        wanted = _named(found_name, source)
        await asyncio.to_thread(place_for, pipes_dir, wanted, COMMAND)
        origin = _Origin(await fetch(source), wanted, source)
    else:
        origin = await asyncio.to_thread(_local, source, examples_dir, name, limit_bytes)
    definition = await asyncio.to_thread(_place, origin, pipes_dir, default_agent)
    warnings = list(definition.warnings)
    if not knows_agent(definition.agent):
        warnings.append(f"the agent {shown(definition.agent)} is not known here; the pipe cannot run until it is")
    return Installed(definition, source, tuple(warnings))


def _named(name: str | None, source: str) -> str:
    if name is None:
        raise BadRequestError(f"no name can be made of {shown(source)}", hint="name it: --name my-pipe")
    return name


def _local(source: str, examples_dir: Path, name: str | None, limit_bytes: int) -> _Origin:
    if not source or "\0" in source:
        raise BadRequestError("a pipe comes from a folder, a file, an https address or example:NAME", hint=COMMAND)
    if source.startswith(EXAMPLE):
        path = _example(source.removeprefix(EXAMPLE), examples_dir)
    else:
        path = Path(os.path.abspath(os.path.expanduser(source)))
    if os.path.isdir(path):
        file = path / PIPE_FILE
        return _Origin(_bytes(file, limit_bytes), _named(name or path.name, source), str(file), path)
    if not os.path.lexists(path):
        raise BadRequestError(f"there is no file or folder {path}", hint=COMMAND)
    stem = path.name.removesuffix(".md")
    wanted = _named(name or name_from_file(stem, path.parent.name), source)
    return _Origin(_bytes(path, limit_bytes), wanted, str(path))


def _example(name: str, examples_dir: Path) -> Path:
    try:
        known = sorted(each.name for each in os.scandir(examples_dir) if os.path.isfile(Path(each.path) / PIPE_FILE))
    except OSError:
        known = []
    if name not in known:
        detail = f"there is no example {shown(name)}{did_you_mean(name, known)}"
        raise UnknownUnitError(detail, hint=f"examples: {', '.join(known) or 'none'}")
    return examples_dir / name


def _bytes(file: Path, limit_bytes: int) -> bytes:
    try:
        return read_bounded(file, limit_bytes).raw
    except (DeclarationError, BlindError) as error:
        raise BadRequestError(str(error), hint=COMMAND) from None


def _place(origin: _Origin, pipes_dir: Path, default_agent: str) -> PipeDefinition:
    folder = place_for(Path(os.path.abspath(pipes_dir)), origin.name, COMMAND)
    raw = _disabled(origin, folder, default_agent).encode()
    if origin.folder is not None:
        _refuse_nesting(origin.folder, folder)
    with placed(folder) as draft:
        if origin.folder is None:
            os.mkdir(draft, 0o700)
        else:
            _copy(origin.folder, draft)
        (draft / PIPE_FILE).write_bytes(raw)
        os.chmod(draft / PIPE_FILE, _PRIVATE)
    added = read_pipe(folder, limit_bytes=len(raw), default_agent=default_agent)
    if isinstance(added, BrokenPipe):  # pragma: no cover - somebody else wrote into it within the moment
        raise config_error(added)
    return added


def _disabled(origin: _Origin, folder: Path, default_agent: str) -> str:
    """Return the text with `enabled: false`, once it is known to be a usable pipe."""
    declared = declare(origin.raw, folder=folder, fingerprint=_NOBODY, default_agent=default_agent)
    if isinstance(declared, BrokenPipe):
        problems = [replace(each, file=origin.label) for each in (declared.problem, *declared.more)]
        error = error_of(problems, f"pipe:{folder.name}")
        error.hint = f"{error.hint}; mend it where it is, then add it again"
        raise error
    return edit_keys(decode(origin.raw, origin.label), {"enabled": False})


def _refuse_nesting(origin: Path, folder: Path) -> None:
    if (os.path.realpath(folder.parent) + os.sep).startswith(os.path.realpath(origin) + os.sep):
        raise BadRequestError(f"{origin} contains the pipes directory and cannot be copied into it")


def _copy(origin: Path, draft: Path) -> None:
    """Copy a folder, links as links; `pipe.md` is left to the caller, who must not write through a link of it."""
    matching = shutil.ignore_patterns(*_LEFT_BEHIND, PIPE_FILE)

    def ignored(folder: str, names: list[str]) -> set[str]:
        left = set(matching(folder, names)) if folder == str(origin) else set()
        return left | {each for each in names if not _copyable(os.path.join(folder, each))}

    try:
        shutil.copytree(origin, draft, symlinks=True, ignore=ignored, copy_function=_copy_file)
    except shutil.Error as error:
        _source, _target, why = error.args[0][0]
        raise OSError(0, f"copying {_source}: {why}") from None
    os.chmod(draft, 0o700)


def _copyable(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _copy_file(source: str, target: str) -> str:
    copied = str(shutil.copy2(source, target, follow_symlinks=False))
    if os.path.basename(target) == ".env" and not os.path.islink(target):
        os.chmod(target, _PRIVATE)
    return copied
