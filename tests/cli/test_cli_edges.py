"""Edges: streams that block, terminals that say nothing, processes that are somebody else's by now."""

from __future__ import annotations

import os
import subprocess
import sys

from beside import beside
from cli.fake_daemon import FakeDaemon, document
from cli.px import Px


def test_a_pipe_that_somebody_made_non_blocking_gets_everything(px: Px, daemon: FakeDaemon) -> None:
    units = [{"unit": f"tool:{'x' * 100}{at}", "state": "ready"} for at in range(3000)]
    daemon.on("GET /api/status", document({"units": units}))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = beside([sys.executable, "-m", "pxctl", "status", "--json"], stdout=writing, env=px.environment())
    os.close(writing)
    got = b""
    with open(reading, "rb", buffering=0) as source:
        while piece := source.read(65536):
            got += piece
    assert process.wait(60) == 0
    assert got == document({"units": units}).partition(b"\r\n\r\n")[2] + b"\n"


def status_with(closed: str, px: Px) -> subprocess.CompletedProcess[bytes]:
    shell = ["/bin/sh", "-c", f'exec "{sys.executable}" -m pxctl status {closed}']
    return subprocess.run(shell, env=px.environment(), capture_output=True, check=False)


def test_a_closed_stdout_is_told_and_nothing_goes_to_the_daemon_instead(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document({"units": [{"unit": "tool:a", "state": "ready"}]}))
    done = status_with("<&- >&-", px)
    assert done.returncode == 1
    assert b"Bad file descriptor" in done.stderr
    assert len(daemon.seen) == 1
