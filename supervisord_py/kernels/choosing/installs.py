"""What is built for kernels: overlays with ipykernel, and the managed environment; with uv if there is one, else pip.

A build is whole or not there. An overlay is made under another name and renamed; the managed environment, which knows
its own path, is made in place beside a mark that says so, and counts when the mark is gone. Of two builds of one thing,
in one process or in several, the second waits and takes what the first has made. A build that was killed leaves nothing
that counts, and the next one clears it away. A build goes on when the call that asked for it gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import secrets
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.choosing.steps import Program, join

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from supervisord_py.kernels.choosing.probe import Interpreter
    from supervisord_py.kernels.choosing.steps import Steps

    Tell = Callable[[str], None]

REQUIREMENT = "ipykernel>=6.29,<8"
"""Kernels that we are tested with; 6.29 is the last one for Python 3.8."""
PACKAGE = "ipykernel"
_PLAIN = ("--no-input", "--disable-pip-version-check")
INSTALLER_SETTINGS = ("UV_", "PIP_", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to a build, not to kernels."""
BUILD_SECONDS = 1800.0
LOCK_LOOK_SECONDS = 0.2
_TRASH = ".trash-"
_PART = ".part-"


def part_of(target: Path) -> Path:
    """Return the mark that a build in place is not whole, or the place where another one is made until it is."""
    return target.with_name(f"{_PART}{target.name}")


@dataclass(frozen=True, slots=True)
class Installers:
    """What this daemon can install with.

    Attributes:
        python: The daemon's own interpreter: makes virtual environments.
        pip: The daemon's interpreter has a pip, one that can install for other interpreters.
        uv: Path of uv; None where there is none.
    """

    python: str
    pip: bool = False
    uv: str | None = None


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Something to be made.

    Attributes:
        target: Where it will be.
        what: In words for people.
        name: For the unit of the builders.
        tool: What it is made with, for people.
        steps: The commands; `{place}` is replaced by where it is made.
        by_hand: The command that a person can run instead.
        in_place: It is made where it will be, because it knows its own path.
        proof: What must be there in it.
    """

    target: Path
    what: str
    name: str
    tool: str
    steps: tuple[tuple[str, ...], ...]
    by_hand: str
    in_place: bool = False
    proof: str = ""

    def commands(self, place: str) -> tuple[tuple[str, ...], ...]:
        """Return the commands with the place put in."""
        return tuple(tuple(each.replace("{place}", place) for each in step) for step in self.steps)

    def is_complete(self) -> bool:
        """Say whether it is there, whole. File I/O."""
        marked = self.in_place and os.path.lexists(part_of(self.target))
        return not marked and os.path.exists(self.target / self.proof)


def find_installers(path: str) -> Installers:
    """Return what there is to install with, uv looked for beside the daemon's interpreter and on `path`. File I/O."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    uv = beside if os.access(beside, os.X_OK) else shutil.which("uv", path=path)
    return Installers(sys.executable, pip=importlib.util.find_spec("pip") is not None, uv=uv)


def overlay_plan(interpreter: Interpreter, installers: Installers) -> BuildPlan | None:
    """Return how the overlay of an interpreter is built; None where there is nothing to build it with."""
    python = interpreter.executable
    start: tuple[str, ...]
    if installers.uv is not None:
        tool, start = "uv", (installers.uv, "pip", "install", "--python", python, "--compile-bytecode")
    elif interpreter.pip:
        tool, start = "its own pip", (python, "-m", "pip", "install", *_PLAIN)
    elif installers.pip:
        tool, start = "the daemon's pip", (installers.python, "-m", "pip", "--python", python, "install", *_PLAIN)
    else:
        return None
    target = Path(interpreter.overlay)
    return BuildPlan(
        target=target,
        what=f"an overlay with ipykernel for {python}",
        name=f"overlay-{target.name}",
        tool=tool,
        steps=((*start, "--target", "{place}", REQUIREMENT),),
        by_hand=add_ipykernel(interpreter, installers),
        proof=PACKAGE,
    )


def managed_plan(root: Path, installers: Installers) -> BuildPlan:
    """Return how the managed environment is built."""
    python = f"{root}/bin/python"
    if installers.uv is not None:
        uv = installers.uv
        steps: tuple[tuple[str, ...], ...] = (
            (uv, "venv", "--seed", "--python", installers.python, "{place}"),
            (uv, "pip", "install", "--compile-bytecode", "--python", python, REQUIREMENT),
        )
    else:
        steps = (
            (installers.python, "-m", "venv", "{place}"),
            (python, "-m", "pip", "install", *_PLAIN, REQUIREMENT),
        )
    by_hand = " && ".join(shlex.join(step) for step in steps).replace("'{place}'", shlex.quote(str(root)))
    return BuildPlan(
        target=root,
        what="the managed environment",
        name="managed",
        tool="uv" if installers.uv is not None else "venv and pip",
        steps=steps,
        by_hand=by_hand,
        in_place=True,
        proof="bin/python",
    )


