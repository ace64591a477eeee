"""The room of pipes under test: a real keeper, a real ledger, small commands as agents.

Control planes come and go.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeper.keeper_rig import RealKeeper
from pipe_texts import pipes_config, scripted_agent
from supervisord_py.ledger.pipes import Execution, ExecutionFilter
from supervisord_py.ledger.store import Ledger
from supervisord_py.pipes import output
from supervisord_py.pipes.context import Clocks
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.events import EventStream
from supervisord_py.process.keeper_client import KeeperClient
from waiting import PATIENCE, eventually

__all__ = ["PATIENCE", "eventually"]
in_one_room = pytest.mark.asyncio(loop_scope="module")
"""Of a test that shares its room with the others of its file: its pipes bear its id, and it ends
what it started.
"""

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
"""An agent that tells with which model it is run; where a file `wait` lies in its folder, once
there is `gate`.
"""
FAKE_AGENT = Path(__file__).parent / "pipes" / "fake_agent.py"


def preset(name: str, *lines: str) -> str:
    """Return the table of a preset."""
    return "\n".join((f"[presets.{name}]", *lines, ""))


class TurnedClocks:
    """Clocks that a test can turn: seconds are added to each of the three."""

    def __init__(self) -> None:
        self.wall, self.boot, self.awake = 0.0, 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        """Have the machine sleep: everything but the awake clock goes on."""
        self.wall += seconds
        self.boot += seconds

    def pass_by(self, seconds: float) -> None:
        self.sleep(seconds)
        self.awake += seconds

    @property
    def clocks(self) -> Clocks:
        real = Clocks()
        return Clocks(
            lambda: real.wall() + self.wall,
            lambda: real.boot() + self.boot,
            lambda: real.awake() + self.awake,
        )


class PipeRig:
    """One room, and what it told."""

    def __init__(self, folder: Path, keeper: RealKeeper) -> None:
        self.folder = folder
        self.keeper = keeper
        self.placement: KeeperClient
        self.ledger: Ledger
        self.events: EventStream
        self.room: Pipes
        self.time = TurnedClocks()
        quick: dict[str, Any] = {
            "stop_seconds": 1.0,
            "settle_seconds": 0.05,
            "preflight_seconds": 0.0,
        }
        self.config = pipes_config(
            folder, examples_dir=folder / "examples", timezone="UTC", **quick
        )
        self.environ = {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "HOME": str(folder),
        }
        for name in ("pipes", "examples"):
            (folder / name).mkdir()

    # -- control planes ----------------------------------------------------------------------------

    async def connect(self) -> None:
        self.placement = await self.keeper.client()

    async def open(self, *, scheduler: bool = True) -> None:
        self.ledger = await Ledger.open(self.folder / "state" / "pxd.db")
        self.events = await EventStream.open(self.ledger)
        around: dict[str, Any] = {"environ": self.environ, "clocks": self.time.clocks}
        self.room = Pipes(self.placement, self.ledger, self.events, self.config, **around)
        await self.room.open()
        if scheduler:
            self.room.start_scheduler()

    async def close(self) -> None:
        await self.room.close()
        await self.put_down()

    async def put_down(self) -> None:
        self.events.close()
        await self.ledger.close()

    async def replace(self) -> None:
        """Leave, and be the next control plane; what the keeper holds lives on."""
        await self.room.detach()
        await self.put_down()
        self.placement.close()
        self.keeper.end_control()
        await self.connect()
        await self.open()

    async def restart(self) -> None:
        """Stop everything in order, and open again."""
        await self.close()
        await self.open()

    # -- pipes -------------------------------------------------------------------------------------

    def write(self, name: str, front: str, body: str = "Do it.\n") -> Path:
        folder = self.config.pipes_dir / name
        folder.mkdir(exist_ok=True)
        file = folder / "pipe.md"
        fresh = folder / ".pipe.md.new"
        fresh.write_text(f"---\n{front.strip()}\n---\n{body}")
        fresh.replace(file)
        os.utime(file, ns=(time.time_ns(), time.time_ns() - 10**10))
        return folder

    def shell(self, name: str, script: str, front: str = "", body: str = "Do it.\n") -> Path:
        command = json.dumps(shlex.join(["/bin/sh", "-c", script]))
        return self.write(name, f"agent: command\ncommand: {command}\n{front}", body)

    def agent(self, name: str, script: str, front: str = "") -> Path:
        """Write a pipe and the agent of its name: a script whose words are judged like those of
        a provider.
        """
        with self.config.agents_file.open("a") as file:
            file.write(scripted_agent(name, script))
        return self.write(name, f"agent: {name}\n{front}")

    def fake(self, name: str, *steps: str, front: str = "") -> Path:
        """Write a pipe whose agent is the fake one."""
        argv = [sys.executable, str(FAKE_AGENT)]
        self.config.agents_file.write_text(
            f'[agents.fake]\nargv = {argv}\nprompt = "stdin"\nparser = "pi-jsonl"\n'
        )
        return self.write(name, f"agent: fake\n{front}", f"FAKE: {' '.join(steps)}\n")

    async def run(self, name: str, **request: Any) -> Execution:
        [queued] = await self.room.run(name, **request)
        return await self.room.wait(queued.id)

    async def begun(self, name: str) -> int:
        """Run a pipe, and wait until its process is there; return the execution's id."""
        [queued] = await self.room.run(name)
        await eventually(lambda: self.running(queued.id), f"the start of {name}")
        return queued.id

    async def ended(self, pipe: str, count: int = 1) -> list[Execution]:
        """Return the executions of a pipe, oldest first, once so many are final and their slots
        are free.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                rows = await self.rows(pipe)
                at_work = {live.id for live in self.room.of_pipe(pipe)}
                if len([it for it in rows if it.status.is_final and it.id not in at_work]) >= count:
                    return rows
                await asyncio.sleep(0.01)

    @contextmanager
    def settings(self, **changes: Any) -> Iterator[None]:
        """Have other settings for a while."""
        self.room.reconfigure(replace(self.config, **changes))
        try:
            yield
        finally:
            self.room.reconfigure(self.config)

    def presets(self, text: str) -> None:
        """Write presets.toml, whole."""
        fresh = self.config.presets_file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.config.presets_file)

    async def overdue(self, name: str, size: int) -> Execution:
        """Run a pipe, and turn the clocks to the end of its timeout, once it has said so many
        bytes and not before.
        """
        [queued] = await self.room.run(name)
        live, folder = self.room.runs[queued.id], self.room.folder(queued.id)

        # its time counts from when it is known to run; its first words may be there before
        def has_spoken() -> bool:
            return (
                live.execution.pid is not None
                and sum(output.size(folder, stream) or 0 for stream in output.BOTH) >= size
            )

        await eventually(has_spoken, f"{size} bytes of {name}")
        self.time.pass_by(live.deadline - self.time.clocks.awake())
        return await self.room.wait(queued.id)

    async def rows(self, pipe: str | None = None) -> list[Execution]:
        await self.ledger.flush()
        rows, _ = await self.room.executions(ExecutionFilter(pipe=pipe, limit=500))
        return list(reversed(rows))

    async def said(self, unit: str | None = None) -> list[Any]:
        await self.ledger.flush()
        return await self.events.history(unit=unit)

    async def words(self, unit: str | None = None) -> list[str]:
        return [each.event for each in await self.said(unit)]

    async def forget_children(self) -> None:
        """Have the keeper lose what it holds, as one that was killed would."""
        for child in await self.placement.list("pipe:"):
            await self.placement.stop(child.key, grace_seconds=0, reason="stopped")
            self.placement.release(child.key)

    def running(self, execution: int) -> Any:
        live = self.room.runs.get(execution)
        return live.execution.pid if live is not None else None


@asynccontextmanager
async def pipe_house(
    folder: Path, *, scheduler: bool = True, **changes: Any
) -> AsyncIterator[PipeRig]:
    """Start a keeper in a short folder and be its control plane; everything is stopped at the
    end.
    """
    keeper = RealKeeper(folder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, keeper.close)
        rig = PipeRig(folder, keeper)
        rig.config = replace(rig.config, **changes)
        await rig.connect()
        stack.callback(lambda: rig.placement.close())  # noqa: PLW0108 - that of the last control plane
        await rig.open(scheduler=scheduler)
        stack.push_async_callback(rig.close)
        yield rig
