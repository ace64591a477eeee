"""Pipes come and go whole: `pxctl pipe add` (a folder, a file, an https address, an example), `new` and `remove`.

A pipe is made in a hidden folder, validated there, and renamed into its place. An added one arrives disabled
(`enabled: false` in the copy), whatever it says itself; nothing that was just downloaded runs by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from msgspec.structs import replace

from supervisord_py.config.documents import did_you_mean, read_bounded
from supervisord_py.errors import BadRequestError, ConflictError, PxError, TooLargeError, UnknownUnitError
from supervisord_py.pipes.catalog import DiskError
from supervisord_py.pipes.definition import DEFAULT_AGENT, PIPE_FILE, declare, name_trouble
from supervisord_py.pipes.front_matter import set_keys
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, error_of
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


COMMAND = "pxctl pipe add PATH|URL|example:NAME --name my-pipe"
TIMEOUT_SECONDS = 30.0
PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""
TEMPLATE = """\
---
description: What this pipe is for, in one line
schedule: manual          # every 30m, daily at 9:30am, weekday at 18:00, '0 9 * * 1' ...
agent: pi                 # or: agent: command, with command: ./agent.sh
# preset: fast            # a name of presets.toml; without it, the default preset
# timeout: 10m
---

Say here what the agent is to do, as you would say it to a person.

Above this text the agent finds five lines: the time range since the last successful run, the date, the time zone,
the output directory of this run and the address of the daemon. Refer to them by name:

1. Look at what changed in the given time range.
2. Write a short report to report.md in the given output directory.
3. End with one sentence that says what you did.
"""


class FetchError(PxError):
    """An address cannot be read."""

    kind = "fetch_failed"
    title = "The address cannot be read"
    status = 502


class _Origin(NamedTuple):
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
    limit_bytes: int,
    knows_agent: Callable[[str], bool] = lambda _agent: True,
    default_agent: str = DEFAULT_AGENT,
) -> PipeDefinition:
    """Add a pipe: from a folder with a `pipe.md`, one Markdown file, `https://...`, or `example:NAME`.

    `limit_bytes` is of `pipe.md`; an agent that nobody knows is only a warning.

    Raises:
        PxError: The source is none, or broken, or cannot be read; there is a pipe of that name; the disk refuses.
            Nothing was added.
    """
    scheme, is_url, _ = source.partition("://")
    if is_url and scheme.isalnum():
        if scheme.lower() != "https":
            detail = f"{scheme}:// is refused: a pipe runs with your rights, and only https says whom it comes from"
            raise BadRequestError(detail, hint="use the https address, or download it and add the file")
        wanted = name or _name_of(unquote(source.partition("?")[0]))
        await asyncio.to_thread(_place_for, pipes_dir, wanted, COMMAND)
        origin = _Origin(await fetch(source, limit_bytes), wanted, source)
    else:
        origin = await asyncio.to_thread(_local, source, examples_dir, name, limit_bytes)
    definition = await asyncio.to_thread(_place, origin, pipes_dir, default_agent)
    if knows_agent(definition.agent):
        return definition
    unknown = f"the agent {shown(definition.agent)} is not known here; the pipe cannot run until it is"
    return replace(definition, warnings=(*definition.warnings, unknown))


def scaffold(name: str, pipes_dir: Path) -> Path:
    """Write a new pipe to start from, and return its folder; it runs by hand only. Blocking."""
    folder = _place_for(pipes_dir, name, "pxctl pipe new my-pipe")
    with _placed(folder) as draft:
        os.mkdir(draft, 0o700)
        (draft / PIPE_FILE).write_text(TEMPLATE, encoding="utf-8")
    return folder


def remove(folder: Path) -> None:
    """Delete a pipe's folder, of which nothing runs; a link loses the link only. Gone already is fine. Blocking.

    Raises DiskError: it cannot be deleted.
    """
    doomed = folder.parent / f"{PREFIX}removed-{secrets.token_hex(6)}"
    try:
        if os.path.islink(folder):
            os.unlink(folder)
            return
        os.rename(folder, doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _disk_error("remove", folder, error) from None


async def fetch(address: str, limit_bytes: int) -> bytes:
    """Read an https address, to the end of its redirects. Raises FetchError, TooLargeError: it cannot be read."""
    import aiohttp  # costs its import in a control plane that has no other use of a client

    hint = "look at the address in a browser, or download it and add the file; SSL_CERT_FILE names authorities to trust"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            # Anew each time: whom this machine trusts may have changed since the start. Reads files.
            connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(ssl.create_default_context))
            session = aiohttp.ClientSession(connector=connector, trust_env=True)
            async with session, session.get(address) as answer:
                url = answer.url.human_repr()
                insecure = [each.url.human_repr() for each in (*answer.history, answer) if each.url.scheme != "https"]
                if insecure:
                    detail = f"{insecure[0]} is not taken: what runs with your rights is read over https only"
                elif answer.status != 200:
                    detail = f"{url} answered {answer.status} {answer.reason}"
                elif answer.content_type == "text/html":
                    detail, hint = f"{url} is a web page, not a pipe.md", "use the address of the raw file"
                else:
                    body = bytearray()
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if len(body) > limit_bytes:
                            said = f"{url} is larger than {limit_bytes} bytes"
                            raise TooLargeError(said, limit_bytes=limit_bytes)
                    return bytes(body)
    except TimeoutError:
        detail = f"{address} did not answer within {TIMEOUT_SECONDS:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        detail = f"cannot read {address}: {str(error) or type(error).__name__}"
    raise FetchError(detail, hint=hint)


def _name_of(path: str) -> str:
    """Return what to call the pipe of a file or address: its name without `.md`, or the folder's of a `pipe.md`."""
    parts = [each for each in path.split("/") if each]
    stem = parts[-1].removesuffix(".md") if parts else ""
    name = parts[-2] if stem == "pipe" and len(parts) > 1 else stem
    if name_trouble(name):
        raise BadRequestError(f"no name can be made of {shown(path)}", hint="name it: --name my-pipe")
    return name


