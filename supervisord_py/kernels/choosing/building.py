"""What is built for kernels: overlays with ipykernel, and the managed environment.

Law: a build is whole or not there. An overlay is made under another name and renamed; the managed environment, which
knows its own path, is made in place beside a mark that says so, and counts when the mark is gone. Of two builds of one
thing, in one process or in several, the second waits and takes what the first has made. A build that was killed leaves
nothing that counts, and the next one clears it away; the installers' own caches make that one quick. A build goes on
when the call that asked for it gives up: the next call joins it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.choosing.joining import join
from supervisord_py.kernels.choosing.steps import Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.choosing.installers import BuildPlan
    from supervisord_py.kernels.choosing.steps import Steps

    Tell = Callable[[str], None]

BUILD_SECONDS = 1800.0
HOLD_OFF_SECONDS = 30.0
"""How long a failed build is not tried again: its failure is told at once instead."""
LOCK_LOOK_SECONDS = 0.2
_TRASH = ".trash-"
_PART = ".part-"


def part_of(target: Path) -> Path:
    """Return the mark that a build in place is not whole, or the place where another one is made until it is."""
    return target.with_name(f"{_PART}{target.name}")


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
        self._failed: dict[str, tuple[float, BuildFailedError]] = {}

    async def ensure(self, plan: BuildPlan, env: Mapping[str, str], tell: Tell) -> None:
        """See to it that `plan.target` is there, whole; returns when it is.

        Args:
            plan: What to make.
            env: For the builders.
            tell: Gets a line at a time; called on the loop.

        Raises:
            BuildFailedError: It cannot be had; told again at once for half a minute.
        """
        if await asyncio.to_thread(plan.is_complete):
            return
        key = str(plan.target)
        self._refuse_again(key)
        build = self._running.get(key)
        if build is None:
            build = self._running[key] = _Build(asyncio.create_task(self._build(plan, env), name=f"build {key}"))
            build.task.add_done_callback(lambda done: self._ended(key, done))
        build.listeners.append(tell)
        try:
            await join(build.task, plan.what)
        finally:
            build.listeners.remove(tell)

    def _refuse_again(self, key: str) -> None:
        when, error = self._failed.get(key, (float("-inf"), None))
        if error is not None and asyncio.get_running_loop().time() < when + HOLD_OFF_SECONDS:
            raise BuildFailedError(error.detail, hint=error.hint, **error.extra)

    def _ended(self, key: str, done: asyncio.Task[None]) -> None:
        del self._running[key]
        error = None if done.cancelled() else done.exception()
        self._failed.pop(key, None)
        if isinstance(error, BuildFailedError):
            self._failed[key] = (asyncio.get_running_loop().time(), error)

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
