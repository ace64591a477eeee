"""`make demo` is run as it is, but for the environment, which is the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.deep
def test_the_demo_shows_what_it_promises_and_leaves_nothing(require: Callable[[object, str], None]) -> None:
    require((Path(sys.prefix) / "bin" / "pxctl").exists(), "needs the installed commands")
    require(shutil.which("node"), "needs node")
    before = set(Path("/tmp").glob("pxdemo.*"))
    env, out, both = os.environ | {"VENV": sys.prefix}, subprocess.PIPE, subprocess.STDOUT
    demo = subprocess.run(
        [ROOT / ".ci" / "demo"], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=both, timeout=110, check=False
    )
    said = demo.stdout.decode()
    assert demo.returncode == 0, said
    for promised in ('"final_balance": 1647.01', "both are below 1e-6: agreed", "pxd stopped"):
        assert promised in said
    assert (ROOT / ".demo" / "lorenz.png").read_bytes().startswith(b"\x89PNG")
    assert set(Path("/tmp").glob("pxdemo.*")) == before
