"""What the daemon itself costs: a spawn by the keeper, the control plane's start, output at full
speed.

A spawn is compared with Popen of the same program; the processor time of the control plane with
that of a Python that imports the libraries it stands on; output with a plain reader that does the
least that somebody who keeps it must do: read the pipe and write a file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import bench_stage as stage

from e2e.house import server
from keeper.keeper_rig import PLAIN_ARGV, Rig

SPAWNS = 300
TRUE = shutil.which("true") or "/bin/true"
LIBRARIES = "import aiohttp.web, sqlite3, msgspec, structlog"
DAEMONS = 3
# of each daemon, one more is not counted: after three deaths in a row the keeper begins to make
# pauses
ROUNDS = 2
MODULES = """
import sys
import supervisord_py.daemon.control, supervisord_py.daemon.control_plane, supervisord_py.daemon.logging
from supervisord_py.api.routes import handler_of
handler_of("daemon.health")
print(sum(name.partition(".")[0] == "supervisord_py" for name in sys.modules))
"""
MIB = 128
WRITER = server("""
    block, left, begin = (b"x" * 99 + b"\\n") * 656, body["mib"] << 20, time.perf_counter()
    while left > 0:
        left -= os.write(1, block)
    return {"seconds": time.perf_counter() - begin}
""")


def spawns() -> list[stage.Row]:
    ours, theirs = [], []
    with contextlib.closing(Rig()) as rig:
        rig.argv = PLAIN_ARGV
        link = rig.up()
        for _ in range(SPAWNS + 20):
            order = rig.spec([TRUE])
            ours.append(stage.timed(lambda order=order: link.call("spawn", **order)))  # type: ignore[misc]
            theirs.append(
                stage.timed(
                    lambda: subprocess.Popen([TRUE], start_new_session=True, pipesize=-1).wait()
                )
            )
            link.event("gone", key=order["key"])
            link.call("release", key=order["key"])
            link.events.clear()
        memory = stage.resident_mib(rig.pid)
    return [
        stage.compared("spawn, exec confirmed", ours[20:], theirs[20:]),
        stage.Row("fastest", f"{1000 * min(ours):.2f} ms", f"{1000 * min(theirs):.2f} ms"),
        stage.Row("keeper, resident", f"{memory:.1f} MiB", "target: 14 MiB"),
    ]


def libraries() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", "-c", LIBRARIES], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def control_planes() -> list[stage.Row]:
    ours = subprocess.run(
        [sys.executable, "-P", "-c", MODULES], check=True, capture_output=True, text=True
    ).stdout
    figures: dict[str, list[float]] = {"control": [], "libraries": []}
    back: list[float] = []

    def replaced(held: stage.Daemon) -> float:
        """Kill the control plane; return the processor seconds of the next one up to its first
        answer.
        """
        os.kill(held.pids()[1], signal.SIGKILL)
        back.append(
            stage.timed(lambda: stage.until(held.answers, "the next control plane answers"))
        )
        return stage.cpu_seconds(held.pids()[1])

    for _ in range(DAEMONS):
        with stage.daemon() as held:
            time.sleep(2)
            idle = stage.resident_mib(held.pids()[1])
            acts = {"control": partial(replaced, held), "libraries": libraries}
            for name, seconds in stage.interleaved(acts, ROUNDS).items():
                figures[name] += seconds
    cpu, other = (f"{statistics.median(seconds):.2f} s" for seconds in figures.values())
    del back[:: ROUNDS + 1]  # the first of each
    return [
        stage.Row("own modules imported", ours.strip()),
        stage.Row("resident, idle", f"{idle:.1f} MiB"),
        stage.Row(
            "CPU up to the first answer",
            cpu,
            f"{other} for '{LIBRARIES}'",
            stage.ratio(*figures.values()),
        ),
        stage.Row("kill -9 to the next answer", f"{statistics.median(back):.2f} s"),
    ]


def output(rounds: int = 25) -> list[stage.Row]:
    port = stage.free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "out").open("wb") as out:
        tool = stage.write_tool(Path(folder) / "writer", WRITER)
        words = (sys.executable, tool / "main.py", "--port", port)
        with stage.daemon([tool]) as held, stage.process(*words, stdout=subprocess.PIPE) as plain:

            def copy() -> None:
                while piece := os.read(plain.stdout.fileno(), 65536):
                    os.write(out.fileno(), piece)

            def direct() -> float:
                os.ftruncate(out.fileno(), 0)
                with stage.local(port) as connection:
                    return MIB / float(
                        stage.ask(connection, "POST", "/run", {"mib": MIB})["seconds"]
                    )

            def ours() -> float:
                return MIB / float(held.run_tool("writer", {"mib": MIB})["seconds"])

            def up() -> bool:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=1),
                ):
                    return True
                return False

            threading.Thread(target=copy).start()
            stage.until(up, "the plain writer listens")
            figures = stage.interleaved({"keeper": ours, "plain": direct}, rounds)
            memory = stage.resident_mib(held.pids()[0])
    mine, theirs = (statistics.median(speeds) for speeds in figures.values())
    return [
        stage.Row(
            f"{MIB} MiB of lines",
            f"{mine:.0f} MiB/s",
            f"{theirs:.0f} MiB/s",
            f"{mine / theirs:.2f}x",
        ),
        stage.Row("keeper, resident afterwards", f"{memory:.1f} MiB"),
    ]


if __name__ == "__main__":
    tables = {
        "spawn: keeper's answer, Popen and wait of the same program (target: 3 ms)": spawns,
        "The control plane": control_planes,
        "output at full speed: through the keeper, plain reader that writes a file, "
        "times as fast": output,
    }
    for title, rows in tables.items():
        stage.print_table(title, rows())
