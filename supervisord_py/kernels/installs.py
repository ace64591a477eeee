"""What is installed for kernels: overlays with ipykernel, and the managed environment; with uv, else pip.

An install is whole or not there. An overlay is made under another name and renamed; the managed environment, which
knows its own path, is made in place beside a mark that says so, and counts when the mark is gone. A lock excludes other
processes that make the same. What was killed half-way counts for nothing, and the next one clears it away. An install
goes on when the call that asked for it gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from supervisord_py.errors import ShuttingDownError, StartFailedError
from supervisord_py.process.logs import Chunk, LogReader, Stream
from supervisord_py.process.model import ChildSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import ExitRecord

UNITS = "kernel-env:"
"""How the units of programs begin that are run to choose or install."""
REQUIREMENT = "ipykernel>=6.29,<8"
"""Kernels that we are tested with; 6.29 is the last one for Python 3.8."""
INSTALLER_SETTINGS = ("UV_", "PIP_", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to an install, not to kernels."""
INSTALL_SECONDS = 1800.0
LOOK_SECONDS = 0.1
KEPT_BYTES = 256 * 1024
_PLAIN = ("--no-input", "--disable-pip-version-check")


class Completed(msgspec.Struct, frozen=True):
    """How a program ended (exactly one of `code` and `signal` is set), and the end of what it printed."""

    code: int | None
    signal: int | None
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """Say how it ended, and the last thing it said, on stderr rather than on stdout."""
        end = f"was killed by signal {self.signal}" if self.code is None else f"exits with {self.code}"
        last = next(iter((self.stderr.strip() or self.stdout.strip()).splitlines()[-1:]), "").strip()
        return f"{end}: {last[:300]}" if last else end


