"""Kernels through the daemon against what one would use instead: jupyter_client's manager and client.

The first cell of a new session, forked and spawned, a round trip of `1+1`, and a print of 50 MB of which no byte may be
lost on either side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from bench_stage import (
    DEADLINE,
    Daemon,
    Row,
    ask,
    compared,
    daemon,
    interleaved,
    print_table,
    resident_mib,
    until,
)
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

CALLS = 40
PRINTED = 50_000_000
PRINT = f"import sys\nfor _ in range(500): print('x' * {PRINTED // 500 - 1})\nsys.stdout.flush()"


class Other:
    """The other side: an event loop in a thread of its own, so that both sides are called in the same way."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)


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
    await client.wait_for_ready(timeout=DEADLINE)
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


# -- ours ----------------------------------------------------------------------------------------------------------


def execute(held: Daemon, code: str, session: str = "bench", **more: Any) -> dict[str, Any]:
    """Run one cell in a session, on a connection of its own."""
    with contextlib.closing(held.connect()) as connection:
        answer: dict[str, Any] = ask(
            connection, "POST", f"/api/kernels/{session}/execute", {"code": code, "cwd": "/tmp"} | more
        )
    if answer["status"] != "ok":
        raise RuntimeError(json.dumps(answer)[:2000])
    return answer


def first_cell_of_ours(held: Daemon, *, forked: bool) -> float:
    """Return what the first cell of a kernel takes."""
    begin = time.perf_counter()
    kernel = execute(held, "1+1")["kernel"]
    seconds = time.perf_counter() - begin
    method = held.ask("GET", f"/api/kernels/{kernel}")["start_method"]
    if method != ("zygote" if forked else "spawn"):
        raise RuntimeError(f"the kernel was started by {method}")
    held.ask("POST", f"/api/kernels/{kernel}/stop")
    return seconds


def has_zygote(held: Daemon) -> bool:
    """Say whether kernels can be forked."""
    return any(each["ready"] for each in held.ask("GET", "/api/kernels")["zygotes"])


def round_trip_of_ours(held: Daemon) -> float:
    with contextlib.closing(held.connect()) as connection:
        begin = time.perf_counter()
        for _ in range(CALLS):
            ask(connection, "POST", "/api/kernels/bench/execute", {"code": "1+1", "cwd": "/tmp"})
        return (time.perf_counter() - begin) / CALLS


def first_cells(other: Other, rounds: int) -> list[Row]:
    """Compare the first cell of a new session: forked from a zygote, and spawned."""
    with daemon([]) as held, daemon([], PX_DAEMON__ZYGOTES="0") as plain:
        execute(held, "1+1", reset=True)  # what the daemon imports once it has imported
        until(lambda: has_zygote(held), "a zygote")
        held.ask("POST", f"/api/kernels/{held.ask('GET', '/api/kernels')['kernels'][0]['id']}/stop")
        first_cell_of_ours(plain, forked=False)
        acts: dict[str, Callable[[], float]] = {
            "zygote": lambda: first_cell_of_ours(held, forked=True),
            "spawn": lambda: first_cell_of_ours(plain, forked=False),
            "theirs": lambda: float(other.run(first_cell_of_theirs())),
        }
        found = interleaved(acts, rounds)
    theirs = found["theirs"]
    names = {"zygote": "first cell, forked", "spawn": "first cell, spawned"}
    return [compared(words, found[name], theirs, "jupyter_client") for name, words in names.items()]


def round_trips(other: Other, rounds: int) -> list[Row]:
    """Compare a round trip of `1+1` with a client of one's own."""
    with daemon([]) as held:
        execute(held, "1+1")
        manager, client = other.run(started())

        async def own() -> float:
            begin = time.perf_counter()
            for _ in range(CALLS):
                await finish(client, "1+1")
            return (time.perf_counter() - begin) / CALLS

        acts: dict[str, Callable[[], float]] = {
            "ours": lambda: round_trip_of_ours(held),
            "own": lambda: float(other.run(own())),
        }
        found = interleaved(acts, rounds)
        other.run(ended(manager, client))
    return [compared("1+1", found["ours"], found["own"], "ZMQ client")]


def prints(other: Other, rounds: int) -> list[Row]:
    """Compare a print of 50 MB, and show what it does to the memory of the control plane."""
    with daemon([]) as held:
        execute(held, "1+1")
        manager, client = other.run(started())
        before = resident_mib(held.pids()[1])

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

        found = interleaved({"ours": ours, "theirs": theirs}, rounds)
        after = resident_mib(held.pids()[1])
        other.run(ended(manager, client))
    mine, drained = found["ours"], found["theirs"]
    return [
        compared("print of 50 MB, to disk", mine, drained, "drained ZMQ client"),
        Row("  control plane's memory", f"{after:.0f} MiB", f"before {before:.0f} MiB"),
    ]


def main() -> None:
    """Measure and print."""
    other = Other()
    rows = [*first_cells(other, 10), *round_trips(other, 10), *prints(other, 5)]
    print_table("Kernels: a call through the daemon against what one would use instead", rows)


if __name__ == "__main__":
    main()
