"""Kernels through the daemon against what one would use instead: jupyter_client's manager and client, and a gateway.

Six comparisons: the first cell of a new session, forked and spawned, those of eight at the same moment, a round trip of
`1+1`, the same through a kernel_gateway's websocket, and a print of 50 MB of which no byte may be lost on either side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import bench_stage as stage
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from e2e.kernel_house import gateway

CALLS = 40
KERNELS = 8
PRINTED = 50_000_000
PRINT = f"import sys\nfor _ in range(500): print('x' * {PRINTED // 500 - 1})\nsys.stdout.flush()"


class Other:
    """The other side: an event loop in a thread of its own, so that both sides are called in the same way."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(stage.DEADLINE)


# -- jupyter_client ------------------------------------------------------------------------------------------------


async def finish(client: AsyncKernelClient, code: str) -> int:
    """Run a cell to its reply and idle; return the bytes that it printed, all of them drained as they came."""
    sent = client.execute(code, store_history=False)
    printed = 0
    while True:
        message = await client.get_iopub_msg()
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["msg_type"] == "stream":
            printed += len(message["content"]["text"])
        elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    await client.get_shell_msg()
    return printed


async def started() -> tuple[AsyncKernelManager, AsyncKernelClient]:
    manager = AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel(stderr=subprocess.DEVNULL)  # it warns of TCP each time
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=stage.DEADLINE)
    return manager, client