async def run(
    placement: KeeperClient,
    argv: Sequence[str],
    *,
    unit: str,
    cwd: str,
    env: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109  # the signature of Supervisor.run
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a short program to its end. Whoever stops waiting, for whatever reason, stops its whole tree first.

    Raises:
        StartFailedError: It cannot be started.
        TimeoutError: It took longer than `timeout` seconds.
    """
    key = placement.new_key()
    ended: asyncio.Task[ExitRecord] | None = None
    said = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    open_lines = {Stream.STDOUT: b"", Stream.STDERR: b""}
    try:
        async with asyncio.timeout(timeout):
            child = await placement.spawn(key, ChildSpec(unit, tuple(argv), cwd, env))
            exited = ended = asyncio.ensure_future(placement.wait(key))
            reader, position, drained = LogReader.of(placement.log_dir, unit), child.log_position, False
            while True:
                batch = await asyncio.to_thread(reader.read, position)
                position = batch.cursor  # type: ignore[assignment]
                for chunk in batch.items:
                    if not isinstance(chunk, Chunk):
                        continue
                    said[chunk.stream] += chunk.data
                    del said[chunk.stream][:-KEPT_BYTES]
                    if on_line is not None:
                        *whole, rest = re.split(rb"[\r\n]+", open_lines[chunk.stream] + chunk.data)
                        open_lines[chunk.stream] = rest
                        for line in filter(None, whole):
                            on_line(line.decode("utf-8", "replace"))
                if batch.at_end and drained:
                    break
                if batch.at_end and (await asyncio.wait({exited}, timeout=LOOK_SECONDS))[0]:
                    await placement.stop(key, grace_seconds=1.0, reason="exit")  # nothing of it writes any more
                    drained = True
            record = exited.result()
            texts = (said[stream].decode("utf-8", "replace") for stream in (Stream.STDOUT, Stream.STDERR))
            return Completed(record.code, record.signal, *texts)
    finally:
        if ended is not None:
            ended.cancel()
        await asyncio.shield(_stop(placement, key))


async def _stop(placement: KeeperClient, key: str) -> None:
    """Stop whatever lives of a program; one whose tree cannot be stopped is not released."""
    report = await placement.stop(key, grace_seconds=1.0, reason="cancelled")
    if not report.survivors:
        await placement.release(key)


async def stop_left_over(placement: KeeperClient) -> None:
    """Stop what an earlier control plane left running; its results are nobody's."""
    await asyncio.gather(*(_stop(placement, child.key) for child in await placement.list(UNITS)))


# -- what can be installed, and how ------------------------------------------------------------------------------------


class Installers(msgspec.Struct, frozen=True):
    """What there is to install with: the daemon's interpreter, whether it has a pip, and the path of uv."""

    python: str
    pip: bool = False
    uv: str | None = None

    def pip_install(self, python: str, *, has_pip: bool) -> tuple[str, ...] | None:
        """Return the beginning of a command that installs for an interpreter; None where there is nothing to do it."""
        if self.uv is not None:
            return (self.uv, "pip", "install", "--python", python, "--compile-bytecode")
        if has_pip:
            return (python, "-m", "pip", "install", *_PLAIN)
        return (self.python, "-m", "pip", "--python", python, "install", *_PLAIN) if self.pip else None

    def add_ipykernel(self, python: str, *, has_pip: bool) -> str:
        """Return the exact command that gives an interpreter its own ipykernel."""
        if has_pip:
            return shlex.join((python, "-m", "pip", "install", "ipykernel"))
        command = self.pip_install(python, has_pip=False)
        if command is None:
            ensured, added = (python, "-m", "ensurepip"), (python, "-m", "pip", "install", "ipykernel")
            return f"{shlex.join(ensured)} && {shlex.join(added)}"
        return shlex.join((*(word for word in command if word not in {*_PLAIN, "--compile-bytecode"}), "ipykernel"))


def find_installers(path: str) -> Installers:
    """Return what there is to install with, uv looked for beside the daemon's interpreter and on `path`. File I/O."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=path)
    return Installers(sys.executable, pip=importlib.util.find_spec("pip") is not None, uv=uv)


def part_of(target: Path) -> Path:
    """Return the mark that an install in place is not whole, or the place where another is made until it is."""
    return target.with_name(f".part-{target.name}")


class Install(msgspec.Struct, frozen=True):
    """Something to be made."""

    target: Path
    what: str  # in words for people
    steps: tuple[tuple[str, ...], ...]  # `{place}` is where it is made
    by_hand: str  # the command that a person can run instead
    proof: str  # what must be there in it
    in_place: bool = False  # it is made where it will be, because it knows its own path

    def is_complete(self) -> bool:
        """Say whether it is there, whole. File I/O."""
        return (self.target / self.proof).exists() and not (self.in_place and os.path.lexists(part_of(self.target)))


def overlay_install(python: str, overlay: str, installers: Installers, *, has_pip: bool) -> Install | None:
    """Return how the overlay of an interpreter is made; None where there is nothing to make it with."""
    start = installers.pip_install(python, has_pip=has_pip)
    if start is None:
        return None
    what, by_hand = f"an overlay with ipykernel for {python}", installers.add_ipykernel(python, has_pip=has_pip)
    return Install(Path(overlay), what, ((*start, "--target", "{place}", REQUIREMENT),), by_hand, "ipykernel")


def managed_install(root: Path, installers: Installers) -> Install:
    """Return how the managed environment is made."""
    python = f"{root}/bin/python"
    if installers.uv is not None:
        make: tuple[str, ...] = (installers.uv, "venv", "--seed", "--python", installers.python, "{place}")
    else:
        make = (installers.python, "-m", "venv", "{place}")
    steps = (make, (*(installers.pip_install(python, has_pip=True) or ()), REQUIREMENT))
    by_hand = " && ".join(shlex.join(step) for step in steps).replace("'{place}'", shlex.quote(str(root)))
    return Install(root, "the managed environment", steps, by_hand, "bin/python", in_place=True)


class InstallFailedError(StartFailedError):
    """Something for kernels could not be installed. `hint` is the command that a person can run instead."""

    def __init__(self, install: Install, why: str) -> None:
        super().__init__(
            f"cannot build {install.what}: {why}", hint=install.by_hand, reason="spawn_failed", stage="build"
        )


class Installs:
    """All installs of one control plane."""

    def __init__(self, placement: KeeperClient) -> None:
        self._placement = placement
        self._running: dict[Path, asyncio.Task[None]] = {}

    async def ensure(self, install: Install, env: Mapping[str, str], progress: Callable[[str], None]) -> None:
        """See to it that `install.target` is there, whole; `progress` gets short steps, on the loop.

        Raises:
            InstallFailedError: It cannot be had.
            ShuttingDownError: The daemon stops.
        """
        if await asyncio.to_thread(install.is_complete):
            return
        task = self._running.get(install.target)
        if task is None:
            task = asyncio.create_task(self._make(install, env, progress), name=f"install {install.target}")
            self._running[install.target] = task
            task.add_done_callback(lambda done: self._ended(install.target, done))
        else:
            progress(f"{install.what} is being built; waiting for it")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if task.cancelled() and ours is not None and not ours.cancelling():
                raise ShuttingDownError(f"the daemon is stopping; {install.what} was not finished") from None
            raise

    def _ended(self, target: Path, done: asyncio.Task[None]) -> None:
        del self._running[target]
        if not done.cancelled():
            done.exception()  # whoever still waits gets it; where nobody does, it is no news

    async def close(self) -> None:
        """End all installs; their programs are stopped."""
        tasks = tuple(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, install: Install, env: Mapping[str, str], progress: Callable[[str], None]) -> None:
        started = time.monotonic()
        target = install.target
        log = target.with_name(f"{target.name}.log")
        try:
            async with asyncio.timeout(INSTALL_SECONDS), _locked(target, progress):
                if await asyncio.to_thread(install.is_complete):
                    return
                tool = Path(install.steps[0][0]).name
                progress(f"building {install.what} in {target} with {tool} (its output: {log})")
                await asyncio.to_thread(_clear, install)
                place = str(target if install.in_place else part_of(install.target))
                with log.open("w", encoding="utf-8", errors="replace") as written:
                    for step in install.steps:
                        argv = tuple(word.replace("{place}", place) for word in step)
                        ended = await run(
                            self._placement,
                            argv,
                            unit=f"{UNITS}{target.name}",
                            cwd=str(target.parent),
                            env=env,
                            timeout=INSTALL_SECONDS,
                            on_line=lambda line: print(line, file=written, flush=True),
                        )
                        if ended.code != 0:
                            raise InstallFailedError(install, f"{Path(argv[0]).name} {ended.words}")
                if install.in_place:
                    part_of(install.target).unlink()
                else:
                    part_of(install.target).rename(target)
        except StartFailedError as error:
            raise (
                error if isinstance(error, InstallFailedError) else InstallFailedError(install, error.detail)
            ) from error
        except TimeoutError:
            raise InstallFailedError(install, f"it took longer than {INSTALL_SECONDS:g} s") from None
        except OSError as error:
            raise InstallFailedError(install, f"{error.strerror or error}: {error.filename or target}") from error
        progress(f"built {install.what} in {time.monotonic() - started:.1f} s")


@contextlib.asynccontextmanager
async def _locked(target: Path, progress: Callable[[str], None]) -> AsyncIterator[None]:
    """Exclude other processes that make the same; ends with the process that holds it, however that ends."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(target.with_name(f".lock-{target.name}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress(f"another process builds {target}; waiting for it")
                told = True
                await asyncio.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _clear(install: Install) -> None:
    """Take away what earlier installs of the same left, links without what they lead to; mark that one begins."""
    folder, name = install.target.parent, install.target.name
    if os.path.lexists(install.target):
        install.target.rename(folder / f".trash-{name}-{secrets.token_hex(4)}")
    for left in (part_of(install.target), *folder.glob(f".trash-{name}-*")):
        if left.is_symlink() or left.is_file():
            left.unlink()
        elif left.is_dir():
            shutil.rmtree(left)
    if install.in_place:
        part_of(install.target).touch(mode=0o600)
