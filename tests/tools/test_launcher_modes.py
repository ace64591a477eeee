"""The other ways to listen, the other dialect, and notification by the tool itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import ReadinessTimeoutError, StartFailedError
from supervisord_py.tools import driver
from tools.tool_house import watched_until

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse


async def test_a_port_that_is_somebody_elses_is_not_trusted(house: ToolHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that answers 200 on the port, but is not the child's, is never taken for the tool."""
    import asyncio

    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(stranger, "127.0.0.1", 0)
    taken = server.sockets[0].getsockname()[1]

    monkeypatch.setattr(driver, "free_port", lambda _unit: taken)
    house.add("shapes", listen="port", env={"FAULT": "never"})
    async with server:
        with pytest.raises(StartFailedError, match="not the tool's own"):
            await house.ask("shapes")
    assert len(await house.said("spawned")) == 2


async def test_a_word_of_its_own_makes_a_tool_ready(house: ToolHouse) -> None:
    house.add("stubborn-port", env={"REUSES": "1", "BOASTS": "1", "SICK": "1"})
    assert (await house.ask("stubborn-port", {"n": 1}))["echo"] == {"n": 1}


async def test_on_a_port_of_its_own_only_a_healthy_tool_is_ready(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched_until(monkeypatch, lambda watch: watch._last_answer)
    house.add("stubborn-port", env={"REUSES": "1", "SICK": "1"}, start_timeout_seconds=600)
    with pytest.raises(ReadinessTimeoutError, match="/healthz answered 503"):
        await house.ask("stubborn-port")


async def test_an_adopted_tool_keeps_a_port_of_its_own(house: ToolHouse) -> None:
    house.add("stubborn-port", env={"REUSES": "1"})
    pid = (await house.ask("stubborn-port"))["pid"]
    port = house.state("stubborn-port").port
    await house.new_control_plane()
    assert (await house.ask("stubborn-port"))["pid"] == pid
    assert house.state("stubborn-port").port == port
