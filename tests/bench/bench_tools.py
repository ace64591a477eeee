"""Tools: from nothing to the first answer, forked and spawned, against 'start it, ask /healthz each
100 ms'; and a warm call through the daemon, and through a bare relay, against the same call made to
the tool itself, on kept connections.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench_stage as stage

POLL_SECONDS = 0.1
TEN = 10
NAME = "compound-interest"
BODY = stage.request_of(stage.EXAMPLES / NAME)
CALLS = 100
CLIENTS = 16
FEWER = 25
Connect = Callable[[], http.client.HTTPConnection]
# after which the daemon has given up its connection to a tool, and zygotes have been made
IDLE_SECONDS = 2.0
IMPORTS = {"fastapi": "", "fastapi-numpy-scipy": "import numpy\nimport scipy.integrate\n"}
APP = """
import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/healthz")
def healthz():
    return {"ok": True}


@app.post("/run")
def run(asked: dict):
    return asked


uvicorn.run(app, port=int(sys.argv[-1]), log_level="warning")
"""


def made(place: Path) -> dict[str, Path]:
    """Return the folders of the tools that are measured, by name: the examples, and what many
    tools are made of.
    """
    names = ["compound-interest", "lorenz-ode-solver"] + (
        ["text-stats"] if shutil.which("node") else []
    )
    folders = {name: stage.EXAMPLES / name for name in names}
    for name in (*IMPORTS, *(f"ten-{number}" for number in range(TEN))):
        folders[name] = stage.write_tool(place / name, IMPORTS.get(name, "") + APP)
    return folders


def polled(port: int, body: Any) -> None:
    """Ask for health every POLL_SECONDS until it is told, then send the request."""
    with stage.local(port) as connection:
        while True:
            try:
                stage.ask(connection, "GET", "/healthz")
                break
            except OSError:
                connection.close()
                time.sleep(POLL_SECONDS)
        stage.ask(connection, "POST", "/run", body)


def by_polling(*folders: Path) -> float:
    """Measure the usual way, with all these tools at once."""
    bodies = [stage.request_of(folder) for folder in folders]
    usual = [sys.executable, "main.py", "--port", "{port}"]
    with contextlib.ExitStack() as children:
        begin, ports = time.perf_counter(), [stage.free_port() for _ in folders]
        for folder, port in zip(folders, ports, strict=True):
            command = json.loads((folder / "tool.json").read_text()).get("command", usual)
            words = [part.replace("{port}", str(port)) for part in command]
            children.enter_context(stage.process(*words, cwd=folder))
        stage.together([partial(polled, *each) for each in zip(ports, bodies, strict=True)])
        return time.perf_counter() - begin


def through(held: stage.Daemon, method: str, *folders: Path) -> float:
    """Measure the daemon's way: the tools are stopped, then asked; all starts must be by that
    method.
    """
    bodies = {folder.name: stage.request_of(folder) for folder in folders}
    while True:  # what a tool imports is known after its first start
        for name in bodies:
            held.ask("POST", f"/api/tools/{name}/stop")
        seconds = stage.timed(
            lambda: stage.together([partial(held.run_tool, *each) for each in bodies.items()])
        )
        state = held.ask("GET", "/api/launcher/state")
        if all(state[name]["start_method"] == method for name in bodies):
            return seconds
        time.sleep(1.0)


def use(held: stage.Daemon, *folders: Path) -> None:
    """Use tools as they are used, with pauses: what a request imports is learnt by the next
    connection.
    """
    for _ in range(2):
        for folder in folders:
            held.run_tool(folder.name, stage.request_of(folder))
        time.sleep(IDLE_SECONDS)


def share(held: stage.Daemon, group: list[Path]) -> float:
    """Return the MiB of one of these tools, pages that several processes have shared among them
    (PSS).
    """
    state = held.ask("GET", "/api/launcher/state")
    pages = [
        Path(f"/proc/{state[folder.name]['pid']}/smaps_rollup").read_text() for folder in group
    ]
    return sum(int(page.split("Pss:")[1].split()[0]) for page in pages) / 1024 / len(group)


def cold_starts(rounds: int = 15) -> list[stage.Row]:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folders = made(Path(place))
        tens = [folder for name, folder in folders.items() if name.startswith("ten-")]
        groups = {name: [folder] for name, folder in folders.items() if folder not in tens} | {
            "ten at once": tens
        }
        settings, unforked = {"PX_TOOLS__WARM_KEEP_MAX": "20"}, {"PX_DAEMON__ZYGOTES": "0"}
        # each in a daemon that has no others: its zygote imports what these need
        for name, group in groups.items():
            with (
                stage.daemon(group, **settings) as held,
                stage.daemon(group, **settings, **unforked) as plain,
            ):
                acts = {
                    "spawn": partial(through, plain, "spawn", *group),
                    "polling": partial(by_polling, *group),
                }
                if name != "text-stats":  # it is no Python
                    use(held, *group)
                    acts["zygote"] = partial(through, held, "zygote", *group)
                    acts["zygote"]()
                found = stage.interleaved(acts, rounds if len(group) == 1 else rounds // 3)
                theirs = found.pop("polling")
                rows += [
                    stage.compared(f"{name}, {method}", ours, theirs)
                    for method, ours in found.items()
                ]
                if name != "text-stats":
                    mine, spawned = share(held, group), share(plain, group)
                    figures = (
                        f"{mine:.0f} MiB",
                        f"{spawned:.0f} MiB spawned",
                        f"{mine / spawned:.2f}x",
                    )
                    rows.append(stage.Row(f"{name}, memory of one (PSS)", *figures))
    return rows


def calls(connect: Connect, path: str, count: int) -> float:
    """Return the seconds of one call, the mean over `count` on one connection."""
    with contextlib.closing(connect()) as connection:
        stage.ask(connection, "POST", path, BODY)
        return (
            stage.timed(lambda: [stage.ask(connection, "POST", path, BODY) for _ in range(count)])
            / count
        )


def crowd(connect: Connect, path: str) -> float:
    """Return the seconds per call when CLIENTS connections call at the same time."""
    seconds = stage.timed(lambda: stage.together([lambda: calls(connect, path, FEWER)] * CLIENTS))
    return seconds / (CLIENTS * (FEWER + 1))


def warm_calls(rounds: int = 20) -> list[stage.Row]:
    with stage.daemon([stage.EXAMPLES / NAME]) as held, tempfile.TemporaryDirectory() as place:
        # from then on nothing else goes on in the daemon
        port = int(held.fork_tool(NAME, BODY)["port"])
        relay, ours, theirs = Path(place) / "relay", f"/api/tools/{NAME}/run", "/run"

        def direct() -> http.client.HTTPConnection:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=stage.DEADLINE)

        with stage.process(sys.executable, Path(__file__).with_name("relay.py"), relay, port):
            stage.until(relay.exists, "the relay")
            acts = {
                "daemon": lambda: calls(held.connect, ours, CALLS),
                "relay": lambda: calls(lambda: stage.UnixConnection(str(relay)), ours, CALLS),
                "direct": lambda: calls(direct, theirs, CALLS),
            }
            one = stage.interleaved(acts, rounds)
        acts = {
            "daemon": lambda: crowd(held.connect, ours),
            "direct": lambda: crowd(direct, theirs),
        }
        many = stage.interleaved(acts, rounds // 2)
    added = 1000 * (statistics.median(one["daemon"]) - statistics.median(one["direct"]))
    return [
        stage.compared("one client", one["daemon"], one["direct"]),
        stage.Row("added by the daemon", f"{added:.2f} ms"),
        stage.compared("one client, a bare aiohttp relay", one["relay"], one["direct"]),
        stage.compared(f"per call, {CLIENTS} clients", many["daemon"], many["direct"]),
    ]


if __name__ == "__main__":
    stage.print_table(
        "cold start to first answer: daemon, polling every 100 ms, times as long", cold_starts()
    )
    stage.print_table("warm call: through the daemon, direct, times as long", warm_calls())
