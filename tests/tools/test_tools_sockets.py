"""Listening sockets, ports and notification sockets, each against the real kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from supervisord_py.tools import sockets
from supervisord_py.tools.sockets import NotifySocket
from tools.tool_house import ToolHouse


async def test_those_who_wait_are_refused_and_the_port_stays(house: ToolHouse) -> None:
    listeners = house.launcher.driver.listeners
    port, again = await asyncio.gather(listeners.get("a"), listeners.get("a"))
    assert port == again == listeners.port_of("a")
    with socket.create_connection(("127.0.0.1", port)) as client:
        listeners.listen_again("a", refuse_waiting=True)
        listeners.listen_again("never heard of", refuse_waiting=True)
        client.settimeout(60)
        with pytest.raises(ConnectionResetError):
            client.recv(10)
    with socket.create_connection(("127.0.0.1", port)):
        pass
    listeners.close()
    assert await listeners.get("a") == port, "the keeper has it"
    await listeners.drop("a")
    assert listeners.port_of("a") is None


def test_listeners_of_a_tree_are_found_in_grandchildren_too() -> None:
    code = (
        "import os, socket, time\n"
        "if os.fork() == 0:\n"
        "    sock = socket.socket(); sock.bind(('127.0.0.1', 0)); sock.listen()\n"
        "    print(sock.getsockname()[1], flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            (found,) = [one for one in sockets.listening_of(process.pid) if one.port == port]
            assert str(found) == f"127.0.0.1:{port}"
            assert sockets.is_listener_of(process.pid, port)
            assert not sockets.is_listener_of(process.pid, port + 1)
        finally:
            os.killpg(process.pid, 9)
    assert sockets.listening_of(process.pid) == ()


def say(path: Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message, str(path))


async def test_ready_and_imports_are_understood(short_tmp: Path) -> None:
    notify = NotifySocket(short_tmp, "12345678.abc")
    assert notify.path.stat().st_mode & 0o777 == 0o600
    assert notify.path.parent.stat().st_mode & 0o777 == 0o700
    say(notify.path, b"STATUS=half way\nREADY=0")
    say(notify.path, b"X_PX_MODULES=a,b c\nREADY=1")
    told: list[str] = []
    notify.on_modules = told.extend
    await notify.is_ready.wait()
    assert told == ["a"]
    notify.close()
    notify.close()