async def ended(manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def first_cell_of_theirs() -> float:
    begin = time.perf_counter()
    manager, client = await started()
    await finish(client, "1+1")
    seconds = time.perf_counter() - begin
    await ended(manager, client)
    return seconds


# -- a gateway -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def websocket(url: str, token: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with aiohttp.ClientSession(url, headers={"Authorization": f"token {token}"}) as http:
        async with http.post("/api/kernels", json={"name": "python3"}) as answer:
            kernel = (await answer.json())["id"]
        async with http.ws_connect(f"/api/kernels/{kernel}/channels", max_msg_size=0) as wire:
            yield wire
        await http.delete(f"/api/kernels/{kernel}")


async def through_gateway(wire: aiohttp.ClientWebSocketResponse, calls: int) -> float:
    """Return the seconds of one `1+1` over the websocket, the mean over `calls`."""
    begin = time.perf_counter()
    for _ in range(calls):
        sent = secrets.token_hex(8)
        header = {"msg_id": sent, "msg_type": "execute_request", "username": "", "session": "bench", "version": "5.3"}
        content = {"code": "1+1", "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await wire.send_str(json.dumps(message | {"buffers": []}))
        missing = {"execute_reply", "idle"}
        while missing:
            told = json.loads((await wire.receive()).data)
            if told["parent_header"].get("msg_id") == sent:
                missing -= {told["msg_type"], told["content"].get("execution_state")}
    return (time.perf_counter() - begin) / calls


# -- ours ----------------------------------------------------------------------------------------------------------


def execute(held: stage.Daemon, code: str, session: str = "bench", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = held.ask("POST", f"/api/kernels/{session}/execute", {"code": code, "cwd": "/tmp"} | more)
    if answer["status"] != "ok":
        raise RuntimeError(json.dumps(answer)[:2000])
    return answer


def stop_all(held: stage.Daemon) -> None:
    for kernel in held.ask("GET", "/api/kernels")["kernels"]:
        held.ask("POST", f"/api/kernels/{kernel['id']}/stop")


def first_cell_of_ours(held: stage.Daemon, *, forked: bool) -> float:
    begin = time.perf_counter()
    kernel = execute(held, "1+1")["kernel"]
    seconds = time.perf_counter() - begin
    method = held.ask("GET", f"/api/kernels/{kernel}")["start_method"]
    if method != ("zygote" if forked else "spawn"):
        raise RuntimeError(f"the kernel was started by {method}")
    held.ask("POST", f"/api/kernels/{kernel}/stop")
    return seconds


def has_zygote(held: stage.Daemon) -> bool:
    return any(each["ready"] for each in held.ask("GET", "/api/kernels")["zygotes"])


def round_trip_of_ours(held: stage.Daemon) -> float:
    with contextlib.closing(held.connect()) as connection:
        begin = time.perf_counter()
        for _ in range(CALLS):
            stage.ask(connection, "POST", "/api/kernels/bench/execute", {"code": "1+1", "cwd": "/tmp"})
        return (time.perf_counter() - begin) / CALLS


def first_cells(other: Other, rounds: int) -> list[stage.Row]:
    with stage.daemon() as held, stage.daemon(PX_DAEMON__ZYGOTES="0") as plain:
        execute(held, "1+1", reset=True)  # what the daemon imports once it has imported
        stage.until(lambda: has_zygote(held), "a zygote")
        stop_all(held)
        first_cell_of_ours(plain, forked=False)
        acts = {
            "zygote": partial(first_cell_of_ours, held, forked=True),
            "spawn": partial(first_cell_of_ours, plain, forked=False),
            "theirs": lambda: float(other.run(first_cell_of_theirs())),
        }
        found = stage.interleaved(acts, rounds)
    theirs = found["theirs"]
    names = {"zygote": "first cell, forked", "spawn": "first cell, spawned"}
    return [stage.compared(words, found[name], theirs, "jupyter_client") for name, words in names.items()]


def side_by_side(other: Other, rounds: int) -> list[stage.Row]:

    async def theirs() -> float:
        begin = time.perf_counter()
        made = await asyncio.gather(*(started() for _ in range(KERNELS)))
        await asyncio.gather(*(finish(client, "1+1") for _, client in made))
        seconds = time.perf_counter() - begin
        await asyncio.gather(*(ended(*each) for each in made))
        return seconds

    with stage.daemon(PX_KERNELS__MAX_SESSIONS=str(KERNELS)) as held:
        execute(held, "1+1")
        stage.until(lambda: has_zygote(held), "a zygote")

        def ours() -> float:
            stop_all(held)
            begin = time.perf_counter()
            with ThreadPoolExecutor(KERNELS) as clients:
                answers = clients.map(lambda at: execute(held, "1+1", session=f"bench{at}"), range(KERNELS))
            seconds = time.perf_counter() - begin
            if len({answer["kernel"] for answer in answers}) != KERNELS:
                raise RuntimeError("sessions shared a kernel")
            return seconds

        words = f"first cells of {KERNELS} at once, forked"
        return [stage.against(words, ours, lambda: float(other.run(theirs())), rounds, "jupyter_client")]


def round_trips(other: Other, rounds: int) -> list[stage.Row]:
    token = secrets.token_hex(8)
    with stage.daemon() as held, tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        execute(held, "1+1")
        manager, client = other.run(started())

        async def own() -> float:
            begin = time.perf_counter()
            for _ in range(CALLS):
                await finish(client, "1+1")
            return (time.perf_counter() - begin) / CALLS

        url = servers.enter_context(gateway(Path(folder) / "gateway", token))
        opening = websocket(url, token)
        wire = other.run(opening.__aenter__())
        acts: dict[str, Callable[[], float]] = {
            "ours": lambda: round_trip_of_ours(held),
            "own": lambda: float(other.run(own())),
            "gateway": lambda: float(other.run(through_gateway(wire, CALLS))),
        }
        found = stage.interleaved(acts, rounds)
        other.run(opening.__aexit__(None, None, None))
        other.run(ended(manager, client))
    whose = {"ZMQ client": found["own"], "gateway websocket": found["gateway"]}
    return [stage.compared("1+1", found["ours"], theirs, name) for name, theirs in whose.items()]


def prints(other: Other, rounds: int) -> list[stage.Row]:
    with stage.daemon() as held:
        execute(held, "1+1")
        manager, client = other.run(started())
        before = stage.resident_mib(held.pids()[1])

        def ours() -> float:
            begin = time.perf_counter()
            cell = execute(held, PRINT, timeout=120)["cells"][0]
            seconds = time.perf_counter() - begin
            if cell["total_bytes"] != PRINTED:
                raise RuntimeError(f"{cell['total_bytes']} bytes of {PRINTED} were kept")
            return seconds

        def theirs() -> float:
            begin = time.perf_counter()
            printed = other.run(finish(client, PRINT))
            seconds = time.perf_counter() - begin
            if printed != PRINTED:
                raise RuntimeError(f"{printed} bytes of {PRINTED} arrived")
            return seconds

        row = stage.against("print of 50 MB, to disk", ours, theirs, rounds, "drained ZMQ client")
        after = stage.resident_mib(held.pids()[1])
        other.run(ended(manager, client))
    return [row, stage.Row("  control plane's memory", f"{after:.0f} MiB", f"before {before:.0f} MiB")]


if __name__ == "__main__":
    peer = Other()
    rows = [*first_cells(peer, 10), *side_by_side(peer, 5), *round_trips(peer, 10), *prints(peer, 5)]
    stage.print_table("Kernels: a call through the daemon against what one would use instead", rows)
