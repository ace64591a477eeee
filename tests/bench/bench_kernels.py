"""Kernels through the daemon against what one would use instead: jupyter_client's manager and
client, and a gateway.

Six comparisons: the first cell of a new session, prepared, forked and spawned, those of eight at
the same moment, a round trip of `1+1`, the same through a kernel_gateway's websocket, and a print
of 50 MB of which no byte may be lost on either side.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import bench_stage as stage
import websocket
from jupyter_client.manager import start_new_kernel

from kernels.gateway_house import TOKEN, gateway

CALLS = 40
KERNELS = 8
REST_SECONDS = 0.2  # in which a kernel that has its sockets is prepared to the end
PRINTED = 50_000_000
PRINT = f"import sys\nfor _ in range(500): print('x' * {PRINTED // 500 - 1})\nsys.stdout.flush()"


# -- theirs ----------------------------------------------------------------------------------------


def started() -> Any:
    """Return a kernel's manager and its client; it warns of TCP each time."""
    return start_new_kernel(
        startup_timeout=stage.DEADLINE, kernel_name="python3", stderr=subprocess.DEVNULL
    )


def ended(manager: Any, client: Any) -> None:
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def finish(client: Any, code: str = "1+1") -> int:
    """Run a cell to its reply and idle; return the bytes that it printed, all of them drained as
    they came.
    """
    sizes: list[int] = []
    options: dict[str, Any] = {"store_history": False, "timeout": stage.DEADLINE}
    client.execute_interactive(
        code, output_hook=lambda it: sizes.append(len(it["content"].get("text", ""))), **options
    )
    return sum(sizes)


def started_and_asked() -> Any:
    pair = started()
    finish(pair[1])
    return pair


@contextlib.contextmanager
def channels(url: str, token: str) -> Iterator[Any]:
    """Give the websocket of a new kernel behind a gateway."""
    headers, port = {"Authorization": f"token {token}"}, int(url.rpartition(":")[2])
    with stage.local(port) as connection:
        connection.request("POST", "/api/kernels", '{"name": "python3"}', headers)
        address = f"ws://127.0.0.1:{port}/api/kernels/{json.load(connection.getresponse())['id']}/channels"
    with contextlib.closing(
        websocket.create_connection(address, stage.DEADLINE, header=headers)
    ) as wire:
        yield wire


def through_gateway(wire: Any) -> None:
    sent = secrets.token_hex(8)
    header = {
        "msg_id": sent,
        "msg_type": "execute_request",
        "username": "",
        "session": "bench",
        "version": "5.3",
    }
    content = {
        "code": "1+1",
        "silent": False,
        "store_history": False,
        "allow_stdin": False,
        "stop_on_error": True,
    }
    message = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
    }
    wire.send(json.dumps(message | {"buffers": []}))
    missing = {"execute_reply", "idle"}
    while missing:
        told = json.loads(wire.recv())
        if told["parent_header"].get("msg_id") == sent:
            missing -= {told["msg_type"], told["content"].get("execution_state")}


# -- ours ------------------------------------------------------------------------------------------


def execute(
    held: stage.Daemon, code: str = "1+1", session: str = "bench", **more: Any
) -> dict[str, Any]:
    answer: dict[str, Any] = held.ask(
        "POST", f"/api/kernels/{session}/execute", {"code": code, "cwd": "/tmp"} | more
    )
    if answer["status"] != "ok":
        raise RuntimeError(json.dumps(answer)[:2000])
    return answer


def stop_all(held: stage.Daemon) -> None:
    for kernel in held.ask("GET", "/api/kernels")["kernels"]:
        held.ask("POST", f"/api/kernels/{kernel['id']}/stop")


def first_cell_of_ours(held: stage.Daemon, method: str) -> float:
    seconds, answer = stage.clocked(lambda: execute(held))
    kernel = answer["kernel"]
    if (found := held.ask("GET", f"/api/kernels/{kernel}")["start_method"]) != method:
        raise RuntimeError(f"the kernel was started by {found}")
    held.ask("POST", f"/api/kernels/{kernel}/stop")
    return seconds


def with_zygote(held: stage.Daemon) -> None:
    """Have a zygote, and what the daemon imports once imported."""
    execute(held)
    stage.until(
        lambda: any(each["ready"] for each in held.ask("GET", "/api/kernels")["zygotes"]),
        "a zygote",
    )


# -- side by side ----------------------------------------------------------------------------------


