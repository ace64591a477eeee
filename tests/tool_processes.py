"""Real processes behind the ports of the tools room, without a keeper: a runner of build steps, a probe of a tool."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import tempfile
import time
from typing import IO, TYPE_CHECKING

from ports import free_port
from supervisord_py.errors import StartFailedError, TimedOutError, ToolFailedError
from supervisord_py.tools.checking.validator import ProbeAnswer, ProbeStop
from supervisord_py.tools.declaring.environment import build_environment
from supervisord_py.tools.declaring.interpreter import argv_for, find_interpreter
from supervisord_py.tools.making.sync import OutputLine, StepEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from supervisord_py.tools.making.sync import BuildCommand
    from supervisord_py.tools.spec import ToolSpec


async def run_step(command: BuildCommand) -> AsyncGenerator[OutputLine | StepEnd, None]:
    """Run a build step as a child of the test; killed when the generator is closed early."""
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        cwd=command.cwd,
        env=dict(command.env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            yield OutputLine(line.decode().rstrip())
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    yield StepEnd(process.returncode, f"exited {process.returncode}")


class SubprocessProbe:
    """One instance of a tool as a child of the test, on a port that was free a moment ago."""

    def __init__(self, spec: ToolSpec, source: Mapping[str, str] | None = None) -> None:
        self.spec = spec
        self.source = os.environ if source is None else source
        self.process: asyncio.subprocess.Process | None = None
        self.port = 0
        self.stops = 0
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop

    async def start(self, extra_env: Mapping[str, str], *, timeout_seconds: float) -> float:
        self.port = free_port()
        interpreter = None if self.spec.command else find_interpreter(self.spec)
        started = time.monotonic()
        self.process = await asyncio.create_subprocess_exec(
            *argv_for(self.spec, self.port, interpreter),
            cwd=self.spec.folder,
            env=dict(build_environment(self.spec, self.source, extra=extra_env).env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )
        exited = asyncio.ensure_future(self.process.wait())
        try:
            while not await asyncio.to_thread(self._accepts):
                if (await asyncio.wait({exited}, timeout=0.05))[0]:
                    raise StartFailedError(
                        f"exited {exited.result()} right after the start",
                        stderr_tail=self.spawn_log(),
                        hint="see stderr",
                    )
                if time.monotonic() - started > timeout_seconds:
                    raise StartFailedError("never ready", stderr_tail=self.spawn_log())
        finally:
            exited.cancel()
        return (time.monotonic() - started) * 1000

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    async def get(self, path: str, *, timeout_seconds: float) -> ProbeAnswer:
        return await asyncio.to_thread(self._ask, "GET", path, b"", {}, timeout_seconds)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float) -> ProbeAnswer:
        return await asyncio.to_thread(self._ask, "POST", path, body, headers, timeout_seconds)

    async def first_chunk(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float
    ) -> ProbeAnswer:
        return await asyncio.to_thread(self._ask, method, path, body, headers, timeout_seconds, 1)

    def _ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout_seconds: float, size: int = -1
    ) -> ProbeAnswer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read() if size < 0 else response.read1()
            return ProbeAnswer(response.status, {key.lower(): each for key, each in response.getheaders()}, content)
        except TimeoutError:
            raise TimedOutError(f"{method} {path}: no answer in {timeout_seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ToolFailedError(f"{method} {path}: {error!r}") from None
        finally:
            connection.close()

    async def stop(self) -> ProbeStop:
        self.stops += 1
        started, killed = time.monotonic(), False
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), self.spec.stop_timeout_seconds)
            except TimeoutError:
                killed = True
                self.process.kill()
                await self.process.wait()
        self._log = self.spawn_log()
        self._stderr.close()
        return ProbeStop(time.monotonic() - started, killed=killed)

    def spawn_log(self) -> str:
        if self._stderr.closed:
            return self._log
        self._stderr.seek(0)
        return self._stderr.read().decode()
