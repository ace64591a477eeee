"""Short programs: an agent's version, pip, uv, a command that prints a key. Children of the keeper
like all others.

What they print comes through a pipe of ours: it is never stored, because some of them print keys,
and lines are there as they are printed. Who stops waiting stops the whole tree first; what an
earlier control plane left is stopped at the next start, its answers are nobody's. While the keeper
does not answer, a stop goes on in the background.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import ChildSpec, ExitRecord, ResourceLimit
from supervisord_py.process.supervisor import start_error

KIND = "program"
GRACE_SECONDS = 1.0
MAX_BYTES = 256 * 1024  # what is kept of each stream: its end
_MAX_LINE = 16 * 1024
_DRAIN_SECONDS = 1.0
_LINE_END = re.compile(rb"\r\n|\n|\r")  # a progress bar's carriage return ends a line, too


class Completed(NamedTuple):
    """How a program ended, and the end of what it printed. One of `code` and `signal` is set."""

    code: int | None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""

    def __repr__(self) -> str:
        return f"Completed(code={self.code}, signal={self.signal})"  # what it printed may be a key

    @property
    def words(self) -> str:
        return (
            f"was killed by signal {self.signal}"
            if self.code is None
            else f"exits with {self.code}"
        )

    @property
    def last_line(self) -> str:
        """The last thing it said, on stderr rather than on stdout; "" where it said nothing."""
        for text in (self.stderr, self.stdout):
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return lines[-1][:300]
        return ""


async def run(
    client: KeeperClient,
    argv: Sequence[str],
    *,
    name: str,
    cwd: str,
    env: Mapping[str, str],
    timeout: float | None,  # noqa: ASYNC109  # past it the whole tree is stopped, too
    on_line: Callable[[str], None] | None = None,
    limits: tuple[ResourceLimit, ...] = (),
) -> Completed:
    """Run a program, as the unit `program:<name>`, to its end.

    `argv[0]` is an absolute path, or looked up on PATH of `env`, which is complete. `on_line` gets
    each line of both streams as it is printed; the text of the answer is then all in `stdout`.

    Raises TimeoutError if it did not end in time, and nothing of it is left; StartFailedError if it
    cannot be started, also for want of descriptors; KeeperTimeoutError if the keeper does not
    answer: it is unknown whether it runs.
    """
    key, unit = client.new_key(), f"{KIND}:{name}"
    kept = [bytearray() for _ in range(1 if on_line is not None else 2)]
    pipes = _open_pipes(len(kept), unit)
    reading = [
        asyncio.create_task(_collect(end, into, on_line))
        for (end, _), into in zip(pipes, kept, strict=True)
    ]
    try:
        async with asyncio.timeout(timeout):
            spec = ChildSpec(unit, tuple(argv), cwd, env, limits)
            try:
                await client.spawn(
                    key, replace(spec, stdout_fd=pipes[0][1], stderr_fd=pipes[-1][1])
                )
            finally:
                for _, end in pipes:
                    os.close(end)  # our copies: the pipes end with the tree
            record: ExitRecord = await client.wait(key)
    finally:
        try:
            # A caller that gives up meanwhile leaves the stop to go on.
            finishing = asyncio.shield(_finish(client, key))
            await client.unless_silent(finishing, f"{unit} ended", unit=unit)
            # something may survive and hold them open
            await asyncio.wait(reading, timeout=_DRAIN_SECONDS)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)
    return Completed(
        record.code, record.signal, *(text.decode("utf-8", "replace") for text in kept)
    )


def _open_pipes(count: int, unit: str) -> list[tuple[int, int]]:
    """Return pipes, each as its reading and its writing end. Raises StartFailedError if there are
    too few descriptors.

    None stays open then.
    """
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())  # noqa: PERF401 - a comprehension would lose those that were opened
    except OSError as error:
        for ends in pipes:
            for end in ends:
                os.close(end)
        raise start_error(unit, error) from error
    return pipes


async def stop_left_over(client: KeeperClient, names: str = "") -> None:
    """Stop what an earlier control plane left running of the programs whose names begin so."""
    await asyncio.gather(
        *(_finish(client, child.key) for child in await client.list(f"{KIND}:{names}"))
    )


async def _finish(client: KeeperClient, key: str) -> None:
    """Stop whatever lives of a program; one whose tree cannot be stopped is not released."""
    report = await client.stop(key, grace_seconds=GRACE_SECONDS, reason="cancelled")
    if not report.survivors:
        client.release(key)


async def _collect(end: int, kept: bytearray, on_line: Callable[[str], None] | None) -> None:
    reader, rest = asyncio.StreamReader(), b""
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", buffering=0)
    )
    try:
        while data := await reader.read(MAX_BYTES):
            kept += data
            del kept[:-MAX_BYTES]
            if on_line is not None:
                *lines, rest = _LINE_END.split(rest + data)
                if len(rest) > _MAX_LINE:
                    lines, rest = [*lines, rest], b""
                _tell(lines, on_line)
    finally:
        transport.close()
        if on_line is not None:
            _tell([rest], on_line)


def _tell(lines: list[bytes], on_line: Callable[[str], None]) -> None:
    for line in filter(bytes.strip, lines):
        on_line(line[:_MAX_LINE].decode("utf-8", "replace").rstrip())