def first_cells(rounds: int = 10) -> list[stage.Row]:
    def theirs() -> float:
        seconds, pair = stage.clocked(started_and_asked)
        ended(*pair)
        return seconds

    def prepared() -> float:
        place = held.home / "run" / "k" / "prepared"
        stage.until(lambda: list(place.glob("*-5")), "the last socket of a kernel that is prepared")
        time.sleep(REST_SECONDS)
        return first_cell_of_ours(held, "zygote")

    def forked() -> float:
        # it takes what was prepared; right after it, nothing is
        kernel = execute(held, session="before")["kernel"]
        seconds = first_cell_of_ours(held, "zygote")
        held.ask("POST", f"/api/kernels/{kernel}/stop")
        return seconds

    with stage.daemon() as held, stage.daemon(PX_DAEMON__ZYGOTES="0") as plain:
        with_zygote(held)
        stop_all(held)
        acts = {
            "prepared": prepared,
            "forked": forked,
            "spawned": partial(first_cell_of_ours, plain, "spawn"),
        }
        acts["spawned"]()
        found = stage.interleaved(acts | {"": theirs}, rounds)
    peer = found.pop("")
    return [
        stage.compared(f"first cell, {how}", ours, peer, "jupyter_client")
        for how, ours in found.items()
    ]


def at_once(rounds: int = 5) -> list[stage.Row]:
    def theirs() -> float:
        seconds, pairs = stage.clocked(
            lambda: list(threads.map(lambda _: started_and_asked(), range(KERNELS)))
        )
        for pair in pairs:
            ended(*pair)
        return seconds

    def ours() -> float:
        stop_all(held)
        each = partial(
            threads.map, lambda at: execute(held, session=f"bench{at}")["kernel"], range(KERNELS)
        )
        seconds, kernels = stage.clocked(lambda: set(each()))
        if len(kernels) != KERNELS:
            raise RuntimeError("sessions shared a kernel")
        return seconds

    with (
        stage.daemon(PX_KERNELS__MAX_SESSIONS=str(KERNELS)) as held,
        ThreadPoolExecutor(KERNELS) as threads,
    ):
        with_zygote(held)
        words = f"first cells of {KERNELS} at once, forked"
        return [stage.against(words, ours, theirs, rounds, "jupyter_client")]


def round_trips(rounds: int = 10) -> list[stage.Row]:
    def mean(act: Any, *what: Any) -> float:
        return stage.timed(lambda: [act(*what) for _ in range(CALLS)]) / CALLS

    call = ("POST", "/api/kernels/bench/execute", {"code": "1+1", "cwd": "/tmp"})
    with (
        stage.daemon() as held,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as open_ones,
    ):
        execute(held)
        manager, client = started()
        url = open_ones.enter_context(gateway(Path(folder) / "gateway"))
        wire = open_ones.enter_context(channels(url, TOKEN))
        connection = open_ones.enter_context(contextlib.closing(held.connect()))
        acts = {
            "": lambda: mean(stage.ask, connection, *call),
            "ZMQ client": lambda: mean(finish, client),
            "gateway websocket": lambda: mean(through_gateway, wire),
        }
        found = stage.interleaved(acts, rounds)
        ended(manager, client)
    ours = found.pop("")
    return [stage.compared("1+1", ours, theirs, name) for name, theirs in found.items()]


def prints(rounds: int = 5) -> list[stage.Row]:
    def whole(act: Any, *what: Any) -> float:
        seconds, printed = stage.clocked(lambda: act(*what))
        if printed != PRINTED:
            raise RuntimeError(f"{printed} bytes of {PRINTED} arrived")
        return seconds

    with stage.daemon() as held:
        execute(held)
        manager, client = started()
        before = stage.resident_mib(held.pids()[1])
        ours = partial(whole, lambda: execute(held, PRINT, timeout=120)["cells"][0]["total_bytes"])
        theirs = partial(whole, finish, client, PRINT)
        row = stage.against("print of 50 MB, to disk", ours, theirs, rounds, "drained ZMQ client")
        after = stage.resident_mib(held.pids()[1])
        ended(manager, client)
    return [
        row,
        stage.Row("  control plane's memory", f"{after:.0f} MiB", f"before {before:.0f} MiB"),
    ]


if __name__ == "__main__":
    rows = [*first_cells(), *at_once(), *round_trips(), *prints()]
    stage.print_table("Kernels: a call through the daemon against what one would use instead", rows)
