"""What the tests of the pipes' requirements (A1 to I4) have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from pipe_rig import PipeRig, eventually
from supervisord_py.ledger.pipes import Execution
from waiting import PATIENCE

in_one_room = pytest.mark.asyncio(loop_scope="module")
"""Of a test that shares its room with the others of its file: its pipes bear its id, and it ends what it started."""

UNTIL_GATE = "while [ ! -e gate ]; do sleep 0.01; done"
TELL = """
[agents.tell]
argv = [
    "/bin/sh", "-c", '[ ! -e wait ] || while [ ! -e gate ]; do sleep 0.01; done; echo "$@"', "sh",
    ["--provider", "{provider}"], ["--model", "{model}"],
]
prompt = "stdin"
parser = "text"
"""
"""An agent that tells with which model it is run; where a file `wait` lies in its folder, once there is `gate`."""


async def begun(rig: PipeRig, name: str) -> int:
    """Run a pipe, and wait until its process is there; return the execution's id."""
    [queued] = await rig.room.run(name)
    await eventually(lambda: rig.running(queued.id), f"the start of {name}")
    return queued.id


async def ended(rig: PipeRig, pipe: str, count: int = 1) -> list[Execution]:
    """Return the executions of a pipe, oldest first, once so many are final and their slots are free."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await rig.rows(pipe)
            at_work = {live.id for live in rig.room.of_pipe(pipe)}
            if len([it for it in rows if it.status.is_final and it.id not in at_work]) >= count:
                return rows
            await asyncio.sleep(0.01)


@contextmanager
def settings(rig: PipeRig, **changes: Any) -> Iterator[None]:
    """Have other settings for a while."""
    rig.room.reconfigure(replace(rig.config, **changes))
    try:
        yield
    finally:
        rig.room.reconfigure(rig.config)


def presets(rig: PipeRig, text: str) -> None:
    """Write presets.toml, whole."""
    fresh = rig.config.presets_file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(rig.config.presets_file)


def preset(name: str, *lines: str) -> str:
    """Return the table of a preset."""
    return "\n".join((f"[presets.{name}]", *lines, ""))
