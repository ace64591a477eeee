"""The control plane's start: processor time and modules up to its first answer, memory, and back after `kill -9`.

Its processor time is compared with that of a Python that imports the libraries it stands on and ends.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench_stage import Daemon, Row, daemon, interleaved, print_table, ratio, resident_mib, timed, until

LIBRARIES = "import aiohttp.web, sqlite3, msgspec, structlog"
DAEMONS = 3
ROUNDS = 2  # of each daemon, one more is not counted: after three deaths in a row the keeper begins to make pauses
MODULES = """
import sys
import supervisord_py.daemon.control, supervisord_py.daemon.control_plane, supervisord_py.daemon.logging
from supervisord_py.api.routes import handler_of
handler_of("daemon.health")
print(sum(name.partition(".")[0] == "supervisord_py" for name in sys.modules))
"""


def libraries() -> float:
    """Return the processor seconds of a Python that imports the libraries."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", "-c", LIBRARIES], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> list[Row]:
    """Return the rows."""
    ours = subprocess.run([sys.executable, "-P", "-c", MODULES], check=True, capture_output=True, text=True).stdout
    control: list[float] = []
    plain: list[float] = []
    back: list[float] = []
    for _ in range(DAEMONS):
        came: list[float] = []
        with daemon([]) as held:
            time.sleep(2)
            idle = resident_mib(held.pids()[1])

            def replaced(held: Daemon = held, came: list[float] = came) -> float:
                """Kill the control plane; return the processor seconds of the next one up to its first answer."""
                os.kill(held.pids()[1], signal.SIGKILL)
                came.append(timed(lambda: until(held.answers, "the next control plane answers")))
                fields = Path(f"/proc/{held.pids()[1]}/stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

            figures = interleaved({"control": replaced, "libraries": libraries}, ROUNDS)
        control += figures["control"]
        plain += figures["libraries"]
        back += came[1:]
    cpu, other = f"{statistics.median(control):.2f} s", f"{statistics.median(plain):.2f} s for '{LIBRARIES}'"
    return [
        Row("own modules imported", ours.strip()),
        Row("resident, idle", f"{idle:.1f} MiB"),
        Row("CPU up to the first answer", cpu, other, ratio(control, plain)),
        Row("kill -9 to the next answer", f"{statistics.median(back):.2f} s"),
    ]


if __name__ == "__main__":
    print_table("The control plane", measure())