def _local(source: str, examples_dir: Path, name: str | None, limit_bytes: int) -> _Origin:
    if not source or "\0" in source:
        raise BadRequestError("a pipe comes from a folder, a file, an https address or example:NAME", hint=COMMAND)
    if source.startswith("example:"):
        wanted = source.removeprefix("example:")
        known = sorted(it.parent.name for it in examples_dir.glob(f"*/{PIPE_FILE}"))
        if wanted not in known:
            detail = f"there is no example {shown(wanted)}{did_you_mean(wanted, known)}"
            raise UnknownUnitError(detail, hint=f"examples: {', '.join(known) or 'none'}")
        path = examples_dir / wanted
    else:
        path = Path(os.path.abspath(os.path.expanduser(source)))
    if not os.path.lexists(path):
        raise BadRequestError(f"there is no file or folder {path}", hint=COMMAND)
    folder = path if os.path.isdir(path) else None
    file = path if folder is None else path / PIPE_FILE
    try:
        raw = read_bounded(file, limit_bytes)
    except OSError as error:
        raise BadRequestError(f"{file}: {error.strerror or error}", hint=COMMAND) from None
    return _Origin(raw, name or _name_of(str(file)), str(file), folder)


def _place(origin: _Origin, pipes_dir: Path, default_agent: str) -> PipeDefinition:
    folder = _place_for(Path(os.path.abspath(pipes_dir)), origin.name, COMMAND)
    definition, raw = _disabled(origin, folder, default_agent)
    if origin.folder is not None and Path(os.path.realpath(pipes_dir)).is_relative_to(os.path.realpath(origin.folder)):
        raise BadRequestError(f"{origin.folder} contains the pipes directory and cannot be copied into it")
    with _placed(folder) as draft:
        if origin.folder is None:
            os.mkdir(draft, 0o700)
        else:
            _copy(origin.folder, draft)
        (draft / PIPE_FILE).write_bytes(raw)
        os.chmod(draft / PIPE_FILE, 0o600)
    return definition


def _disabled(origin: _Origin, folder: Path, default_agent: str) -> tuple[PipeDefinition, bytes]:
    """Return what it will be, and the bytes with `enabled: false`, once it is known to be a usable pipe."""
    declared = declare(origin.raw, folder=folder, default_agent=default_agent)
    if isinstance(declared, BrokenPipe):
        problems = [replace(each, file=origin.label) for each in (declared.problem, *declared.more)]
        error = error_of(problems, folder.name)
        error.hint = f"{error.hint}; mend it where it is, then add it again"
        raise error
    return replace(declared, enabled=False), set_keys(origin.raw.decode(), {"enabled": False}).encode()


def _copy(origin: Path, draft: Path) -> None:
    """Copy a folder but for what its runs left, links as links; `pipe.md` could be one and is left to the caller."""

    def ignored(folder: str, _names: list[str]) -> set[str]:
        return {PIPE_FILE, "output", ".git"} if folder == str(origin) else set()

    try:
        shutil.copytree(origin, draft, symlinks=True, ignore=ignored)
    except shutil.Error as error:
        copied, _target, why = error.args[0][0]
        raise OSError(0, f"copying {copied}: {why}") from None
    os.chmod(draft, 0o700)
    with contextlib.suppress(FileNotFoundError, NotImplementedError):
        if not (draft / ".env").is_symlink():
            os.chmod(draft / ".env", 0o600)


def _place_for(pipes_dir: Path, name: str, command: str) -> Path:
    """Return the folder of a pipe that is to be made; `command` is what the hint shows."""
    trouble = name_trouble(name)
    if trouble:
        raise BadRequestError(f"{shown(name)} cannot be a pipe's name: it {trouble}", hint=command)
    folder = pipes_dir / name
    if os.path.lexists(folder):
        raise _taken(folder)
    return folder


@contextlib.contextmanager
def _placed(folder: Path) -> Iterator[Path]:
    """Give a path of the same last name that does not exist yet; what is put there becomes `folder` at the end."""
    nest = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"
    try:
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        os.mkdir(nest, 0o700)
        yield nest / folder.name
        if os.path.lexists(folder):
            raise _taken(folder)
        os.rename(nest / folder.name, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and os.path.lexists(folder):
            raise _taken(folder) from None
        raise _disk_error("write", folder, error) from None
    finally:
        shutil.rmtree(nest, ignore_errors=True)


def _disk_error(what: str, folder: Path, error: OSError) -> DiskError:
    hint = f"see who owns it: ls -ld {folder.parent} {folder}"
    return DiskError(f"cannot {what} {folder}: {error.strerror or error}", hint=hint, unit=f"pipe:{folder.name}")


def _taken(folder: Path) -> ConflictError:
    name = folder.name
    hint = f"pxctl pipe remove {name}, or another name: pipe add --name {name}-2, pipe new {name}-2"
    return ConflictError(f"{folder} is there already", hint=hint, unit=f"pipe:{name}")
