"""Runs the steps of a build through the placement, as the unit `sync:NAME`, and follows what they print."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING

from supervisord_py.process.output import Chunk, OutputReader
from supervisord_py.process.spec import ChildSpec
from supervisord_py.tools.making.sync import OutputLine, StepEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from supervisord_py.process.output import Cursor, Gap
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child, ExitRecord
    from supervisord_py.tools.making.sync import BuildCommand, Runner

GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""How often a build's output is looked at; people watch it."""
MAX_LINE = 2000
_LINE_END = re.compile(rb"\r\n|\n|\r")


def placement_runner(placement: Placement, name: str) -> Runner:
    """Return a runner whose steps are children of the placement, unit `sync:<name>`.

    Closing a step early stops its whole tree before the close returns.
    """

    async def run(command: BuildCommand) -> AsyncGenerator[OutputLine | StepEnd, None]:
        key = placement.new_key()
        spec = ChildSpec(f"sync:{name}", command.argv, str(command.cwd), command.env)
        child = await placement.spawn(key, spec)
        try:
            async with contextlib.aclosing(_lines(placement, child)) as lines:
                async for line in lines:
                    yield OutputLine(line)
            record = await placement.wait(key)
        finally:
            await asyncio.shield(_finish(placement, key))
        yield StepEnd(record.code, _words(record))

    return run


async def _finish(placement: Placement, key: str) -> None:
    """Stop whatever still lives of a step; a step whose tree cannot be stopped is not released."""
    report = await placement.stop(key, grace_seconds=GRACE_SECONDS, reason="cancelled")
    if not report.survivors:
        await placement.release(key)


def _words(record: ExitRecord) -> str:
    return f"was killed by signal {record.signal}" if record.code is None else f"exited {record.code}"


async def _lines(placement: Placement, child: Child) -> AsyncGenerator[str, None]:
    """Yield the lines of a child until it has exited and everything that it printed was read."""
    reader = OutputReader.of(placement.log_dir, child.unit)
    splitter = _Splitter()
    position: int | Cursor = child.log_position
    exited = asyncio.ensure_future(placement.wait(child.key))
    drained = False
    try:
        while True:
            batch = await asyncio.to_thread(reader.read, position)
            position = batch.cursor
            for line in splitter.feed_all(batch.items):
                yield line
            if batch.at_end and drained:
                break
            if batch.at_end and (await asyncio.wait({exited}, timeout=LOOK_SECONDS))[0]:
                await placement.stop(child.key, grace_seconds=GRACE_SECONDS, reason="exit")
                drained = True
    finally:
        exited.cancel()
        await asyncio.gather(exited, return_exceptions=True)
    for line in splitter.rest():
        yield line


class _Splitter:
    """Cuts the chunks of two streams into lines; a progress bar's carriage return ends one, too."""

    def __init__(self) -> None:
        self._open: dict[int, bytes] = {}

    def feed_all(self, items: Iterable[Chunk | Gap]) -> Iterator[str]:
        """Yield the lines that some items complete."""
        for item in items:
            yield from self.feed(item)

    def feed(self, item: Chunk | Gap) -> Iterator[str]:
        """Yield the lines that an item completes."""
        if not isinstance(item, Chunk):
            return
        *whole, rest = _LINE_END.split(self._open.get(item.stream, b"") + item.data)
        if len(rest) > MAX_LINE:
            whole, rest = [*whole, rest], b""
        self._open[item.stream] = rest
        yield from (self._text(line) for line in whole if line.strip())

    def rest(self) -> Iterator[str]:
        """Yield what never got its end."""
        yield from (self._text(line) for line in self._open.values() if line.strip())

    @staticmethod
    def _text(line: bytes) -> str:
        return line[:MAX_LINE].decode("utf-8", "replace").rstrip()
