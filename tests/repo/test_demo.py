"""`make demo` is run as it is, but for the environment, which is the tests' own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SECONDS = 110


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ROOT / ".ci" / "demo"],
        env=os.environ | {"VENV": sys.prefix},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def homes() -> set[Path]:
    return set(Path("/tmp").glob("pxdemo.*"))


def living() -> list[str]:
    """Return the command lines of processes whose environment names a demo's home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"PX_HOME=/tmp/pxdemo." in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def commands(require: Callable[[object, str], None]) -> None:
    require((Path(sys.prefix) / "bin" / "pxctl").exists(), "needs the installed commands")
    require(shutil.which("node"), "needs node")


@pytest.mark.deep
@pytest.mark.usefixtures("commands")
def test_the_demo_shows_what_it_promises_and_leaves_nothing() -> None:
    before = homes()
    with start() as demo:
        said, _ = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, said
    assert '"final_balance": 1647.01' in said
    assert "both are below 1e-6: agreed" in said
    assert "pxd stopped" in said
    assert (ROOT / ".demo" / "lorenz.png").read_bytes().startswith(b"\x89PNG")
    assert homes() == before


@pytest.mark.deep
@pytest.mark.usefixtures("commands")
def test_a_demo_that_is_ended_in_the_middle_leaves_nothing() -> None:
    before = homes()
    with start() as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("tool:"):
                break  # the daemon runs, and a tool is added
        demo.send_signal(signal.SIGTERM)
        said, _ = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 143, said
    assert homes() == before
    deadline = time.monotonic() + SECONDS
    while living():
        assert time.monotonic() < deadline, living()
        time.sleep(0.05)  # the pace; the wait is bounded above
