"""`make demo` is run as it is, but for the environment, which is the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SECONDS = 110


def homes() -> set[Path]:
    return set(Path("/tmp").glob("pxdemo.*"))


@pytest.fixture
def commands(require: Callable[[object, str], None]) -> None:
    require((Path(sys.prefix) / "bin" / "pxctl").exists(), "needs the installed commands")
    require(shutil.which("node"), "needs node")


@pytest.mark.deep
@pytest.mark.usefixtures("commands")
def test_the_demo_shows_what_it_promises_and_leaves_nothing() -> None:
    before = homes()
    demo = subprocess.run(
        [ROOT / ".ci" / "demo"],
        env=os.environ | {"VENV": sys.prefix},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = demo.stdout
    assert demo.returncode == 0, said
    assert '"final_balance": 1647.01' in said
    assert "both are below 1e-6: agreed" in said
    assert "pxd stopped" in said
    assert (ROOT / ".demo" / "lorenz.png").read_bytes().startswith(b"\x89PNG")
    assert homes() == before
