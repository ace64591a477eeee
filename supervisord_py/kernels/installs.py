"""What is installed for kernels: overlays with ipykernel, and the managed environment; with uv, else pip.

An install is whole or not there: it is made in place beside a mark, and counts when the mark is gone; what was killed
half-way is cleared away by the next one. An install goes on when the call that asked for it gives up.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from supervisord_py.errors import ShuttingDownError, StartFailedError
from supervisord_py.kernels.choice import PROGRAMS
from supervisord_py.process import program
from supervisord_py.process.keeper_client import KeeperClient

REQUIREMENT = "ipykernel>=6.29,<8"  # kernels that we are tested with; 6.29 is the last one for Python 3.8
INSTALLER_SETTINGS = ("UV_", "PIP_", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to an install, not to kernels."""
INSTALL_SECONDS = 1800.0


class Install(msgspec.Struct, frozen=True):
    """Something that can be installed into the folder `target`; `proof` must be there in it."""

    target: Path
    what: str  # in words for people
    steps: tuple[tuple[str, ...], ...]
    proof: str
    by_hand: str  # the command that a person can run instead


class Installers(msgspec.Struct, frozen=True):
    """What there is to install with: the daemon's interpreter, and the path of uv."""

    python: str
    uv: str | None = None

    def overlay(self, python: str, overlay: Path, *, has_pip: bool) -> Install | None:
        if self.uv is None and not has_pip:
            return None
        step = (*self._pip_install(python), "--target", str(overlay), REQUIREMENT)
        what, by_hand = f"an overlay with ipykernel for {python}", self.add_ipykernel(python, has_pip=has_pip)
        return Install(overlay, what, (step,), "ipykernel", by_hand)

    def managed(self, root: Path) -> Install:
        make: tuple[str, ...] = (self.python, "-m", "venv", str(root))
        if self.uv is not None:
            make = (self.uv, "venv", "--seed", "--python", self.python, str(root))
        steps = (make, (*self._pip_install(f"{root}/bin/python"), REQUIREMENT))
        return Install(root, "the managed environment", steps, "bin/python", " && ".join(map(shlex.join, steps)))

    def add_ipykernel(self, python: str, *, has_pip: bool) -> str:
        """Return the exact command that gives an interpreter its own ipykernel."""
        if not has_pip and self.uv is not None:
            return shlex.join((self.uv, "pip", "install", "--python", python, "ipykernel"))
        command = shlex.join((python, "-m", "pip", "install", "ipykernel"))
        return command if has_pip else f"{shlex.join((python, '-m', 'ensurepip'))} && {command}"

    def _pip_install(self, python: str) -> tuple[str, ...]:
        if self.uv is not None:
            return (self.uv, "pip", "install", "--python", python, "--compile-bytecode")
        return (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")


def find_installers(path: str) -> Installers:
    """Look for uv beside the daemon's interpreter and on `path`. File I/O."""
    beside = Path(sys.executable).with_name("uv")
    return Installers(sys.executable, str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=path))


def mark_of(target: Path) -> Path:
    return target.with_name(f".part-{target.name}")


def is_complete(target: Path, proof: str) -> bool:
    """Say whether something was installed, whole. File I/O."""
    return (target / proof).exists() and not os.path.lexists(mark_of(target))


class InstallFailedError(StartFailedError):
    """Something for kernels could not be installed. `hint` is the command that a person can run instead."""


class Installs:
    """Installs, each target once at a time; `close` ends them."""

    def __init__(self, client: KeeperClient) -> None:
        self._client = client
        self._running: dict[Path, asyncio.Task[None]] = {}

    async def ensure(self, install: Install, env: Mapping[str, str], progress: Callable[[str], None]) -> None:
        """See to it that `install.target` is there, whole; `progress` gets short steps, on the loop.

        Raises InstallFailedError: it cannot be had; ShuttingDownError: the daemon stops.
        """
        task = self._running.get(install.target)
        if task is None:
            task = asyncio.create_task(self._make(install, env, progress), name=f"install {install.target}")
            self._running[install.target] = task
            task.add_done_callback(lambda _: self._running.pop(install.target))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        else:
            progress(f"{install.what} is being built; waiting for it")
        await asyncio.wait({task})
        if task.cancelled():
            raise ShuttingDownError(f"the daemon is stopping; {install.what} was not finished")
        task.result()

    async def close(self) -> None:
        tasks = tuple(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, install: Install, env: Mapping[str, str], progress: Callable[[str], None]) -> None:
        target = install.target
        if await asyncio.to_thread(is_complete, target, install.proof):
            return
        started, log = time.monotonic(), target.with_name(f"{target.name}.log")
        progress(f"building {install.what} in {target} with {Path(install.steps[0][0]).name} (its output: {log})")
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(_clear, target)
            with log.open("w", encoding="utf-8", errors="replace") as written:
                for argv in install.steps:
                    ended = await program.run(
                        self._client,
                        argv,
                        name=f"{PROGRAMS}install-{target.name}",
                        cwd=str(target.parent),
                        env=env,
                        timeout=INSTALL_SECONDS,
                        on_line=lambda line: print(line, file=written, flush=True),
                    )
                    if ended.code != 0:
                        raise StartFailedError(f"{Path(argv[0]).name} {how_it_ended(ended)}")
            mark_of(target).unlink()
        except TimeoutError:  # an OSError, too
            raise _failed(install, f"it took longer than {INSTALL_SECONDS:g} s") from None
        except StartFailedError as error:
            raise _failed(install, error.detail) from error
        except OSError as error:
            raise _failed(install, f"{error.strerror or error}: {error.filename or target}") from error
        progress(f"built {install.what} in {time.monotonic() - started:.1f} s")


def _failed(install: Install, why: str) -> InstallFailedError:
    detail = f"cannot build {install.what}: {why}"
    return InstallFailedError(detail, hint=install.by_hand, reason="spawn_failed", stage="build")


def how_it_ended(ended: program.Completed) -> str:
    return f"{ended.words}: {ended.last_line}" if ended.last_line else ended.words


def _clear(target: Path) -> None:
    """Mark that an install begins; take away what an earlier one left, a link without what it leads to."""
    mark_of(target).touch(mode=0o600)
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
