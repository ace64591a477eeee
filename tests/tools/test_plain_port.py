"""Programs that a handed-over socket does not fit are started once more with a plain port, and
from then on so.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import PxError
from supervisord_py.tools.status import PlainPort
from supervisord_py.tools.validate import validate_tool
from tools.tool_house import ToolHouse, alive, eventually

SERVER = """
import json, os, signal, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port = int(sys.argv[sys.argv.index("--port") + 1])


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"ok": True})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"pid": os.getpid(), "port": self.server.server_address[1]})


class DualStack(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def serve(number=port, kind=ThreadingHTTPServer, host="127.0.0.1"):
    kind((host, number), Handler).serve_forever()


with open("starts", "a") as starts:
    starts.write(os.environ.get("NOTIFY_SOCKET", "") + "\\n")
"""
CHILD = "[sys.executable, 'child.py', '--port', str(port)]"
NATIVE = """
import _socket
listening = _socket.socket()
listening.bind(("127.0.0.1", port))
listening.listen()
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.socket = socket.socket(fileno=listening.detach())
server.server_address = ("127.0.0.1", port)
server.serve_forever()
"""
UNFIT = {
    "exec": f"os.execv(sys.executable, {CHILD})",
    "exec itself": "if 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n"
    "    os.execv(sys.executable, [sys.executable, *sys.argv])\nserve()",
    "subprocess": f"sys.exit(subprocess.call({CHILD}))",
    "native bind": NATIVE,
    "dual stack": "serve(kind=DualStack, host='::')",
    "looks, exits": "if socket.socket().connect_ex(('127.0.0.1', port)) == 0:\n    sys.exit('in "
    "use')\nserve()",
    "looks, exits with 0": "if socket.socket().connect_ex(('127.0.0.1', port)) == 0:\n    "
    "sys.exit(0)\nserve()",
    "looks, takes the next": "while socket.socket().connect_ex(('127.0.0.1', port)) == 0:\n    "
    "port += 1\nserve(port)",
    "looks, waits": "while socket.socket().connect_ex(('127.0.0.1', port)) == 0:\n    "
    "time.sleep(0.05)\nserve()",
    "reloader that begins again": f"while subprocess.call({CHILD}):\n    time.sleep(0.05)",
    "kills who has its port": "subprocess.run(f'fuser -k {port}/tcp', shell=True)\nserve()",
    "kills who uses its port": "subprocess.run(f'lsof -ti :{port} | xargs -r kill -9', "
    "shell=True)\nserve()",
}
NEEDED = {"kills who has its port": "fuser", "kills who uses its port": "lsof"}


def write(house: ToolHouse, source: str, *, begin: str = SERVER, **keys: Any) -> Path:
    name = "tool"
    folder = house.tools / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.py").write_text(begin + source + "\n")
    (folder / "child.py").write_text(SERVER + "serve()\n")
    plain = {
        "name": name,
        "version": "1",
        "description": "x",
        "input": {"type": "object"},
        "start_timeout_seconds": 6,
    }
    (folder / "tool.json").write_text(json.dumps({**plain, **keys}))
    house.launcher.catalog.refresh()
    return folder


def starts(folder: Path) -> int:
    """Return by how many instances the program was started so far."""
    return len(set((folder / "starts").read_text().split()))


@pytest.mark.parametrize("program", UNFIT)
async def test_what_the_socket_does_not_fit_gets_a_plain_port(
    house: ToolHouse, require: Callable[[object, str], None], program: str
) -> None:
    if program in NEEDED:
        require(shutil.which(NEEDED[program]), NEEDED[program])
    folder = write(house, UNFIT[program])
    answer = await house.ask("tool")
    assert (starts(folder), answer["port"]) == (2, house.state("tool").port)
    (warning,) = [text for text in house.state("tool").warnings if "plain port" in text]
    assert '"listen": "port"' in warning
    for _ in range(2):  # what was found out holds, also for the next control plane
        await house.launcher.stop("tool")
        await house.ask("tool")
        await house.noted("tool")
        await house.new_control_plane()
    await house.ask("tool")
    assert (starts(folder), len(await house.said("adopted", "tool:tool"))) == (4, 2)
    assert len(await house.said("plain_port", "tool:tool")) == 1
    assert len(await house.said("start_failed", "tool:tool")) == 1


FLASK = """
import os, sys, flask

with open("starts", "a") as starts:
    starts.write(os.environ["NOTIFY_SOCKET"] + "\\n")
app = flask.Flask(__name__)
app.get("/healthz")(lambda: {"ok": True})
app.post("/run", endpoint="run")(lambda: {"reloads": bool(os.environ.get("WERKZEUG_RUN_MAIN"))})
app.run(port=int(sys.argv[2]), debug=True)
"""


async def test_a_reloader_that_starts_the_same_command_again_keeps_the_socket(
    house: ToolHouse,
) -> None:
    """Flask's: it looks at sys.orig_argv, and hands the socket that it has bound to the next
    process.
    """
    folder = write(house, FLASK, begin="")
    for count in (1, 2):
        assert await house.ask("tool") == {"reloads": True}
        assert starts(folder) == count
        assert "plain port" not in "".join(house.state("tool").warnings)
        await house.launcher.stop("tool")


async def test_another_declaration_begins_with_the_socket(house: ToolHouse) -> None:
    folder = write(house, UNFIT["looks, exits"])
    await house.ask("tool")
    write(house, "serve()")
    port = (await house.ask("tool"))["port"]
    await house.launcher.stop("tool")
    assert (await house.ask("tool"))["port"] == port, "the socket outlives each of its instances"
    assert (house.state("tool").warnings, starts(folder)) == ([], 4)


async def test_what_fails_both_ways_is_told_by_the_plain_start_and_tried_once_from_then_on(
    house: ToolHouse,
) -> None:
    folder = write(house, "raise ValueError(int('--px-fd' in open('/proc/self/cmdline').read()))")
    for count in (2, 3, 4):
        with pytest.raises(PxError, match="ValueError: 0"):
            await house.ask("tool")
        assert starts(folder) == count
    await eventually(lambda: house.state("tool").state == "failed", "the end of the last")
    assert house.launcher.states.of("tool").plain_port is PlainPort.FAILED


async def test_what_failed_both_ways_gets_the_socket_again_once_it_came_up(
    house: ToolHouse,
) -> None:
    folder = write(house, "if not os.path.exists('data'):\n    sys.exit('no data')\nserve()")
    with pytest.raises(PxError, match="no data"):
        await house.ask("tool")
    (folder / "data").touch()
    await house.ask("tool")
    assert house.launcher.states.of("tool").plain_port is PlainPort.NO
    await house.launcher.stop("tool")
    await house.ask("tool")
    assert house.state("tool").port == house.launcher.driver.listeners.port_of("tool")
    assert (house.state("tool").warnings, starts(folder)) == ([], 4)


@pytest.mark.parametrize(
    ("source", "keys", "kind"),
    [
        ("data = bytearray(300 << 20)\nserve()", {"max_memory_mb": 100}, "limit_exceeded"),
        ("serve()", {"python": "/no/such/python"}, "start_failed"),
    ],
    ids=["memory", "interpreter"],
)
async def test_a_failure_that_is_not_the_sockets_is_not_tried_again(
    house: ToolHouse, source: str, keys: dict[str, Any], kind: str
) -> None:
    write(house, source, **keys)
    with pytest.raises(PxError) as raised:
        await house.ask("tool")
    assert raised.value.kind == kind
    assert await house.said("plain_port") == []
    assert len(await house.said("start_failed")) == 1


async def test_a_stop_during_the_first_start_ends_it(house: ToolHouse) -> None:
    write(house, "time.sleep(600)", start_timeout_seconds=30)
    asked = asyncio.ensure_future(house.ask("tool"))
    await eventually(lambda: house.state("tool").pid, "its process")
    pid = house.state("tool").pid
    await house.launcher.stop("tool")
    with pytest.raises(PxError):
        await asked
    assert (alive(pid), await house.said("plain_port")) == (False, [])


async def test_validate_says_that_only_a_plain_port_fits(house: ToolHouse) -> None:
    folder = write(house, UNFIT["looks, exits"])
    document = await validate_tool(house.launcher, folder, datetime.now(UTC))
    (check,) = [each for each in document["checks"] if each["name"] == "tool_spawns"]
    assert (check["status"], "plain port" in check["message"]) == ("warn", True)


# -- the daemon has no socket that programs look for which end processes by a port -----------------


def holders(port: int) -> set[int]:
    """Return the pids of those that have a socket of that port open, as fuser(1) finds them."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
            inodes.add(f"socket:[{fields[9]}]")
    assert inodes, "nothing listens there"
    pids = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = {
                os.readlink(f"/proc/{entry}/fd/{fd}") for fd in os.listdir(f"/proc/{entry}/fd")
            }
        except OSError:
            continue  # gone, or not ours to read
        if links & inodes:
            pids.add(int(entry))
    return pids


async def test_only_the_tool_has_its_port_and_its_end_is_its_own(house: ToolHouse) -> None:
    write(house, "serve()")
    port = (await house.ask("tool"))["port"]
    for _ in range(2):
        pid = house.state("tool").pid
        assert await asyncio.to_thread(holders, port) == {pid}
        os.kill(pid, 9)  # as `fuser -k PORT/tcp` does
        await eventually(lambda: house.state("tool").state == "cold", "its end")
        assert await asyncio.to_thread(holders, port) == set(), "of a cold tool nobody has it"
        await house.new_control_plane()
        assert await asyncio.to_thread(holders, port) == set()
        assert (await house.ask("tool"))["port"] == port
    await house.launcher.stop("tool")
    with socket.create_connection(("127.0.0.1", port)):  # starts it
        await eventually(lambda: house.state("tool").state == "ready", "its start by a connection")


async def test_a_listener_that_is_shut_down_while_the_tool_is_cold_listens_again(
    house: ToolHouse,
) -> None:
    write(house, "serve()")
    port = (await house.ask("tool"))["port"]
    for _ in range(2):
        await house.launcher.stop("tool")
        fd = await house.placement.take_fd("listen:tool:tool")
        assert fd is not None
        with socket.socket(fileno=fd) as listening:
            listening.shutdown(socket.SHUT_RDWR)
        assert (await house.ask("tool"))["port"] == port
    assert (await house.said("start_failed"), house.state("tool").warnings) == ([], [])


async def test_a_listener_that_was_lost_is_made_again_on_its_port(house: ToolHouse) -> None:
    write(house, "serve()")
    port = (await house.ask("tool"))["port"]
    await house.placement.ask("drop_fd", name="listen:tool:tool")
    await house.launcher.stop("tool")
    assert (await house.ask("tool"))["port"] == port
    await house.launcher.stop("tool")
    assert await asyncio.to_thread(holders, port) == set()
