"""A launcher under test: a real keeper, a real ledger, a folder of tools. Control planes may come and go."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from keeper.keeper_rig import PLAIN_ARGV, Rig, alive
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.instance import read_note
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.driver import ToolsConfig
from supervisord_py.tools.proxy import ToolRun
from supervisord_py.tools.service import Tools
from waiting import PATIENCE, eventually

CHILDREN = Path(__file__).parent / "children"
ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class ToolHouse:
    """`open()` and `close()` it; `new_control_plane()` is a `kill -9` of the brain and its return."""

    def __init__(self, **pool: Any) -> None:
        self.rig = Rig()
        self.rig.argv = PLAIN_ARGV
        self.tools = self.rig.dir / "tools"
        self.tools.mkdir()
        self.config = ToolsConfig(
            data_dir=self.rig.dir / "data",
            run_dir=self.rig.dir / "run",
            settings=ToolsSettings(python=sys.executable, **pool),
        )
        self.launcher: Tools
        self.placement: KeeperClient
        self.ledger: Ledger
        self.events: EventStream
        self.catalog = Catalog([self.tools], self.config.settings)

    def add(self, child: str, name: str | None = None, **keys: Any) -> str:
        """Copy a tool from `children`, under another name and with other settings where given."""
        name = name or child
        folder = self.tools / name
        shutil.copytree(CHILDREN / child, folder)
        manifest = json.loads((folder / "tool.json").read_text())
        manifest.update({"name": name} if "id" not in manifest else {"id": name}, **keys)
        (folder / "tool.json").write_text(json.dumps(manifest))
        self.catalog.refresh()
        return name

    async def open(self) -> ToolHouse:
        """Start the keeper and a control plane."""
        await asyncio.to_thread(self.rig.start)
        await self._control_plane()
        return self

    async def _control_plane(self) -> None:
        link = await asyncio.to_thread(self.rig.connect)
        channel = link.channel.dup()
        self.placement = await KeeperClient.connect(
            channel, daemon_id=self.rig.daemon_id, log_dir=self.rig.boot["log_dir"]
        )
        self.ledger = await Ledger.open(self.rig.dir / "state" / "pxd.db")
        self.events = await EventStream.open(self.ledger)
        self.catalog = Catalog([self.tools], self.config.settings)
        self.launcher = Tools(self.placement, self.ledger, self.catalog, self.config, self.events, environ=ENVIRON)
        await self.launcher.open()

    async def noted(self, name: str) -> None:
        """Wait until the keeper has the note that a tool is ready: its first answers may come before that."""
        deadline = time.monotonic() + PATIENCE
        while True:
            child = await self.placement.attach(self.state(name).instance)
            assert child is not None
            if (note := read_note(child.tag)) is not None and note.ready:
                return
            assert time.monotonic() < deadline, f"no note that {name} is ready came within {PATIENCE} s"
            await asyncio.sleep(0.01)

    async def new_control_plane(self) -> None:
        """Let the control plane vanish without a word to its tools, and start the next one."""
        await self.launcher.detach()
        await self._put_down()
        await self._control_plane()

    async def _put_down(self) -> None:
        self.events.close()
        await self.ledger.close()
        self.placement.close()
        self.rig.links[-1].end(1)

    async def close(self) -> None:
        """Stop everything, and see that nothing was left."""
        try:
            await self.launcher.close()
            await self._put_down()
        finally:
            await asyncio.to_thread(self.rig.close)

    async def ask(self, name: str, value: Any = None, **options: Any) -> Any:
        """Run a tool and return its answer, parsed."""
        value = {} if value is None else value
        run = ToolRun(self.launcher, self.launcher.catalog.get(name), json.dumps(value).encode(), value)
        async with run.going(**options):
            assert run.body is not None
            return json.loads(run.body)

    def state(self, name: str) -> Any:
        """Return the present state of a tool."""
        return self.launcher.snapshot(name)[0]

    async def said(self, event: str, unit: str | None = None) -> list[Any]:
        """Return all events of that name so far."""
        await self.ledger.flush()
        return [each for each in await self.events.history(unit=unit) if each.event == event]


__all__ = ["CHILDREN", "PATIENCE", "ToolHouse", "alive", "eventually"]
