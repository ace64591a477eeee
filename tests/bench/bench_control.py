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


class Replaced:
    """Kills the control plane, waits for the answer of the next one, and notes both figures."""

    def __init__(self, held: Daemon) -> None:
        self.held = held
        self.back: list[float] = []

    def __call__(self) -> float:
        """Return the processor seconds that the new control plane used up to its first answer."""
        _, old = self.held.pids()
        os.kill(old, signal.SIGKILL)
        self.back.append(timed(lambda: until(self._serves, "the next control plane answers")))
        new = self.held.pids()[1]
        fields = Path(f"/proc/{new}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _serves(self) -> bool:
        try:
            return bool(self.held.ask("GET", "/api/health")["ok"])
        except (OSError, RuntimeError):
            return False


def measure() -> list[Row]:
    """Return the rows."""
    ours = subprocess.run([sys.executable, "-P", "-c", MODULES], check=True, capture_output=True, text=True).stdout
    control: list[float] = []
    plain: list[float] = []
    back: list[float] = []
    for _ in range(DAEMONS):
        with daemon([]) as held:
            time.sleep(2)
            idle = resident_mib(held.pids()[1])
            replaced = Replaced(held)
            figures = interleaved({"control": replaced, "libraries": libraries}, ROUNDS)
        control += figures["control"]
        plain += figures["libraries"]
        back += replaced.back[1:]
    return [
        Row("own modules imported", ours.strip()),
        Row("resident, idle", f"{idle:.1f} MiB"),
        Row(
            "CPU up to the first answer",
            f"{statistics.median(control):.2f} s",
            f"{statistics.median(plain):.2f} s for '{LIBRARIES}'",
            ratio(control, plain),
        ),
        Row("kill -9 to the next answer", f"{statistics.median(back):.2f} s"),
    ]


if __name__ == "__main__":
    print_table("The control plane", measure())
