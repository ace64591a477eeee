"""Edges: streams that block, terminals that say nothing, processes that are somebody else's by now."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from beside import beside
from cli.fake_daemon import FakeDaemon, document
from cli.px import until
from pxctl import daemon_process
from pxctl.cells import write_whole
from pxctl.client import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def test_a_closed_stderr_is_no_reason_to_fail(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document({"units": []}))
    done = status_with("2>&-", px)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_closed_stdout_is_told_and_nothing_goes_to_the_daemon_instead(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document({"units": [{"unit": "tool:a", "state": "ready"}]}))
    done = status_with("<&- >&-", px)
    assert done.returncode == 1
    assert b"Bad file descriptor" in done.stderr
    assert len(daemon.seen) == 1


def test_a_process_is_known_by_more_than_its_pid() -> None:
    child = subprocess.Popen(["sleep", "60"])
    sighting = daemon_process.Sighting(child.pid, "x")
    assert sighting.alive
    child.kill()
    # Dead and not yet waited for: gone all the same.
    until(lambda: not sighting.alive, "a zombie counts as gone")
    child.wait()
    assert not sighting.alive
    assert not daemon_process.Sighting(2**22 + 7, "never").alive


def test_the_mark_by_ps_for_platforms_without_proc(require: Callable[[object, str], None]) -> None:
    require(shutil.which("ps"), "needs ps")
    assert daemon_process.mark_from_ps(os.getpid()) == daemon_process.mark_from_ps(os.getpid())
    assert daemon_process.mark_from_ps(os.getpid()) is not None
    assert daemon_process.mark_from_ps(2**22 + 7) is None
    child = subprocess.Popen(["true"])
    until(lambda: daemon_process.mark_from_ps(child.pid) is None, "a zombie counts as gone")
    child.wait()


def test_a_file_that_cannot_be_moved_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(Failure, match="cannot write"):
        write_whole(tmp_path / "there", [b"x"])
    assert os.listdir(tmp_path) == ["there"]
