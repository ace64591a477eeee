"""The files of pipes: what a change of one means for its runs, and what people do to them through
the room.

Laws: what waits because of an old schedule does not run after a new one; what runs in a folder that
is gone is ended first and forgotten then. A broken file harms nobody. Whoever adds, changes or
removes a pipe sees what he did at once. A pipe is made in a hidden folder, validated there, and
renamed into its place; an added one arrives disabled, whatever it says itself: nothing that was
just downloaded runs by itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import ssl
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import structlog
from msgspec import structs

from supervisord_py.config.documents import (
    MAX_FILE_BYTES,
    Problem,
    config_error,
    did_you_mean,
    read_bounded,
)
from supervisord_py.errors import (
    BadRequestError,
    ConflictError,
    PxError,
    TooLargeError,
    UnknownUnitError,
)
from supervisord_py.ledger.pipes import Trigger
from supervisord_py.pipes import models
from supervisord_py.pipes.adapters import sentence
from supervisord_py.pipes.catalog import DiskError, write_pipe
from supervisord_py.pipes.context import FEW
from supervisord_py.pipes.definition import PIPE_FILE, USED, cure_of, declare, name_trouble
from supervisord_py.pipes.front_matter import Value, set_keys
from supervisord_py.pipes.schedule import At, shown
from supervisord_py.pipes.status import PipeViews
from supervisord_py.process import clock

COMMAND = "pxctl pipe add PATH|URL|example:NAME --name my-pipe"
NAME_HINT = "choose a name such as my-pipe (`pxctl pipe add` takes it with --name)"
FETCH_SECONDS = 30.0
# of a folder that is being prepared: the catalog passes over every name with a dot in front
DRAFT = ".adding-"
TEMPLATE = Path(__file__).parents[1] / "examples" / "templates" / PIPE_FILE
LOOK_SECONDS = 1.0  # between two looks at the folders
_MEANS = " | "  # between a schedule's text and what it was read as, in what is remembered of a pipe
_log = structlog.get_logger(__name__)


class PipeFiles:
    def __init__(self, room: PipeViews) -> None:
        self._room = room
        self._was_enabled: dict[str, bool] = {}
        self._looking = asyncio.Lock()
        self._editing = asyncio.Lock()  # two edits of one file at a time would lose one of them

    # -- in step with the files --------------------------------------------------------------------

    async def settle_all(self) -> None:
        """Bring the line in step with what became of the pipes while we were away, once the line
        is known.
        """
        room = self._room
        for definition in tuple(room.usable()):
            is_unset = room.states.get(definition.name).enabled is None
            if room.ledger.lost_wishes is not None and definition.enabled and is_unset:
                # Whether it was turned off on this machine is not known: it must not run by itself
                # until somebody says.
                room.states.change(definition.name, enabled=False, enabled_file=True)
            await self.settle(definition)
        if room.catalog.trouble is None:
            waiting = {run.name for run in room.runs.values()}
            for name in {*room.states.rows, *waiting} - set(room.catalog.pipes):
                await self.gone(name, "its folder is gone")

    async def look_for_ever(self) -> None:
        while True:
            await self.refresh()
            await clock.tick(LOOK_SECONDS)

    async def refresh(self) -> None:
        """Look now, and take in what has changed; what another look finds meanwhile is taken in
        before this one.
        """
        async with self._looking:
            catalog = self._room.catalog
            changes = (
                catalog.refresh()
                if len(catalog.pipes) <= FEW
                else await asyncio.to_thread(catalog.refresh)
            )
            for word, name in changes:
                await self._take(word, name)
            if changes:
                self._room.look_again()

    async def _take(self, word: str, name: str) -> None:
        declared = self._room.catalog.pipes.get(name)
        problem = sentence(declared.problem) if isinstance(declared, models.BrokenPipe) else None
        self._room.events.publish(f"pipe_{word}", f"pipe:{name}", config_error=problem)
        if isinstance(declared, models.PipeDefinition):
            await self.settle(declared)
        elif isinstance(declared, models.BrokenPipe):
            _log.warning("pipe_broken", pipe=name, detail=problem)
        else:
            self._room.task(self.gone(name, "its folder was deleted"))

    async def gone(self, pipe: str, why: str) -> None:
        """End everything of a pipe that is not there any more, and forget it; its executions
        stay.
        """
        self._was_enabled.pop(pipe, None)
        await self._room.cancel_all(pipe, why)
        if pipe not in self._room.catalog.pipes:  # it may have come back meanwhile
            await self._room.states.forget(pipe)

    async def settle(self, definition: models.PipeDefinition) -> None:
        """Bring what is remembered of a pipe, and what waits of it, in step with its file and
        what is wished of it.
        """
        room, states, name = self._room, self._room.states, definition.name
        now, text = (
            room.clocks.moment(),
            f"{definition.schedule_text}{_MEANS}{definition.schedule!r}",
        )
        # A wish is over for good once the file says another word; and a one-time schedule that has
        # run was disabled by nobody but itself: with another schedule it may run again.
        row = states.get(name)
        is_spent = (row.schedule or "").rpartition(_MEANS)[2].startswith(
            f"{At.__name__}("
        ) and row.occurrences > 0
        is_again = is_spent and not row.enabled and row.schedule != text
        if row.enabled is not None and (definition.enabled != row.enabled_file or is_again):
            states.change(name, enabled=None, enabled_file=None)
        enabled = states.is_enabled(definition)
        if row.schedule != text or row.anchor_at is None:
            # The last decision was about the other schedule.
            fresh: dict[str, Any] = {
                "occurrences": 0,
                "last_decision": None,
                "last_decision_at": None,
            }
            states.change(name, schedule=text, anchor_at=now, last_due=row.last_run_at, **fresh)
        if enabled and not self._was_enabled.get(name, enabled):
            # What was due before and did not run is no reason to wait.
            states.change(name, anchor_at=now, last_due=row.last_run_at)
        self._was_enabled[name] = enabled
        # its own start has disabled it: that is no wish of anybody
        is_once = isinstance(definition.schedule, At)
        for run in room.queued(name):
            trigger = run.execution.trigger
            if not enabled and not is_once and trigger is not Trigger.MANUAL:
                await room.end(run, "cancelled before it ran: it was disabled")
            elif row.schedule not in {None, text} and trigger in {Trigger.SCHEDULED, Trigger.RETRY}:
                await room.end(run, "cancelled before it ran: its schedule has changed")

    # -- what people do ----------------------------------------------------------------------------

    async def install(self, source: str, *, name: str | None = None) -> models.PipeView:
        """Add a pipe from a path, an https address or `example:NAME`: disabled, validated, whole
        or not at all.
        """
        self._room.refuse_at_the_end()
        async with self._editing:
            installed = await add(source, self._room.config, name=name)
        await self.refresh()
        view = self._room.get(installed.name)
        # An agent that is not known keeps it from running, and is no reason not to install it.
        trouble = view.config_error and f"it cannot run until this is mended: {view.config_error}"
        warnings = (*installed.warnings, *([trouble] if trouble else []))
        self._room.events.publish(
            "pipe_installed", f"pipe:{view.name}", source=source, warnings=list(warnings)
        )
        return structs.replace(view, warnings=warnings)

    async def scaffold(self, name: str, *, command: str | None = None) -> models.PipeView:
        """Write a pipe to start from; with a `command`, which gets the prompt on stdin, it needs
        no agent.
        """
        self._room.refuse_at_the_end()
        folder = _place_for(self._room.config.pipes_dir, name)
        text = TEMPLATE.read_text(encoding="utf-8")
        if command is not None:
            text = set_keys(text, {"agent": "command", "command": command})
        await asyncio.to_thread(_place, folder, text.encode(), None)
        await self.refresh()
        return self._room.get(name)

    async def configure(self, name: str, changes: Mapping[str, Value]) -> models.PipeView:
        """Change front matter keys of a pipe's file; None removes one. Body, comments and other
        keys stay.

        Raises ConfigError: the pipe would be broken by it; nothing is written.
        """
        declared = self._room.definition(name)
        async with self._editing:
            await asyncio.to_thread(self._edit, declared, changes)
        await self.refresh()
        return self._room.get(name)

    def _edit(self, declared: models.Declared, changes: Mapping[str, Value]) -> None:
        file, known = declared.folder / PIPE_FILE, {*USED, *getattr(declared, "lines", ())}
        wrong = []
        for key, value in changes.items():
            if value is not None and key not in known:
                said = f"{key!r} is no key of a pipe"
                wrong.append(
                    Problem(
                        message=said, file=str(file), pointer=f"/{key}", hint=cure_of(key, value)
                    )
                )
        try:
            before = read_bounded(file).decode()
        except (OSError, UnicodeDecodeError) as error:
            wrong.append(Problem(message=f"cannot be read: {error}", file=str(file)))
        if not wrong:
            text = set_keys(before, changes)
            will = declare(
                text.encode(), folder=declared.folder, default_agent=self._room.config.default_agent
            )
            if isinstance(will, models.BrokenPipe):
                wrong = [will.problem]
            else:  # what is missing beside the file is told where it was named just now
                wrong = [each for each in self._room.faults(will) if each.pointer[1:] in changes]
        if wrong:
            raise config_error(wrong, f"pipe:{declared.name}")
        if text != before:
            write_pipe(file, text)

    async def remove(self, name: str) -> None:
        """End everything of a pipe, then delete its folder; its executions stay in the ledger."""
        declared = self._room.definition(name)
        await self._room.cancel_all(name, "its pipe was removed")
        async with self._editing:
            await asyncio.to_thread(delete, declared.folder)
        await self.refresh()
        await self.gone(name, "its pipe was removed")

    async def afresh(self, name: str) -> models.Declared:
        if not self._room.catalog.is_current(name):  # a stat: cheaper than a thread
            await self.refresh()
        return self._room.definition(name)


# -- how they come and go --------------------------------------------------------------------------


class FetchError(PxError, kind="fetch_failed", title="The address cannot be read", status=502):
    """An address cannot be read."""


async def add(
    source: str, config: models.PipesConfig, *, name: str | None = None
) -> models.PipeDefinition:
    """Add a pipe: from a folder with a `pipe.md`, one Markdown file, `https://...`, or
    `example:NAME`.

    Raises PxError: the source is none, or broken, or cannot be read; there is a pipe of that name;
    the disk refuses. Nothing was added.
    """
    pipes_dir = config.pipes_dir
    scheme, is_url, _ = source.partition("://")
    origin: Path | None = None
    if is_url:
        if scheme.lower() != "https":
            detail = (
                f"{scheme}:// is refused: a pipe runs with your rights, and only https says whom "
                "it comes from"
            )
            raise BadRequestError(
                detail, hint="use the https address, or download it and add the file"
            )
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
    if isinstance(declared, models.BrokenPipe):
        broken = config_error([structs.replace(declared.problem, file=source)], f"pipe:{name}")
        broken.hint = f"{broken.hint}; mend it where it is, then add it again"
        raise broken
    disabled = set_keys(raw.decode(), {"enabled": False}).encode()
    await asyncio.to_thread(_place, folder, disabled, origin)
    return structs.replace(declared, enabled=False)


def delete(folder: Path) -> None:
    """Delete a pipe's folder, of which nothing runs; a link loses the link only.

    DiskError: it cannot. Blocking.
    """
    doomed = folder.parent / f"{DRAFT}removed-{secrets.token_hex(6)}"
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
    """Read an https address, to the end of its redirects.

    Raises FetchError, TooLargeError: it cannot be read.
    """
    import aiohttp  # costs its import in a control plane that has no other use of a client

    hint = (
        "look at the address in a browser, or download it and add the file; SSL_CERT_FILE names "
        "authorities to trust"
    )
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            # Anew each time: whom this machine trusts may have changed since the start. Reads
            # files.
            connector = aiohttp.TCPConnector(
                ssl=await asyncio.to_thread(ssl.create_default_context)
            )
            session = aiohttp.ClientSession(connector=connector, trust_env=True)
            async with session, session.get(address) as answer:
                insecure = [
                    each.url for each in (*answer.history, answer) if each.url.scheme != "https"
                ]
                if not insecure and answer.status == 200:
                    body = bytearray()
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if len(body) > MAX_FILE_BYTES:
                            said = f"{answer.url} is larger than {MAX_FILE_BYTES} bytes"
                            raise TooLargeError(said, limit_bytes=MAX_FILE_BYTES)
                    return bytes(body)
                detail = f"{answer.url} answered {answer.status} {answer.reason}"
                if insecure:
                    detail = (
                        f"{insecure[0]} is not taken: what runs with your rights is read over "
                        "https only"
                    )
    except TimeoutError:
        detail = f"{address} did not answer within {FETCH_SECONDS:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        detail = f"cannot read {address}: {str(error) or type(error).__name__}"
    raise FetchError(detail, hint=hint)


def _name_of(path: str) -> str:
    """Return what to call the pipe of a file or address: its name without `.md`, or the folder's
    of a `pipe.md`.
    """
    stem = PurePosixPath(path).name.removesuffix(".md")
    return (stem == "pipe" and PurePosixPath(path).parent.name) or stem


def _local(source: str, examples_dir: Path) -> tuple[Path, Path | None]:
    """Return the `pipe.md` of a path or an example, and the folder whose other files come along
    (None for none).
    """
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
    if trouble := name_trouble(name):
        raise BadRequestError(
            f"{shown(name)} cannot be a pipe's name: it {trouble}", hint=NAME_HINT
        )
    folder = Path(os.path.abspath(pipes_dir)) / name
    if os.path.lexists(folder):
        hint = (
            f"pxctl pipe remove {name}, or another name: pipe add --name {name}-2, pipe new "
            f"{name}-2"
        )
        raise ConflictError(f"{folder} is there already", hint=hint, unit=f"pipe:{name}")
    return folder


def _place(folder: Path, raw: bytes, origin: Path | None) -> None:
    """Make a pipe's folder in a hidden one and move it to its place; `origin` is copied but for
    what its runs left.
    """
    if origin is not None and Path(os.path.realpath(folder.parent)).is_relative_to(
        os.path.realpath(origin)
    ):
        raise BadRequestError(f"{origin} contains the pipes directory and cannot be copied into it")
    draft = folder.parent / f"{DRAFT}{secrets.token_hex(6)}"

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
    return DiskError(
        f"cannot {what} {folder}: {error.strerror or error}", hint=hint, unit=f"pipe:{folder.name}"
    )
