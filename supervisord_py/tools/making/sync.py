"""`pxctl tools sync`: build a tool's `.venv` from what it says it needs, with uv where there is one, else venv + pip.

The builders run as children of the keeper: they come in through a `Runner`, so nothing here forks. A failed, cancelled
or killed build leaves the environment that was there before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from supervisord_py.errors import PxError
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment, passed
from supervisord_py.tools.config import DEFAULT_ENV_ALLOW
from supervisord_py.tools.making.requirements import Needs, Source, needs_of
from supervisord_py.tools.making.venv_place import VenvPlace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.tools.spec import ToolSpec

TAIL_LINES = 30
_INSTALLER_SETTINGS = ("UV_*", "PIP_*", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to the build, not to the tool."""
_NEEDS_FILE = ".px-requirements.txt"


class SyncFailedError(PxError):
    """A `.venv` could not be built. `output_tail` holds the last lines of the builder."""

    kind = "sync_failed"
    title = "The virtual environment could not be built"


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """One step of a build, for a `Runner`."""

    argv: tuple[str, ...]
    cwd: Path
    env: Environment
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line that a step printed, without its end."""

    text: str


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended, in words for people; comes last. `code` is None after a signal."""

    code: int | None
    words: str


class Runner(Protocol):
    """Something that runs a step: lines while it runs, then exactly one `StepEnd`; stops it when closed early."""

    def __call__(self, command: BuildCommand) -> AsyncGenerator[OutputLine | StepEnd, None]:
        """Run one step. Raises `StartFailedError` when it cannot be started."""


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


async def sync_tool(spec: ToolSpec, builders: Builders) -> AsyncGenerator[str, None]:
    """Build the `.venv` of a tool and yield progress, a line at a time.

    Raises:
        SyncFailedError: A step failed; the environment that was there before is there again.
        StartFailedError: A builder could not be started at all.
        ConfigError: The file with the dependencies is broken.
        ConflictError: The tool is being synced already.
    """
    place = VenvPlace(spec.folder)
    with place.locked():
        try:
            async with contextlib.aclosing(_sync(spec, builders, place)) as lines:
                async for line in lines:
                    yield line
        finally:
            await asyncio.to_thread(place.sweep)


async def _sync(spec: ToolSpec, builders: Builders, place: VenvPlace) -> AsyncGenerator[str, None]:
    if place.repair():
        yield "cleaned up after an interrupted build"
    needs = needs_of(spec)
    if spec.python is not None:
        yield f"nothing to build: {spec.unit} names its own interpreter, {spec.python}"
    elif needs is None:
        yield f"nothing to build: {spec.unit} has no requirements.txt, no pyproject.toml and no PEP 723 metadata"
    else:
        async with contextlib.aclosing(_Build(spec, needs, place, builders).lines()) as lines:
            async for line in lines:
                yield line


async def compile_bytecode(spec: ToolSpec, builders: Builders) -> AsyncGenerator[str, None]:
    """Compile what the `.venv` of a tool holds and yield progress; what does not compile stays as it is.

    Raises:
        StartFailedError: The interpreter could not be started.
        ConflictError: The tool is being synced.
    """
    place = VenvPlace(spec.folder)
    with place.locked():
        yield f"compiling {place.venv}"
        async with contextlib.aclosing(builders.runner(_compilation(spec, place, builders))) as output:
            async for item in output:
                if isinstance(item, OutputLine):
                    yield item.text


def _compilation(spec: ToolSpec, place: VenvPlace, builders: Builders) -> BuildCommand:
    argv = (str(place.venv / "bin" / "python"), "-m", "compileall", "-q", str(place.venv / "lib"))
    return BuildCommand(argv, spec.folder, _environment(place, builders), may_fail=True)


def _environment(place: VenvPlace, builders: Builders) -> Environment:
    """Return what the builders may see: the allow-list and a person's own settings of the installers."""
    values = passed(builders.source, (*builders.allow, *_INSTALLER_SETTINGS))
    values.setdefault("PATH", DEFAULT_PATH)
    return Environment(values | {"PYTHONUNBUFFERED": "1", "VIRTUAL_ENV": str(place.venv)})


class _Build:
    """One build under way."""

    def __init__(self, spec: ToolSpec, needs: Needs, place: VenvPlace, builders: Builders) -> None:
        self.spec = spec
        self.needs = needs
        self.place = place
        self.builders = builders
        self.env = _environment(place, builders)
        self.python = str(place.venv / "bin" / "python")
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    async def lines(self) -> AsyncGenerator[str, None]:
        """Run all steps; whatever cuts them short brings the old environment back before it goes on."""
        started = time.monotonic()
        tool = "uv" if self.builders.uv else "venv and pip"
        yield f"building {self.place.venv} from {self.needs.source} with {tool}"
        self.place.begin()
        done = False
        try:
            for command in self._steps():
                async with contextlib.aclosing(self._run(command)) as output:
                    async for line in output:
                        yield line
                self.place.mark()
            self.place.commit(self.needs.source)
            done = True
        finally:
            if not done:
                self.place.roll_back()
        yield f"built {self.place.venv} in {time.monotonic() - started:.1f} s"

    def _steps(self) -> list[BuildCommand]:
        base = self.builders.python or sys.executable
        uv, venv = self.builders.uv, str(self.place.venv)
        if uv is None:
            install = (self.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-r")
            return [
                self._step(base, "-m", "venv", venv),
                *self._installation(*install),
                _compilation(self.spec, self.place, self.builders),
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
        listed = self.place.venv / _NEEDS_FILE
        listed.write_text("".join(f"{each}\n" for each in self.needs.requirements), encoding="utf-8")
        return [self._step(*install, str(listed))]

    def _step(self, *argv: str) -> BuildCommand:
        return BuildCommand(argv, self.spec.folder, self.env)

    async def _run(self, command: BuildCommand) -> AsyncGenerator[str, None]:
        ended: StepEnd | None = None
        async with contextlib.aclosing(self.builders.runner(command)) as output:
            async for item in output:
                if isinstance(item, StepEnd):
                    ended = item
                else:
                    self.tail.append(item.text)
                    yield item.text
        if not command.may_fail and (ended is None or ended.code != 0):
            raise self._failure(command, "vanished" if ended is None else ended.words)

    def _failure(self, command: BuildCommand, words: str) -> SyncFailedError:
        name = self.spec.name
        shown = " ".join(os.path.basename(each) if index == 0 else each for index, each in enumerate(command.argv[:4]))
        last = next((line for line in reversed(self.tail) if line.strip()), "it printed nothing")
        return SyncFailedError(
            f"cannot build {self.place.venv} from {self.needs.source}: {shown} … {words}: {last[:300]}",
            hint=f"mend {self.needs.source} of the tool, then: pxctl tools sync {name}",
            unit=self.spec.unit,
            output_tail="\n".join(self.tail),
            stderr_tail="\n".join(self.tail),
        )
