"""A daemon and a front end's surroundings: kernelspecs, folders, an environment in which
Jupyter's libraries run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from beside import beside, lean_module
from e2e.house import House, house, until
from supervisord_py.kernels.wire import EXECUTE, Message, make, pack, unpack

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "supervisord_py" / "jupyter" / "kernelspec" / "kernel.json"
IPYKERNEL6 = ROOT / os.environ.get("VENV", ".venv") / "peers" / "ipykernel6" / "bin" / "python"
NEEDS_PEERS = "needs the environments of the peers: run `make peers`"
PYTHON = sys.executable
LAUNCHED = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
OURS = {"kernel_provisioner": {"provisioner_name": "supervisord-py"}}
PATIENCE = 60.0


@dataclass
class Front:
    """A front end's side of one house; notebooks lie in `folder`, `patch` is undone when the
    front end ends.
    """

    house: House
    folder: Path
    patch: pytest.MonkeyPatch = field(repr=False)

    @property
    def jupyter(self) -> Path:
        return self.house.home / "jupyter"

    def spec(self, name: str, argv: list[str], **members: Any) -> str:
        place = self.jupyter / "path" / "kernels" / name
        place.mkdir(parents=True, exist_ok=True)
        plain = {"argv": argv, "display_name": name, "language": "python", "metadata": OURS}
        (place / "kernel.json").write_text(json.dumps({**plain, **members}))
        return name

    def kernels(self) -> dict[str, dict[str, Any]]:
        return {each["id"]: each for each in self.house.get("/api/kernels")["kernels"]}

    def living(self) -> dict[str, dict[str, Any]]:
        return {name: each for name, each in self.kernels().items() if each["pid"] is not None}

    def only(self) -> dict[str, Any]:
        (found,) = self.living().values()
        return found

    def session_of(self, km: Any) -> dict[str, Any]:
        return self.kernels()[km.provisioner._session]


@contextmanager
def front_end(
    settings: Mapping[str, str] | None = None, *, started: bool = True
) -> Iterator[Front]:
    """Make a house and turn this process into a front end of it."""
    with house() as home, pytest.MonkeyPatch.context() as patch:
        jupyter = home.home / "jupyter"
        places = {
            f"JUPYTER_{name.upper()}": jupyter / name
            for name in ("path", "data_dir", "runtime_dir", "config_dir")
        }
        places["IPYTHONDIR"] = jupyter / "ipython"
        for place in places.values():
            place.mkdir(parents=True)
        shared = {
            "JUPYTER_PLATFORM_DIRS": "1",
            **{name: str(place) for name, place in places.items()},
        }
        home.settings = {**shared, **(settings or {})}
        for name in set(os.environ) - set(home.environ):
            patch.delenv(name)
        for name, value in home.environ.items():
            patch.setenv(name, value)
        folder = home.home / "work"
        folder.mkdir()
        patch.chdir(folder)
        shutil.copytree(SPEC.parent, jupyter / "path" / "kernels" / "pxd")
        if started:
            home.start()
        yield Front(home, folder, patch)


@asynccontextmanager
async def kernel(
    name: str = "pxd", **kwargs: Any
) -> AsyncIterator[tuple[AsyncKernelManager, AsyncKernelClient]]:
    km = AsyncKernelManager(kernel_name=name)
    await km.start_kernel(**kwargs)
    kc = km.client()
    kc.start_channels()
    try:
        await kc.wait_for_ready(timeout=PATIENCE)
        yield km, kc
    finally:
        kc.stop_channels()
        await km.shutdown_kernel(now=True)
        km.context.destroy(linger=0)


async def run(kc: AsyncKernelClient, code: str, **kwargs: Any) -> tuple[dict[str, Any], str]:
    printed: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = await kc.execute_interactive(code, output_hook=hook, timeout=PATIENCE, **kwargs)
    return reply["content"], "".join(printed)


async def value(kc: AsyncKernelClient, expression: str) -> Any:
    reply, printed = await run(
        kc, f"import json; print(json.dumps({expression}))", allow_stdin=False
    )
    assert reply["status"] == "ok", reply
    return json.loads(printed)


@asynccontextmanager
async def lab(front: Front, **options: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a server, with these options of `GatewayClient`; yields what asks it."""
    path = front.jupyter / f"{uuid.uuid4().hex[:8]}.sock"
    given = {
        "open_browser": "False",
        "allow_root": "True",
        "sock": str(path),
        "root_dir": str(front.folder),
    }
    words = [f"--ServerApp.{name}={value}" for name, value in given.items()]
    words += [f"--GatewayClient.{name}={value}" for name, value in options.items()]
    command = [*lean_module(PYTHON, "jupyter_server"), "--IdentityProvider.token=front", *words]
    log = path.with_suffix(".log")
    with log.open("wb") as written:
        process = beside(
            command, cwd=front.folder, stdin=subprocess.DEVNULL, stdout=written, stderr=written
        )
    try:
        await asyncio.to_thread(until, lambda: _listens(path), "the server listens")
        connector = aiohttp.UnixConnector(str(path), limit=0)
        about = {"Authorization": "token front"}
        async with aiohttp.ClientSession(
            "http://localhost", connector=connector, headers=about
        ) as client:
            yield client
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, PATIENCE)


def _listens(path: Path) -> bool:
    """Say whether somebody listens there: the file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as asked:
        return asked.connect_ex(os.fspath(path)) == 0


async def ask(
    http: aiohttp.ClientSession, method: str, path: str, body: Any = None, status: int = 200
) -> Any:
    async with http.request(method, path, json=body) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json(content_type=None) if status != 204 else None


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def begin(self, code: str) -> Message:
        message = make("execute_request", {**EXECUTE, "code": code}, "page")
        framed = pack(message, self.socket.protocol)
        await (
            self.socket.send_str(framed)
            if isinstance(framed, str)
            else self.socket.send_bytes(framed)
        )
        return message

    async def hear(self, *stops: Callable[[Message], bool]) -> list[Message]:
        """Return what comes, until all that is waited for came: channels are not in step."""
        heard: list[Message] = []
        async with asyncio.timeout(PATIENCE):
            while not all(any(map(stop, heard)) for stop in stops):
                item = await self.socket.receive()
                assert item.type in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}, (
                    item,
                    heard,
                )
                heard.append(unpack(item.data, self.socket.protocol))
        return heard

    async def run(self, code: str) -> tuple[dict[str, Any], list[Message]]:
        """Run a cell; return the content of its reply, and all that came of it.

        One that came too early after a failed one is sent again, as a user would.
        """
        while True:
            asked = await self.begin(code)
            heard = await self.hear(
                is_reply(asked),
                lambda it: it.parent_id == asked.id and it.state == "idle",  # noqa: B023
            )
            ours = [it for it in heard if it.parent_id == asked.id]
            reply = next(it.content for it in ours if it.type == "execute_reply")
            if reply["status"] != "aborted":
                return reply, ours


def is_reply(asked: Message) -> Callable[[Message], bool]:
    return lambda it: it.type == "execute_reply" and it.parent_id == asked.id


def printed(heard: list[Message]) -> str:
    return "".join(it.content["text"] for it in heard if it.type == "stream")