def add_ipykernel(interpreter: Interpreter, installers: Installers) -> str:
    """Return the exact command that gives an interpreter its own ipykernel."""
    python = interpreter.executable
    if interpreter.pip:
        return shlex.join((python, "-m", "pip", "install", PACKAGE))
    if installers.uv is not None:
        return shlex.join((installers.uv, "pip", "install", "--python", python, PACKAGE))
    if installers.pip:
        return shlex.join((installers.python, "-m", "pip", "--python", python, "install", PACKAGE))
    return f"{shlex.join((python, '-m', 'ensurepip'))} && {shlex.join((python, '-m', 'pip', 'install', PACKAGE))}"


# -- building ----------------------------------------------------------------------------------------------------------


class BuildFailedError(StartFailedError):
    """Something for kernels could not be built. `hint` is the command that a person can run instead."""


@dataclass(slots=True)
class _Build:
    """A build under way, and who listens to it."""

    task: asyncio.Task[None]
    listeners: list[Tell] = field(default_factory=list)


class Builds:
    """All builds of one control plane."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._running: dict[str, _Build] = {}

    async def ensure(self, plan: BuildPlan, env: Mapping[str, str], tell: Tell) -> None:
        """See to it that `plan.target` is there, whole; returns when it is.

        Args:
            plan: What to make.
            env: For the builders.
            tell: Gets a line at a time; called on the loop.

        Raises:
            BuildFailedError: It cannot be had.
        """
        if await asyncio.to_thread(plan.is_complete):
            return
        key = str(plan.target)
        build = self._running.get(key)
        if build is None:
            build = self._running[key] = _Build(asyncio.create_task(self._build(plan, env), name=f"build {key}"))
            build.task.add_done_callback(lambda done: self._ended(key, done))
        build.listeners.append(tell)
        try:
            await join(build.task, plan.what)
        finally:
            build.listeners.remove(tell)

    def _ended(self, key: str, done: asyncio.Task[None]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # whoever still waits gets it; where nobody does, it is no news

    async def close(self) -> None:
        """End all builds; their programs are stopped."""
        tasks = [build.task for build in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _build(self, plan: BuildPlan, env: Mapping[str, str]) -> None:
        key = str(plan.target)

        def tell(line: str) -> None:
            for listener in tuple(self._running[key].listeners):
                listener(line)

        try:
            async with asyncio.timeout(BUILD_SECONDS), _locked(plan.target, tell):
                if not await asyncio.to_thread(plan.is_complete):
                    await self._make(plan, env, tell)
        except TimeoutError:
            raise _failure(plan, f"it took longer than {BUILD_SECONDS:g} s") from None
        except OSError as error:
            raise _failure(plan, f"{error.strerror or error}: {error.filename or plan.target}") from error

    async def _make(self, plan: BuildPlan, env: Mapping[str, str], tell: Tell) -> None:
        started = time.monotonic()
        tell(f"building {plan.what} in {plan.target} with {plan.tool}")
        await asyncio.to_thread(_clear, plan)
        place = plan.target if plan.in_place else part_of(plan.target)
        for argv in plan.commands(str(place)):
            await self._step(plan, Program(argv, str(plan.target.parent), env), tell)
        await asyncio.to_thread(_finish, plan)
        tell(f"built {plan.what} in {time.monotonic() - started:.1f} s")

    async def _step(self, plan: BuildPlan, program: Program, tell: Tell) -> None:
        last = ["it printed nothing"]

        def heard(line: str) -> None:
            last[:] = [line]
            tell(line)

        try:
            answer = await self._steps.follow(plan.name, program, heard)
        except StartFailedError as error:
            raise _failure(plan, f"{program.argv[0]} cannot be started: {error.detail}") from error
        if answer.code != 0:
            raise _failure(plan, f"{os.path.basename(program.argv[0])} {answer.words}: {last[0][:300]}")


def _failure(plan: BuildPlan, why: str) -> BuildFailedError:
    detail = f"cannot build {plan.what}: {why}"
    return BuildFailedError(detail, hint=plan.by_hand, reason="spawn_failed", stage="build")


@contextlib.asynccontextmanager
async def _locked(target: Path, tell: Tell) -> AsyncIterator[None]:
    """Exclude other processes that build the same; ends with the process that holds it, however that ends."""
    os.makedirs(target.parent, mode=0o700, exist_ok=True)
    descriptor = os.open(target.with_name(f".lock-{target.name}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        waited = False
        while not _try_lock(descriptor):
            if not waited:
                tell(f"another process builds {target}; waiting for it")
            waited = True
            await asyncio.sleep(LOCK_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear(plan: BuildPlan) -> None:
    """Take away what earlier builds of the same left, links without what they lead to; and mark that one begins."""
    folder, name = plan.target.parent, plan.target.name
    if os.path.lexists(plan.target):
        os.rename(plan.target, folder / f"{_TRASH}{name}-{secrets.token_hex(4)}")
    for left in os.listdir(folder):
        if left == f"{_PART}{name}" or left.startswith(f"{_TRASH}{name}-"):
            path = folder / left
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            else:
                shutil.rmtree(path)
    if plan.in_place:
        part_of(plan.target).touch(mode=0o600)


def _finish(plan: BuildPlan) -> None:
    """Declare the build whole."""
    if plan.in_place:
        part_of(plan.target).unlink()
    else:
        os.rename(part_of(plan.target), plan.target)
