"""Output at full speed: a child that writes as fast as it is read, through the keeper, against a plain reader.

The plain reader does the least that somebody who keeps output must do: read the pipe and write a file.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from bench_stage import DEADLINE, Row, ask, daemon, free_port, interleaved, print_table, resident_mib, until, write_tool

from e2e.house import server

MIB = 128
WRITER = server("""
    block, left, begin = (b"x" * 99 + b"\\n") * 656, body["mib"] << 20, time.perf_counter()
    while left > 0:
        left -= os.write(1, block)
    return {"seconds": time.perf_counter() - begin}
""")


def copy(source: int, target: int) -> None:
    """Be the plain reader until the pipe ends."""
    while piece := os.read(source, 65536):
        os.write(target, piece)


def measure(rounds: int = 5) -> list[Row]:
    """Return the speeds of both, and what the keeper's memory became."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        tool = write_tool(Path(folder) / "writer", WRITER)
        plain = subprocess.Popen([sys.executable, tool / "main.py", "--port", str(port)], stdout=subprocess.PIPE)
        assert plain.stdout is not None
        with daemon([tool]) as held, (Path(folder) / "out").open("wb") as out:
            reader = threading.Thread(target=copy, args=(plain.stdout.fileno(), out.fileno()))
            reader.start()

            def direct() -> float:
                os.ftruncate(out.fileno(), 0)
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
                    return MIB / float(ask(connection, "POST", "/run", {"mib": MIB})["seconds"])

            def ours() -> float:
                return MIB / float(held.ask("POST", "/api/tools/writer/run", {"mib": MIB})["seconds"])

            def up() -> bool:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    return True
                return False

            try:
                until(up, "the plain writer listens")
                figures = interleaved({"keeper": ours, "plain": direct}, rounds)
                memory = resident_mib(held.pids()[0])
            finally:
                plain.kill()
                plain.wait()
                reader.join()
                plain.stdout.close()
    mine, theirs = (statistics.median(figures[name]) for name in ("keeper", "plain"))
    return [
        Row(f"{MIB} MiB of lines", f"{mine:.0f} MiB/s", f"{theirs:.0f} MiB/s", f"{mine / theirs:.2f}x"),
        Row("keeper, resident afterwards", f"{memory:.1f} MiB"),
    ]


if __name__ == "__main__":
    print_table("output at full speed: through the keeper, plain reader that writes a file, times as fast", measure())
