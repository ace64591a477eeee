"""When a tool that starts is called ready, and what does not make it so."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import PxError, StartFailedError
from supervisord_py.tools import driver
from tools.tool_house import ToolHouse, eventually

BEGIN = """
import os, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOTIFY = (
    "import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
    "s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])"
)

def gate():
    while not os.path.exists("gate"): time.sleep(0.01)

class Handler(BaseHTTPRequestHandler):
    health = 200
    place = ""

    def log_message(self, *args): pass

    def answer(self, status, place=""):
        self.send_response(status)
        if place:
            self.send_header("Location", place)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self):
        with open("asked", "a") as asked:
            asked.write(self.path + "\\n")
        if self.path == "/healthz" and self.place:
            return self.answer(307, self.place)
        if not self.path.startswith("/health"):
            return self.answer(404)
        self.answer(200 if os.path.exists("gate") else self.health)

    def do_POST(self):
        self.answer(200)

def serve():
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()

"""
NOTIFIERS = {
    "by itself": "exec(NOTIFY)",
    "by a helper": "subprocess.run([sys.executable, '-c', NOTIFY])",
}
STAGES = {
    "before it listens": "gate(); serve()",
    "before it is healthy": "Handler.health = 503; serve()",
}


def write(house: ToolHouse, source: str, **keys: Any) -> Path:
    folder = house.tools / "tool"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.py").write_text(BEGIN + source + "\n")
    plain = {"name": "tool", "version": "1", "description": "x", "input": {"type": "object"}}
    (folder / "tool.json").write_text(json.dumps({**plain, **keys}))
    house.launcher.catalog.refresh()
    return folder


def asked(folder: Path) -> list[str]:
    path = folder / "asked"
    return path.read_text().split() if path.exists() else []


def has_ipv6() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("listen", ["handover", "port", "command"])
@pytest.mark.parametrize("notifier", NOTIFIERS)
async def test_ready_1_alone_makes_no_tool_ready(
    house: ToolHouse, notifier: str, listen: str, stage: str
) -> None:
    """As gunicorn sends it, before it has imported the program."""
    keys: dict[str, Any] = {"listen": listen}
    if listen == "command":
        keys = {"command": [sys.executable, "main.py", "--port", "{port}"]}
    folder = write(
        house, f"{NOTIFIERS[notifier]}; {STAGES[stage]}", start_timeout_seconds=60, **keys
    )
    start = asyncio.create_task(house.launcher.warm("tool"))

    def is_announced() -> bool:
        instance = house.launcher.instance_of("tool")
        return (
            instance is not None
            and instance.notify is not None
            and instance.notify.is_ready.is_set()
        )

    await eventually(is_announced, "READY=1 has come")
    if stage == "before it is healthy":
        await eventually(lambda: len(asked(folder)) > 2, "it is asked again")
    else:
        await asyncio.sleep(0)
    assert (house.state("tool").state, start.done()) == ("starting", False)
    (folder / "gate").touch()
    await start
    assert house.state("tool").state == "ready"


async def test_ready_1_has_the_question_asked_at_once(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "QUESTION_SECONDS", 600.0)
    swallow = (
        "server = ThreadingHTTPServer(('127.0.0.1', int(sys.argv[2])), Handler); lost = "
        "server.socket.accept();"
    )
    write(house, f"{swallow} exec(NOTIFY); server.serve_forever()", start_timeout_seconds=60)
    await house.launcher.warm("tool")


@pytest.mark.parametrize("listen", ["handover", "port"])
@pytest.mark.parametrize("address", ["::", "::1"])
async def test_program_that_listens_for_ipv6_alone_fails_before_its_time(
    house: ToolHouse,
    monkeypatch: pytest.MonkeyPatch,
    require: Callable[[object, str], None],
    listen: str,
    address: str,
) -> None:
    require(has_ipv6(), "needs IPv6 on the loopback interface")
    monkeypatch.setattr(driver, "UNFIT_SECONDS", 0.1)
    monkeypatch.setattr(driver, "UNFIT_PERIOD_SECONDS", 0.1)
    source = f"""
class Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "x", self.server_address[1]

Server(("{address}", int(sys.argv[2])), Handler).serve_forever()
"""
    write(house, source, listen=listen, start_timeout_seconds=60)
    with pytest.raises(
        StartFailedError, match=rf"listens on \[{address}\]:\d+, and not on 127.0.0.1:\d+"
    ) as caught:
        await house.launcher.warm("tool")
    assert (caught.value.status, caught.value.exit_code, caught.value.extra["reason"]) == (
        503,
        1,
        "early_exit",
    )


@pytest.mark.parametrize("listen", ["handover", "port"])
async def test_questions_that_are_swallowed_make_room_for_others(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    """However many were lost, there is one that is not answered yet, and has its own deadline."""
    monkeypatch.setattr(driver, "QUESTION_SECONDS", 0.01)
    monkeypatch.setattr(driver, "QUESTION_SECONDS_MAX", 0.01)
    monkeypatch.setattr(driver, "QUESTION_DEADLINE_SECONDS", 0.3)
    swallow = f"""
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
lost = [server.socket.accept() for _ in range({3 * driver.QUESTIONS_MAX})]
server.serve_forever()
"""
    write(house, swallow, listen=listen, start_timeout_seconds=60)
    await house.launcher.warm("tool")


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ("/healthz/", 0),
        ("http://localhost:{port}/health", 0),
        ("http://example.com/", 307),
        ("/healthz", 307),
    ],
)
async def test_health_behind_a_redirect_is_what_that_says(
    house: ToolHouse, place: str, status: int
) -> None:
    """One that leads out of the tool, or round in a circle, makes nothing ready."""
    where = (
        f"Handler.place = '{place}'.replace('{{port}}', sys.argv[2]); Handler.health = 503; serve()"
    )
    folder = write(house, where, start_timeout_seconds=60)
    start = asyncio.create_task(house.launcher.warm("tool"))
    await eventually(lambda: len(asked(folder)) > 4, "it is asked again")
    assert house.state("tool").state == "starting"
    if status:
        instance = house.launcher.instance_of("tool")
        assert instance is not None
        await eventually(lambda: instance.healthz == status, "the answer is known")
        await house.launcher.stop("tool")
        with pytest.raises(PxError):
            await start
        return
    (folder / "gate").touch()
    await start
