"""Pipes come and go whole: `pxctl pipe add` (a folder, a file, an https address, an example), `new` and `remove`.

A pipe is made in a hidden folder, validated there, and renamed into its place. An added one arrives disabled
(`enabled: false` in the copy), whatever it says itself; nothing that was just downloaded runs by itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec.structs import replace

from supervisord_py.config.documents import MAX_FILE_BYTES, did_you_mean, read_bounded
from supervisord_py.errors import BadRequestError, ConflictError, PxError, TooLargeError, UnknownUnitError
from supervisord_py.pipes.catalog import DiskError
from supervisord_py.pipes.definition import PIPE_FILE, declare, name_trouble
from supervisord_py.pipes.front_matter import set_keys
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, error_of
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from supervisord_py.pipes.models import PipesConfig

COMMAND = "pxctl pipe add PATH|URL|example:NAME --name my-pipe"
TIMEOUT_SECONDS = 30.0
PREFIX = ".adding-"  # of a folder that is being prepared: the catalog passes over every name with a dot in front
TEMPLATE = Path(__file__).parents[1] / "examples" / "templates" / PIPE_FILE


class FetchError(PxError):
    """An address cannot be read."""

    kind = "fetch_failed"
    title = "The address cannot be read"
    status = 502


async def install(source: str, config: PipesConfig, *, name: str | None = None) -> PipeDefinition:
    """Add a pipe: from a folder with a `pipe.md`, one Markdown file, `https://...`, or `example:NAME`.

    Raises PxError: the source is none, or broken, or cannot be read; there is a pipe of that name; the disk refuses.
    Nothing was added.
    """
    pipes_dir = config.pipes_dir
    scheme, is_url, _ = source.partition("://")
    origin: Path | None = None
    if is_url:
        if scheme.lower() != "https":
            detail = f"{scheme}:// is refused: a pipe runs with your rights, and only https says whom it comes from"
            raise BadRequestError(detail, hint="use the https address, or download it and add the file")
        name = name or _name_of(unquote(source.partition("?")[0]))
        _place_for(pipes_dir, name)  # before anything is fetched
        raw = await fetch(source)
    else:
        file, origin = _local(source, config.examples_dir)
        name = name or _name_of(str(file))
        try:
            raw = await asyncio.to_thread(read_bounded, file)
        except OSError as error:
            raise BadRequestError(f"{file}: {error.strerror or error}", hint=COMMAND) from None
        source = str(file)
    folder = _place_for(pipes_dir, name)
    declared = declare(raw, folder=folder, default_agent=config.default_agent)
    if isinstance(declared, BrokenPipe):
        broken = error_of([replace(each, file=source) for each in (declared.problem, *declared.more)], name)
        broken.hint = f"{broken.hint}; mend it where it is, then add it again"
        raise broken
    disabled = set_keys(raw.decode(), {"enabled": False}).encode()
    await asyncio.to_thread(_place, folder, disabled, origin)
    return replace(declared, enabled=False)


def scaffold(name: str, pipes_dir: Path) -> Path:
    """Write a new pipe to start from, and return its folder; it runs by hand only. Blocking."""
    folder = _place_for(pipes_dir, name)
    _place(folder, TEMPLATE.read_bytes(), None)
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


async def fetch(address: str) -> bytes:
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
                else:
                    body = bytearray()
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if len(body) > MAX_FILE_BYTES:
                            said = f"{url} is larger than {MAX_FILE_BYTES} bytes"
                            raise TooLargeError(said, limit_bytes=MAX_FILE_BYTES)
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
    return parts[-2] if stem == "pipe" and len(parts) > 1 else stem


def _local(source: str, examples_dir: Path) -> tuple[Path, Path | None]:
    """Return the `pipe.md` of a path or an example, and the folder whose other files come along (None for none)."""
    path = Path(os.path.abspath(os.path.expanduser(source)))
    if source.startswith("example:"):
        wanted = source.removeprefix("example:")
        known = sorted(it.parent.name for it in examples_dir.glob(f"*/{PIPE_FILE}"))
        if wanted not in known:
            detail = f"there is no example {shown(wanted)}{did_you_mean(wanted, known)}"
            raise UnknownUnitError(detail, hint=f"examples: {', '.join(known)}")
        path = examples_dir / wanted
    if not source or not os.path.lexists(path):
        raise BadRequestError(f"there is no file or folder {shown(str(path))}", hint=COMMAND)
    return (path / PIPE_FILE, path) if os.path.isdir(path) else (path, None)


def _place_for(pipes_dir: Path, name: str) -> Path:
    """Return the folder of a pipe that is to be made."""
    if trouble := name_trouble(name):
        raise BadRequestError(f"{shown(name)} cannot be a pipe's name: it {trouble}", hint=COMMAND)
    folder = Path(os.path.abspath(pipes_dir)) / name
    if os.path.lexists(folder):
        hint = f"pxctl pipe remove {name}, or another name: pipe add --name {name}-2, pipe new {name}-2"
        raise ConflictError(f"{folder} is there already", hint=hint, unit=f"pipe:{name}")
    return folder


def _place(folder: Path, raw: bytes, origin: Path | None) -> None:
    """Make a pipe's folder in a hidden one and move it to its place; `origin` is copied but for what its runs left."""
    if origin is not None and Path(os.path.realpath(folder.parent)).is_relative_to(os.path.realpath(origin)):
        raise BadRequestError(f"{origin} contains the pipes directory and cannot be copied into it")
    draft = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"

    def ignored(inside: str, _names: list[str]) -> set[str]:
        return {PIPE_FILE, "output", ".git"} if inside == str(origin) else set()

    try:
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        if origin is None:
            os.mkdir(draft)
        else:
            shutil.copytree(origin, draft, symlinks=True, ignore=ignored)
        os.chmod(draft, 0o700)
        (draft / PIPE_FILE).write_bytes(raw)
        for secret in (draft / PIPE_FILE, draft / ".env"):
            if secret.is_file() and not secret.is_symlink():
                secret.chmod(0o600)
        _place_for(folder.parent, folder.name)
        os.rename(draft, folder)
    except OSError as error:  # also shutil.Error
        raise _disk_error("write", folder, error) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _disk_error(what: str, folder: Path, error: OSError) -> DiskError:
    hint = f"see who owns it: ls -ld {folder.parent} {folder}"
    return DiskError(f"cannot {what} {folder}: {error.strerror or error}", hint=hint, unit=f"pipe:{folder.name}")
