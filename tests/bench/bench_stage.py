"""What the benchmarks stand on: a daemon in a throw-away home, HTTP to it and to tools, medians, a
table.

Rule: every figure that is compared is taken in the same run, the rounds of both sides interleaved,
so that what slows the machine slows both; the ratio is the result, and the milliseconds are only
this machine's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))  # a benchmark is run by itself
from beside import free_port  # noqa: E402
from e2e.house import BIN, House, UnixConnection, house, until  # noqa: E402

__all__ = ["BIN", "UnixConnection", "free_port", "until"]
EXAMPLES = ROOT / "supervisord_py" / "examples" / "tools"
DEADLINE = 120.0


class Row(NamedTuple):
    """One line of the table: a figure, what it is compared with, and their ratio, as texts."""

    what: str
    figure: str
    against: str = ""
    ratio: str = ""


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    """Send a request on a kept connection and return the JSON of its answer; anything but
    success raises.
    """
    content = None if body is None else json.dumps(body).encode()
    connection.request(method, path, body=content, headers={"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status >= http.client.BAD_REQUEST:
        raise RuntimeError(
            f"{method} {path}: {response.status} {answer[:2000].decode(errors='replace')}"
        )
    return json.loads(answer) if answer else None


def local(port: int) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE))


class Daemon(House):
    def connect(self) -> UnixConnection:
        return UnixConnection(self.socket, DEADLINE)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        with contextlib.closing(self.connect()) as connection:
            return ask(connection, method, path, body)

    def run_tool(self, name: str, body: Any = None) -> Any:
        return self.ask("POST", f"/api/tools/{name}/run", {} if body is None else body)

    def fork_tool(self, name: str, body: Any = None) -> Any:
        """Run a tool until it was forked, and return its state: its zygote is made after its
        first start.
        """
        while True:
            self.run_tool(name, body)
            state = self.ask("GET", "/api/launcher/state")[name]
            if state["start_method"] == "zygote":
                return state
            self.ask("POST", f"/api/tools/{name}/stop")
            time.sleep(0.5)


@contextmanager
def daemon(tools: Sequence[Path] = (), **settings: str) -> Iterator[Daemon]:
    """Start a daemon that knows copies of `tools`; stop it and remove everything afterwards."""
    with house(settings, Daemon) as held:
        for tool in tools:
            shutil.copytree(
                tool, held.home / "tools" / tool.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        held.start()
        yield held
        held.stop()


def write_tool(folder: Path, program: str) -> Path:
    """Write a tool that takes and answers anything; return its folder."""
    folder.mkdir()
    (folder / "main.py").write_text(program)
    manifest = {
        "name": folder.name,
        "version": "1",
        "description": "Answers.",
        "input": {"type": "object"},
    }
    (folder / "tool.json").write_text(json.dumps({**manifest, "max_runtime_seconds": 120}))
    (folder / "test-request.json").write_text("{}")
    return folder


def request_of(folder: Path) -> Any:
    return json.loads((folder / "test-request.json").read_text())


@contextmanager
def process(*words: object, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([str(word) for word in words], **settings)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(60)


def together(acts: Sequence[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(acts)) as threads:
        for done in [threads.submit(act) for act in acts]:
            done.result()


def clocked(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that it took, and its result."""
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def timed(act: Callable[[], object]) -> float:
    return clocked(act)[0]


def interleaved(acts: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Take one figure of each per round, every other round in the opposite order; the first
    round is not counted.
    """
    figures: dict[str, list[float]] = {name: [] for name in acts}
    for count in range(rounds + 1):
        for name in list(acts) if count % 2 else reversed(list(acts)):
            figure = acts[name]()
            if count:
                figures[name].append(figure)
    return figures


def against(
    what: str, ours: Callable[[], float], theirs: Callable[[], float], rounds: int, whose: str = ""
) -> Row:
    """Return the row of two sides that are measured turn about."""
    found = interleaved({"ours": ours, "theirs": theirs}, rounds)
    return compared(what, found["ours"], found["theirs"], whose)


def milliseconds(samples: Sequence[float]) -> str:
    """Show a median, and where nine tenths lie below."""
    ninth = sorted(samples)[int(0.9 * (len(samples) - 1))]
    return f"{1000 * statistics.median(samples):.2f} ms (p90 {1000 * ninth:.2f})"


def ratio(one: Sequence[float], other: Sequence[float]) -> str:
    """Show how many times the median of `one` is that of `other`."""
    return f"{statistics.median(one) / statistics.median(other):.2f}x"


def compared(what: str, ours: Sequence[float], theirs: Sequence[float], whose: str = "") -> Row:
    return Row(
        what, milliseconds(ours), f"{whose} {milliseconds(theirs)}".strip(), ratio(ours, theirs)
    )


def resident_mib(*pids: int) -> float:
    """Return the resident memory of processes in MiB."""
    fields = [Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0] for pid in pids]
    return sum(map(int, fields)) / 1024


def cpu_seconds(pid: int) -> float:
    """Return what a process has used so far (proc_pid_stat(5): utime, stime), in ticks of the
    system's clock.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print the rows under a title; where `make bench` collects, write them down for its report
    as well.
    """
    print(f"\n{title}", flush=True)
    if collected := os.environ.get("BENCH_ROWS"):
        with Path(collected).open("a") as file:
            file.write(json.dumps({"title": title, "rows": [row._asdict() for row in rows]}) + "\n")
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = (
            f"  {row.what:<{wide[0]}}  {row.figure:>{wide[1]}}  {row.against:>{wide[2]}}  "
            f"{row.ratio:>8}"
        )
        print(line.rstrip())
