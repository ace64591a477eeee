"""The repository's frame: its scripts, its targets, its licence."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / ".ci").iterdir() if path.is_file())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_executable_strict_and_parses(name: str) -> None:
    script = ROOT / ".ci" / name
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("name", ["postinst", "postrm", "prerm"])
def test_a_maintainer_script_is_executable_strict_and_parses(name: str) -> None:
    script = ROOT / ".ci" / "debian" / name
    assert os.access(script, os.X_OK)
    assert "\nset -e\n" in script.read_text()
    subprocess.run(["sh", "-n", str(script)], check=True)


TARGETS = (
    "demo", "test", "deep", "lint", "types", "bench", "lock", "clean", "coverage", "dist", "peers", "weight", "deb",
    "brew", "notes",
)  # fmt: skip


def test_the_makefile_has_the_promised_targets() -> None:
    text = (ROOT / "Makefile").read_text()
    for target in TARGETS:
        assert re.search(rf"^{target}:.*## \S", text, re.MULTILINE), f"{target} says what it is for"
    subprocess.run(["make", "-n", *TARGETS], cwd=ROOT, check=True, capture_output=True, env=_outside_make())


def _outside_make() -> dict[str, str]:
    """Return the environment without what a surrounding make left in it: its options would reach the one we start."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def test_links_in_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert "://" in target or (ROOT / target).exists(), target
