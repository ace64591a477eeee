"""The pipes that ship with the package: usable as they are, and the one without a model does its work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pipe_texts import usable
from supervisord_py.pipes.catalog import read_pipe
from supervisord_py.pipes.definition import USED
from supervisord_py.pipes.models import PipeDefinition

EXAMPLES = Path(__file__).parents[2] / "supervisord_py" / "examples" / "pipes"
HEADER = """Time range: 2026-11-20T08:00:00Z to 2026-11-21T08:00:00Z
Date: 2026-11-21
Timezone: Europe/Berlin (UTC+01:00)
Output directory: ./output/7/
API: unix socket /run/pxd.sock

"""
SCHEDULES = (
    "manual",
    "every 30m",
    "every 2 hours",
    "1d",
    "hourly",
    "daily at 9:30am",
    "weekday at 18:00",
    "mon,thu at 8",
    "weekend at 12:00",
    "*/15 8-20 * * 1-5",
    "@daily",
    "at 2099-01-01T09:00:00Z",
    "2026-12-01 10:00",
)


def example(name: str) -> PipeDefinition:
    found = read_pipe(EXAMPLES / name)
    assert isinstance(found, PipeDefinition)
    return found


@pytest.mark.parametrize("name", sorted(each.name for each in EXAMPLES.iterdir()))
def test_an_example_is_a_pipe_without_a_warning(name: str) -> None:
    found = example(name)
    assert found.warnings == ()
    assert found.description
    assert found.title


def test_the_manual_page_has_every_key_and_the_schedules_in_it_are_some() -> None:
    page = (EXAMPLES.parents[2] / "man" / "man5" / "pipe.md.5").read_text()
    text = page.replace("\\-", "-").replace("\\ ", " ")
    assert [key for key in USED if not re.search(rf"\b{key}\b", text)] == []
    for schedule in SCHEDULES:
        assert schedule in text
        usable(f"schedule: '{schedule}'")


def run(folder: Path, prompt: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    script = EXAMPLES / "disk-digest" / "digest.sh"
    return subprocess.run(
        [script], input=prompt, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_disk_digest_reports_what_is_large_and_what_grew(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "pipe"
    (home / "big one").mkdir(parents=True)
    (home / "small").mkdir()
    folder.mkdir()
    (home / "big one" / "x").write_bytes(os.urandom(3 * 1024 * 1024))
    (home / "small" / "x").write_bytes(os.urandom(100 * 1024))
    prompt = HEADER + example("disk-digest").body
    first = run(folder, prompt, home)
    assert (first.returncode, first.stderr) == (0, "")
    assert "Looked at 1 folder(s); the report is ./output/7/report.md." in first.stdout
    report = (folder / "output" / "7" / "report.md").read_text()
    assert "Time range of this run: 2026-11-20T08:00:00Z to" in report
    assert " GiB free of " in report
    lines = [each for each in report.splitlines() if each.startswith("- ")]
    assert [each.rpartition("/")[2] for each in lines] == ["big one", "small"]
    (home / "small" / "y").write_bytes(os.urandom(5 * 1024 * 1024))
    run(folder, prompt, home)
    again = (folder / "output" / "7" / "report.md").read_text()
    assert "small, grew by " in again
    assert "big one\n" in again
