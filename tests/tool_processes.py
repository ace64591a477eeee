"""A runner of build steps without a keeper."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from supervisord_py.tools.making.sync import StepEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from supervisord_py.tools.making.sync import BuildCommand


async def run_step(command: BuildCommand) -> AsyncGenerator[str | StepEnd, None]:
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
            yield line.decode().rstrip()
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    yield StepEnd(process.returncode, f"exited {process.returncode}")
