"""`pxctl tools sync`: build a tool's `.venv` from what it says it needs, with uv where there is one, else venv + pip.

The new environment is built in `.venv.new` and takes the place of the old one by a rename when it is complete, so a
build that fails, is cancelled or killed leaves the old one. The builders run as children of the keeper, unit
`sync:NAME`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError, PxError
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment, passed
from supervisord_py.process.output import Chunk, OutputReader
from supervisord_py.process.spec import ChildSpec
from supervisord_py.tools.config import DEFAULT_ENV_ALLOW
from supervisord_py.tools.declaring.fingerprint import VENV
from supervisord_py.tools.making.requirements import Needs, Source, needs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.process.output import Cursor
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child
    from supervisord_py.tools.spec import ToolSpec

NEW, OLD = f"{VENV}.new", f"{VENV}.old"
TAIL_LINES = 30
GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""How often a build's output is looked at; people watch it."""
MAX_LINE = 2000
MAX_PACKAGES = 500
_LINE_END = re.compile(rb"\r\n|\n|\r")
_INSTALLER_SETTINGS = ("UV_*", "PIP_*", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to the build, not to the tool."""
_NEEDS_FILE = ".px-requirements.txt"
_under_way: set[Path] = set()


class SyncFailedError(PxError):
    """A `.venv` could not be built. `output_tail` holds the last lines of the builder."""

    kind = "sync_failed"
    title = "The virtual environment could not be built"


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """One step of a build."""

    argv: tuple[str, ...]
    cwd: Path
    env: Environment
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended, in words for people; comes last. `code` is None after a signal."""

    code: int | None
    words: str


Runner = Callable[[BuildCommand], AsyncGenerator[str | StepEnd, None]]
"""Runs a step: yields its lines, then exactly one `StepEnd`; stops it when closed early."""


@dataclass(frozen=True, slots=True)
class Builders:
    """What a build is made with.

    Attributes:
        runner: Runs the steps.
        source: The daemon's environment; what `allow` and the installers' own settings name passes. Out of repr.
        python: Base interpreter; None is the daemon's.
        uv: Path of uv; None builds with venv and pip.
        allow: As for `build_environment`.
    """

    runner: Runner
    source: Mapping[str, str] = field(repr=False)
    python: str | None = None
    uv: str | None = None
    allow: Sequence[str] = DEFAULT_ENV_ALLOW

    def environment(self, venv: Path) -> Environment:
        """Return what the builders may see: the allow-list and a person's own settings of the installers."""
        values = passed(self.source, (*self.allow, *_INSTALLER_SETTINGS))
        values.setdefault("PATH", DEFAULT_PATH)
        own = {"PYTHONUNBUFFERED": "1", "VIRTUAL_ENV": str(venv), "UV_PROJECT_ENVIRONMENT": str(venv)}
        return Environment(values | own)


async def sync_tool(spec: ToolSpec, builders: Builders) -> AsyncGenerator[str, None]:
    """Build the `.venv` of a tool and yield progress, a line at a time.

    Raises:
        SyncFailedError: A step failed; the environment that was there before is there still.
        StartFailedError: A builder could not be started at all.
        ConfigError: The file with the dependencies is broken.
        ConflictError: The tool is being synced already.
    """
    needs = needs_of(spec)
    if spec.python is not None:
        yield f"nothing to build: {spec.unit} names its own interpreter, {spec.python}"
    elif needs is None:
        yield f"nothing to build: {spec.unit} has no requirements.txt, no pyproject.toml and no PEP 723 metadata"
    else:
        with _alone(spec):
            async with contextlib.aclosing(_Build(spec, needs, builders).lines()) as lines:
                async for line in lines:
                    yield line


async def compile_bytecode(spec: ToolSpec, builders: Builders) -> AsyncGenerator[str, None]:
    """Compile what the `.venv` of a tool holds and yield progress; what does not compile stays as it is.

    Raises:
        StartFailedError: The interpreter could not be started.
        ConflictError: The tool is being synced.
    """
    with _alone(spec):
        yield f"compiling {spec.folder / VENV}"
        async with contextlib.aclosing(builders.runner(_compilation(spec, spec.folder / VENV, builders))) as output:
            async for item in output:
                if isinstance(item, str):
                    yield item


@contextlib.contextmanager
def _alone(spec: ToolSpec) -> Iterator[None]:
    """Exclude a second build of the same folder; one state directory has one daemon."""
    if spec.folder in _under_way:
        raise ConflictError(f"{spec.unit} is being synced already", unit=spec.unit)
    _under_way.add(spec.folder)
    try:
        yield
    finally:
        _under_way.discard(spec.folder)


def _compilation(spec: ToolSpec, venv: Path, builders: Builders) -> BuildCommand:
    argv = (str(venv / "bin" / "python"), "-m", "compileall", "-q", str(venv / "lib"))
    return BuildCommand(argv, spec.folder, builders.environment(venv), may_fail=True)


class _Build:
    """One build under way."""

    def __init__(self, spec: ToolSpec, needs: Needs, builders: Builders) -> None:
        self.spec = spec
        self.needs = needs
        self.builders = builders
        self.venv = spec.folder / NEW
        self.env = builders.environment(self.venv)
        self.python = str(self.venv / "bin" / "python")
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    async def lines(self) -> AsyncGenerator[str, None]:
        """Run all steps, then put the new environment into its place."""
        started = time.monotonic()
        final = self.spec.folder / VENV
        yield f"building {final} from {self.needs.source} with {'uv' if self.builders.uv else 'venv and pip'}"
        await asyncio.to_thread(self._clear)
        os.mkdir(self.venv, 0o700)
        try:
            for command in self._steps():
                async with contextlib.aclosing(self._run(command)) as output:
                    async for line in output:
                        yield line
            await asyncio.to_thread(self._take_place, final)
        finally:
            await asyncio.to_thread(self._clear)
        yield f"built {final} in {time.monotonic() - started:.1f} s"

    def _clear(self) -> None:
        for path in (self.venv, self.spec.folder / OLD):
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)

    def _take_place(self, final: Path) -> None:
        """Have the scripts name the path where they will be, and exchange old and new."""
        for script in self.venv.glob("bin/*"):
            if script.is_file() and not script.is_symlink():
                content = script.read_bytes()
                if os.fsencode(self.venv) in content:  # else it may be a hard link into the installer's cache
                    script.write_bytes(content.replace(os.fsencode(self.venv), os.fsencode(final)))
        if os.path.lexists(final):
            os.rename(final, self.spec.folder / OLD)
        os.rename(self.venv, final)

    def _steps(self) -> list[BuildCommand]:
        base = self.builders.python or sys.executable
        uv, venv = self.builders.uv, str(self.venv)
        if uv is None:
            install = (self.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-r")
            return [
                self._step(base, "-m", "venv", venv),
                *self._installation(*install),
                _compilation(self.spec, self.venv, self.builders),
            ]
        create = self._step(uv, "venv", "--allow-existing", "--python", base, venv)
        if self.needs.source is Source.LOCK:
            frozen = ("--frozen", "--no-dev", "--no-install-project", "--compile-bytecode", "--python", self.python)
            return [create, self._step(uv, "sync", *frozen)]
        return [create, *self._installation(uv, "pip", "install", "--compile-bytecode", "--python", self.python, "-r")]

    def _installation(self, *install: str) -> list[BuildCommand]:
        """Return the step that installs, none where nothing is asked for (installers refuse an empty list)."""
        if self.needs.source is Source.REQUIREMENTS:
            return [self._step(*install, Source.REQUIREMENTS)]
        if not self.needs.requirements:
            return []
        listed = self.venv / _NEEDS_FILE
        listed.write_text("".join(f"{each}\n" for each in self.needs.requirements), encoding="utf-8")
        return [self._step(*install, str(listed))]

    def _step(self, *argv: str) -> BuildCommand:
        return BuildCommand(argv, self.spec.folder, self.env)

    async def _run(self, command: BuildCommand) -> AsyncGenerator[str, None]:
        ended = StepEnd(None, "vanished")
        async with contextlib.aclosing(self.builders.runner(command)) as output:
            async for item in output:
                if isinstance(item, StepEnd):
                    ended = item
                else:
                    self.tail.append(item)
                    yield item
        if not command.may_fail and ended.code != 0:
            raise self._failure(command, ended.words)

    def _failure(self, command: BuildCommand, words: str) -> SyncFailedError:
        name = self.spec.name
        shown = " ".join([os.path.basename(command.argv[0]), *command.argv[1:4]])
        last = next((line for line in reversed(self.tail) if line.strip()), "it printed nothing")
        return SyncFailedError(
            f"cannot build {self.spec.folder / VENV} from {self.needs.source}: {shown} … {words}: {last[:300]}",
            hint=f"mend {self.needs.source} of the tool, then: pxctl tools sync {name}",
            unit=self.spec.unit,
            output_tail="\n".join(self.tail),
            stderr_tail="\n".join(self.tail),
        )


def placement_runner(placement: Placement, name: str) -> Runner:
    """Return a runner whose steps are children of the placement, unit `sync:<name>`.

    Closing a step early stops its whole tree before the close returns.
    """

    async def run(command: BuildCommand) -> AsyncGenerator[str | StepEnd, None]:
        key = placement.new_key()
        spec = ChildSpec(f"sync:{name}", command.argv, str(command.cwd), command.env)
        child = await placement.spawn(key, spec)
        try:
            async with contextlib.aclosing(_lines(placement, child)) as lines:
                async for line in lines:
                    yield line
            record = await placement.wait(key)
        finally:
            await asyncio.shield(_finish(placement, key))
        words = f"was killed by signal {record.signal}" if record.code is None else f"exited {record.code}"
        yield StepEnd(record.code, words)

    return run


async def _finish(placement: Placement, key: str) -> None:
    """Stop whatever still lives of a step; a step whose tree cannot be stopped is not released."""
    report = await placement.stop(key, grace_seconds=GRACE_SECONDS, reason="cancelled")
    if not report.survivors:
        await placement.release(key)


async def _lines(placement: Placement, child: Child) -> AsyncGenerator[str, None]:
    """Yield the lines of a child until it has exited and everything that it printed was read."""
    reader = OutputReader.of(placement.log_dir, child.unit)
    unfinished: dict[int, bytes] = {}
    position: int | Cursor = child.log_position
    exited = asyncio.ensure_future(placement.wait(child.key))
    drained = False
    try:
        while True:
            batch = await asyncio.to_thread(reader.read, position)
            position = batch.cursor
            for item in batch.items:
                if isinstance(item, Chunk):
                    for line in _split(unfinished, item):
                        yield line
            if batch.at_end and drained:
                break
            if batch.at_end and (await asyncio.wait({exited}, timeout=LOOK_SECONDS))[0]:
                await placement.stop(child.key, grace_seconds=GRACE_SECONDS, reason="exit")
                drained = True
    finally:
        exited.cancel()
        await asyncio.gather(exited, return_exceptions=True)
    for rest in unfinished.values():
        if rest.strip():
            yield _text(rest)


def _split(unfinished: dict[int, bytes], item: Chunk) -> list[str]:
    """Return the lines that a chunk completes; a progress bar's carriage return ends one, too."""
    *whole, rest = _LINE_END.split(unfinished.get(item.stream, b"") + item.data)
    if len(rest) > MAX_LINE:
        whole, rest = [*whole, rest], b""
    unfinished[item.stream] = rest
    return [_text(line) for line in whole if line.strip()]


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace").rstrip()


def lacks_bytecode(venv: Path) -> bool:
    """Say whether any package at the top of site-packages has no compiled `__init__`: every cold start compiles it."""
    packages = (each.parent for each in sorted(venv.glob("lib/python*/site-packages/*/__init__.py")))
    looked_at = (next(each.glob("__pycache__/__init__.*.pyc"), None) for each in islice(packages, MAX_PACKAGES))
    return any(found is None for found in looked_at)
