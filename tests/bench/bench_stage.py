"""What the benchmarks stand on: a daemon in a throw-away home, HTTP to it and to tools, medians, a table.

Rule: every figure that is compared is taken in the same run, the rounds of both sides interleaved, so that what slows
the machine slows both; the ratio is the result, and the milliseconds are only this machine's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "supervisord_py" / "examples" / "tools"
BIN = Path(sys.executable).parent
DEADLINE = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, what it is compared with, and their ratio, as texts."""

    what: str
    figure: str
    against: str = ""
    ratio: str = ""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("px", timeout=DEADLINE)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the path instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(DEADLINE)
        self.sock.connect(self._path)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    """Send a request on a kept connection and return the JSON of its answer; anything but success raises."""
    content = None if body is None else json.dumps(body).encode()
    connection.request(method, path, body=content, headers={"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status >= http.client.BAD_REQUEST:
        raise RuntimeError(f"{method} {path}: {response.status} {answer[:2000].decode(errors='replace')}")
    return json.loads(answer) if answer else None


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon of ours."""

    home: Path
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> Path:
        return self.home / "run" / "pxd.sock"

    def connect(self) -> UnixConnection:
        return UnixConnection(self.socket)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        with contextlib.closing(self.connect()) as connection:
            return ask(connection, method, path, body)

    def pids(self) -> tuple[int, int]:
        """Return the pids of keeper and control plane."""
        facts = self.ask("GET", "/api/daemon")
        return facts["keeper"]["pid"], facts["control"]["pid"]


def write_tool(folder: Path, program: str) -> Path:
    """Write a tool that takes and answers anything; return its folder."""
    folder.mkdir()
    (folder / "main.py").write_text(program)
    (folder / "tool.json").write_text(
        json.dumps({"name": folder.name, "version": "1", "description": "Answers.", "input": {"type": "object"}})
    )
    (folder / "test-request.json").write_text("{}")
    return folder


@contextmanager
def daemon(tools: Sequence[Path], **settings: str) -> Iterator[Daemon]:
    """Start a daemon that knows copies of `tools`; stop it and remove everything afterwards."""
    home = Path(tempfile.mkdtemp(prefix="pxb", dir="/tmp"))
    try:
        for tool in tools:
            shutil.copytree(tool, home / "tools" / tool.name, ignore=shutil.ignore_patterns("__pycache__"))
        env = {name: value for name, value in os.environ.items() if not name.startswith("PX_")}
        env |= {"PX_HOME": str(home)} | settings
        with (home / "pxd.err").open("wb") as err:
            process = subprocess.Popen([BIN / "pxd"], env=env, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        try:
            held = Daemon(home, process)
            until(lambda: answers(held), f"pxd answers; see {home}/pxd.err")
            yield held
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def answers(held: Daemon) -> bool:
    """Say whether the API serves."""
    if held.process.poll() is not None:
        raise RuntimeError((held.home / "pxd.err").read_text(errors="replace"))
    try:
        return bool(held.ask("GET", "/api/health")["ok"])
    except (OSError, RuntimeError):
        return False


def until(condition: Callable[[], object], what: str) -> None:
    """Poll every 10 ms until it is so."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {DEADLINE} s: {what}")
        time.sleep(0.01)


def timed(act: Callable[[], object]) -> float:
    """Return the seconds that it took."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def interleaved(acts: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Take one figure of each per round, every other round in the opposite order; the first round is not counted."""
    figures: dict[str, list[float]] = {name: [] for name in acts}
    for count in range(rounds + 1):
        for name in list(acts) if count % 2 else reversed(list(acts)):
            figure = acts[name]()
            if count:
                figures[name].append(figure)
    return figures


def milliseconds(samples: Sequence[float]) -> str:
    """Show a median, and where nine tenths lie below."""
    ninth = sorted(samples)[int(0.9 * (len(samples) - 1))]
    return f"{1000 * statistics.median(samples):.2f} ms (p90 {1000 * ninth:.2f})"


def ratio(one: Sequence[float], other: Sequence[float]) -> str:
    """Show how many times the median of `one` is that of `other`."""
    return f"{statistics.median(one) / statistics.median(other):.2f}x"


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in fields if line.startswith("VmRSS")).split()[1]) / 1024


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print the rows under a title; where `make bench` collects, write them down for its report as well."""
    print(f"\n{title}", flush=True)
    if collected := os.environ.get("BENCH_ROWS"):
        with Path(collected).open("a") as file:
            file.write(json.dumps({"title": title, "rows": [asdict(row) for row in rows]}) + "\n")
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("what", "figure", "against")]
    for row in rows:
        print(
            f"  {row.what:<{widths[0]}}  {row.figure:>{widths[1]}}  {row.against:>{widths[2]}}  {row.ratio:>8}".rstrip()
        )
