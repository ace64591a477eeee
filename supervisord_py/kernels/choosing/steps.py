"""Small programs run as children of the placement: an interpreter that is asked something, a step of a build.

Whoever stops waiting, for whatever reason, stops the whole tree of the program first. Each running program has a unit
of its own (`kernel-env:…`), so that no two outputs mix.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from supervisord_py.errors import ShuttingDownError
from supervisord_py.process.output import Chunk, OutputReader, Stream
from supervisord_py.process.spec import ChildSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping

    from supervisord_py.process.output import Cursor, Gap
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child, ExitRecord

T = TypeVar("T")
KIND = "kernel-env"
GRACE_SECONDS = 1.0
LOOK_SECONDS = 0.1
"""How often the output of a build is looked at; people watch it."""
MAX_ANSWER = 256 * 1024
MAX_LINE = 2000
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `env` is complete."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and the end of what it printed. Exactly one of `code` and `signal` is set."""

    code: int | None
    signal: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def words(self) -> str:
        """Say how it ended, for people."""
        return f"was killed by signal {self.signal}" if self.code is None else f"exits with {self.code}"

    @property
    def last_line(self) -> str:
        """The last thing it said, on stderr rather than on stdout; "" where it said nothing."""
        for text in (self.stderr, self.stdout):
            found = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
            if found:
                return found[:300]
        return ""


class Steps:
    """Runs programs; made for one control plane."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._busy: set[str] = set()

    async def open(self) -> None:
        """Stop what an earlier control plane left running; its results are nobody's."""
        left = await self._placement.list(f"{KIND}:")
        await asyncio.gather(*(self._finish(child.key) for child in left))

    async def ask(self, program: Program) -> Answer:
        """Run a program to its end and return what it printed.

        Raises:
            StartFailedError: It cannot be started.
        """
        with self._unit("ask") as unit:
            async with self._held(unit, program) as child:
                record = await self._placement.wait(child.key)
            return await asyncio.to_thread(self._read, child, record)

    async def follow(self, name: str, program: Program, tell: Callable[[str], None]) -> Answer:
        """Run a step of a build, telling each line that it prints; the answer holds no text.

        Raises:
            StartFailedError: It cannot be started.
        """
        with self._unit(name) as unit:
            async with self._held(unit, program) as child, contextlib.aclosing(self._lines(child)) as lines:
                async for line in lines:
                    tell(line)
                record = await self._placement.wait(child.key)
            return Answer(record.code, record.signal)

    @contextlib.contextmanager
    def _unit(self, name: str) -> Iterator[str]:
        """Lend a unit that nobody else uses now."""
        number = 0
        while (unit := f"{KIND}:{name}-{number}") in self._busy:
            number += 1
        self._busy.add(unit)
        try:
            yield unit
        finally:
            self._busy.discard(unit)

    @contextlib.asynccontextmanager
    async def _held(self, unit: str, program: Program) -> AsyncIterator[Child]:
        """Lend a running program; afterwards its tree is gone and its pipes are drained."""
        key = self._placement.new_key()
        try:
            yield await self._placement.spawn(key, ChildSpec(unit, program.argv, program.cwd, program.env))
        finally:
            await asyncio.shield(self._finish(key))

    async def _finish(self, key: str) -> None:
        """Stop whatever lives of a program; one whose tree cannot be stopped is not released."""
        report = await self._placement.stop(key, grace_seconds=GRACE_SECONDS, reason="cancelled")
        if not report.survivors:
            await self._placement.release(key)

    def _read(self, child: Child, record: ExitRecord) -> Answer:
        reader = OutputReader.of(self._placement.log_dir, child.unit)
        end = reader.end()
        stdout, stderr = (
            reader.tail_bytes(child.log_position, end, stream, MAX_ANSWER).decode("utf-8", "replace")
            for stream in (Stream.STDOUT, Stream.STDERR)
        )
        return Answer(record.code, record.signal, stdout, stderr)

    async def _lines(self, child: Child) -> AsyncGenerator[str, None]:
        """Yield the lines of a child until it has exited and everything that it printed was read."""
        reader = OutputReader.of(self._placement.log_dir, child.unit)
        lines = _Lines()
        position: int | Cursor = child.log_position
        exited = asyncio.ensure_future(self._placement.wait(child.key))
        drained = False
        try:
            while True:
                batch = await asyncio.to_thread(reader.read, position)
                position = batch.cursor
                for line in lines.feed(batch.items):
                    yield line
                if batch.at_end and drained:
                    break
                if batch.at_end and (await asyncio.wait({exited}, timeout=LOOK_SECONDS))[0]:
                    await self._placement.stop(child.key, grace_seconds=GRACE_SECONDS, reason="exit")
                    drained = True
        finally:
            exited.cancel()
            await asyncio.gather(exited, return_exceptions=True)
        for line in lines.rest():
            yield line


class _Lines:
    """Cuts the chunks of two streams into lines; a progress bar's carriage return ends one, too."""

    def __init__(self) -> None:
        self._open: dict[int, bytes] = {}

    def feed(self, items: Iterable[Chunk | Gap]) -> Iterator[str]:
        """Yield the lines that some items complete; of a line without end pieces."""
        for item in items:
            if isinstance(item, Chunk):
                *whole, rest = _LINE_END.split(self._open.get(item.stream, b"") + item.data)
                if len(rest) > MAX_LINE:
                    whole, rest = [*whole, rest], b""
                self._open[item.stream] = rest
                yield from _texts(whole)

    def rest(self) -> Iterator[str]:
        """Yield what never got its end."""
        yield from _texts(self._open.values())


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    return (line[:MAX_LINE].decode("utf-8", "replace").rstrip() for line in lines if line.strip())


async def join(task: asyncio.Task[T], what: str) -> T:
    """Return the outcome of a shared task (`what` it does, for people), which goes on when the caller is cancelled.

    Raises:
        ShuttingDownError: The end of the control plane ended it.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ours = asyncio.current_task()
        if task.cancelled() and ours is not None and not ours.cancelling():
            raise ShuttingDownError(f"the daemon is stopping; {what} was not finished") from None
        raise
