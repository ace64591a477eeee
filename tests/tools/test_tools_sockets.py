"""Listening sockets, ports and notification sockets, each against the real kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisord_py.tools import readiness as ports
from supervisord_py.tools.driver import Listeners
from supervisord_py.tools.readiness import NotifySocket
from tools.tool_house import eventually

if TYPE_CHECKING:
    from pathlib import Path


class FdStore:
    """The part of a placement that holds descriptors."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    async def put_fd(self, name: str, fd: int) -> None:
        await self.drop_fd(name)
        self.held[name] = os.dup(fd)

    async def take_fd(self, name: str) -> int | None:
        return os.dup(self.held[name]) if name in self.held else None

    async def drop_fd(self, name: str) -> None:
        if name in self.held:
            os.close(self.held.pop(name))


@pytest.fixture
def store() -> FdStore:
    return FdStore()


async def test_a_listener_is_made_once_listens_at_once_and_is_deposited(store: FdStore) -> None:
    listeners = Listeners(store, 16, "listen:tool:")  # type: ignore[arg-type]
    first, second = await asyncio.gather(listeners.get("a"), listeners.get("a"))
    assert first is second
    assert listeners.port_of("a") == first.getsockname()[1]
    assert first.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not first.get_inheritable()
    with socket.create_connection(("127.0.0.1", first.getsockname()[1])):
        pass
    port = first.getsockname()[1]
    listeners.close()
    later = Listeners(store, 16, "listen:tool:")  # type: ignore[arg-type]
    assert (await later.get("a")).getsockname()[1] == port
    await later.drop("a")
    assert store.held == {}
    assert later.port_of("a") is None


async def test_those_who_wait_are_refused_after_a_failed_start(store: FdStore) -> None:
    listeners = Listeners(store, 16, "listen:tool:")  # type: ignore[arg-type]
    listener = await listeners.get("a")
    with socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as client:
        listeners.refuse_waiting("a")
        listeners.refuse_waiting("never heard of")
        listeners.listen_again("a")
        client.settimeout(60)
        with pytest.raises(ConnectionResetError):
            client.recv(10)
    with socket.create_connection(("127.0.0.1", listener.getsockname()[1])):
        pass
    await listeners.drop("a")


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
            (found,) = [one for one in ports.listening_of(process.pid) if one.port == port]
            assert str(found) == f"127.0.0.1:{port}"
            assert found.pid != process.pid
            assert ports.is_listener_of(process.pid, port)
            assert not ports.is_listener_of(process.pid, port + 1)
        finally:
            os.killpg(process.pid, 9)
    assert ports.listening_of(process.pid) == ()


def say(path: Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message, str(path))


async def test_ready_and_status_are_understood(short_tmp: Path) -> None:
    notify = NotifySocket.create(short_tmp, "12345678.abc")
    assert notify.path.stat().st_mode & 0o777 == 0o600
    assert notify.path.parent.stat().st_mode & 0o777 == 0o700
    say(notify.path, b"STATUS=half way\nWATCHDOG=1")
    await eventually(lambda: notify.status)
    assert (notify.status, notify.is_ready.is_set()) == ("half way", False)
    say(notify.path, b"READY=1")
    await notify.is_ready.wait()
    notify.close()
    notify.close()
