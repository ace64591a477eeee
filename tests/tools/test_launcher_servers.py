"""Tools on real servers, through the launcher: started, asked, stopped, asked again, on the same port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.tool_house import alive

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse

SERVERS = ("http-server", "uvicorn-asyncio", "uvicorn-uvloop", "hypercorn-asyncio", "aiohttp-server", "flask-server")


@pytest.mark.deep
@pytest.mark.parametrize("server", SERVERS)
async def test_a_tool_keeps_its_port_over_several_lives(house: ToolHouse, server: str) -> None:
    house.add(server)
    ports, pids = set(), set()
    for cycle in range(3):
        answer = await house.ask(server, {"cycle": cycle})
        assert answer["echo"] == {"cycle": cycle}
        state = house.state(server)
        assert (state.state, state.pid) == ("ready", answer["pid"])
        ports.add(state.port)
        pids.add(state.pid)
        await house.launcher.stop(server)
        assert house.state(server).state == "cold"
        assert not alive(answer["pid"])
    assert len(ports) == 1
    assert len(pids) == 3
