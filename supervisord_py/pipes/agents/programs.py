"""Small programs that are asked something: an agent's version, a command that prints a key. Children of the placement.

Law: what they print is never stored. Their stdout and stderr are files in memory, not the log segments of other
children, because `cmd:` prints keys. /bin/sh only puts those descriptors in their places: the words of the program
reach it as arguments and are never parsed. Who stops waiting stops the whole tree first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from supervisord_py.process.spec import ChildSpec, GrantedFd, ResourceLimit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from supervisord_py.process.placement import Placement

KIND = "pipe-probe"
GRACE_SECONDS = 1.0
MAX_ANSWER = 256 * 1024
MAX_FILE = 16 * 1024 * 1024
_PLUMB = 'exec "$@" >&3 2>&4 3>&- 4>&-'
_STREAMS = {3: "stdout", 4: "stderr"}


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `argv[0]` is an absolute path, `env` is complete."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and the end of what it printed, which is in no `repr`. One of `code` and `signal` is set."""

    code: int | None
    signal: int | None = None
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)

    @property
    def words(self) -> str:
        """Say how it ended, for people."""
        return f"was killed by signal {self.signal}" if self.code is None else f"exits with {self.code}"

    @property
    def last_line(self) -> str:
        """The last thing it said, on stderr rather than stdout; "" where it said nothing."""
        lines = [line.strip() for text in (self.stdout, self.stderr) for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


class Ask(Protocol):
    """Runs a program and returns what it answered."""

    def __call__(self, program: Program, *, seconds: float) -> Awaitable[Answer]:
        """Run it to its end; `seconds` is the deadline.

        Raises:
            TimeoutError: It did not end in time; nothing of it is left.
            StartFailedError: It cannot be started.
        """


class Programs:
    """Runs small programs; made for one control plane. `ask` is an `Ask`."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    async def open(self) -> None:
        """Stop what an earlier control plane left running; its answers are nobody's."""
        left = await self._placement.list(f"{KIND}:")
        await asyncio.gather(*(self._finish(child.key) for child in left))

    async def ask(self, program: Program, *, seconds: float) -> Answer:
        """Run a program to its end; see `Ask`."""
        key = self._placement.new_key()
        async with self._memory(key) as files:
            grants = tuple(GrantedFd(number, _stored(key, number)) for number in files)
            spec = ChildSpec(
                f"{KIND}:ask",
                ("/bin/sh", "-c", _PLUMB, "px-ask", *program.argv),
                program.cwd,
                program.env,
                limits=(ResourceLimit("fsize", MAX_FILE, MAX_FILE),),
                grants=grants,
            )
            try:
                async with asyncio.timeout(seconds):
                    await self._placement.spawn(key, spec)
                    record = await self._placement.wait(key)
            finally:
                await asyncio.shield(self._finish(key))
            texts = {_STREAMS[number]: _tail(descriptor) for number, descriptor in files.items()}
            return Answer(record.code, record.signal, **texts)

    @contextlib.asynccontextmanager
    async def _memory(self, key: str) -> AsyncIterator[dict[int, int]]:
        """Lend one file in memory for each stream, deposited with the keeper for the time of the child."""
        files = {number: _in_memory() for number in _STREAMS}
        try:
            for number, descriptor in files.items():
                await self._placement.put_fd(_stored(key, number), descriptor)
            yield files
        finally:
            for descriptor in files.values():
                os.close(descriptor)
            await asyncio.shield(self._forget(key))

    async def _forget(self, key: str) -> None:
        for number in _STREAMS:
            await self._placement.drop_fd(_stored(key, number))

    async def _finish(self, key: str) -> None:
        """Stop whatever lives of a program; one whose tree cannot be stopped is not released."""
        if await self._placement.attach(key) is None:
            return
        report = await self._placement.stop(key, grace_seconds=GRACE_SECONDS, reason="cancelled")
        if not report.survivors:
            await self._placement.release(key)


def _stored(key: str, number: int) -> str:
    return f"{KIND}:{key}:{number}"


if sys.platform == "linux":

    def _in_memory() -> int:
        """Return a file that no path leads to and no disk holds."""
        return os.memfd_create("px-answer")

else:

    def _in_memory() -> int:
        """Return a file that no path leads to."""
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, MAX_ANSWER, max(0, size - MAX_ANSWER)).decode("utf-8", "replace")
