"""A launcher under test: a real keeper, a real ledger, a folder of tools.

Control planes may come and go.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from keeper.keeper_rig import RealKeeper, alive
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

__all__ = ["CHILDREN", "PATIENCE", "alive", "eventually"]
CHILDREN = Path(__file__).parent / "children"
ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class ToolHouse:
    """`open()` and `close()` it; `new_control_plane()` is a `kill -9` of the brain and its
    return.
    """

    launcher: Tools
    placement: KeeperClient
    ledger: Ledger
    events: EventStream

    def __init__(self, **pool: Any) -> None:
        self.rig = RealKeeper()
        self.tools = self.rig.dir / "tools"
        settings = ToolsSettings(python=sys.executable, **pool)
        self.config = ToolsConfig(self.rig.dir / "data", self.rig.dir / "run", settings)

    def add(self, child: str, name: str = "", **keys: Any) -> None:
        """Copy a tool from `children`, under another name and with other settings where given."""
        folder = self.tools / (name or child)
        shutil.copytree(CHILDREN / child, folder)
        manifest = json.loads((folder / "tool.json").read_text())
        (folder / "tool.json").write_text(json.dumps({**manifest, "name": folder.name, **keys}))
        self.launcher.catalog.refresh()

    async def open(self) -> ToolHouse:
        self.placement = await self.rig.client()
        self.ledger = await Ledger.open(self.rig.dir / "state" / "pxd.db")
        self.events = await EventStream.open(self.ledger)
        catalog = Catalog([self.tools], self.config.settings)
        self.launcher = Tools(
            self.placement, self.ledger, catalog, self.config, self.events, environ=ENVIRON
        )
        await self.launcher.open()
        return self

    async def noted(self, name: str) -> None:
        """Wait until the keeper has the note that a tool is ready: its first answers may come
        before that.
        """

        async def is_noted() -> bool:
            child = await self.placement.attach(self.state(name).instance)
            note = child and read_note(child.tag)
            return note is not None and note.ready

        await eventually(is_noted, f"the note that {name} is ready")

    async def new_control_plane(self) -> None:
        """Let the control plane vanish without a word to its tools, and start the next one."""
        await self.launcher.detach()
        await self._put_down()
        await self.open()

    async def _put_down(self) -> None:
        self.events.close()
        await self.ledger.close()
        self.placement.close()
        self.rig.end_control()

    async def close(self) -> None:
        """Stop everything, and see that nothing was left; tells of a test that failed what
        happened.
        """
        for event in await self.events.history():
            print(event)
        try:
            await self.launcher.close()
            await self._put_down()
        finally:
            await asyncio.to_thread(self.rig.close)

    async def ask(self, name: str, value: Any = None, **options: Any) -> Any:
        """Run a tool and return its answer, parsed."""
        value = {} if value is None else value
        run = ToolRun(
            self.launcher, self.launcher.catalog.get(name), json.dumps(value).encode(), value
        )
        async with run.going(**options):
            return json.loads(run.body or b"")

    def state(self, name: str) -> Any:
        return self.launcher.snapshot(name)[0]

    async def said(self, event: str, unit: str | None = None) -> list[Any]:
        """Return all events of that name so far."""
        await self.ledger.flush()
        return [each for each in await self.events.history(unit=unit) if each.event == event]
