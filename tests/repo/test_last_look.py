"""The suite's own last look: what a test leaves behind fails the run, and so does a skip in CI."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.house import house, marked

if TYPE_CHECKING:
    import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
LINGER = "LINGER_SECONDS = 60.0"


def run_pytest(folder: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a test file under a copy of our conftest that does not linger."""
    text = CONFTEST.read_text()
    assert LINGER in text
    (folder / "conftest.py").write_text(text.replace(LINGER, "LINGER_SECONDS = 0.5"))
    shutil.copy(CONFTEST.with_name("dealing.py"), folder)
    (folder / "test_it.py").write_text(source)
    keep = {name: value for name, value in os.environ.items() if name not in {"CI", "TEST_SESSION_OF_PX"}}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", os.devnull]
    return subprocess.run(
        [*argv, "--rootdir", str(folder), str(folder)],
        env=keep | env, cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def gone(marker: Path) -> bool:
    """Say whether the process whose pid is in `marker` has ended."""
    try:
        return Path(f"/proc/{marker.read_text()}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


LEAVES_A_PROCESS = """
import pathlib, subprocess, sys
def test_it():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env={env})
    pathlib.Path({marker!r}).write_text(str(child.pid))
    child.returncode = 0  # keeps Popen from warning about it
"""


def test_a_process_that_inherited_the_mark_is_found_and_ended(short_tmp: Path) -> None:
    marker = short_tmp / "pid"
    ended = run_pytest(short_tmp, LEAVES_A_PROCESS.format(env="None", marker=str(marker)))
    assert ended.returncode == 1
    assert f"left behind: process {marker.read_text()}" in ended.stderr
    assert gone(marker)


def test_a_child_that_bears_only_its_daemons_mark_is_found(short_tmp: Path) -> None:
    """Children get an allow-listed environment: the daemon's id in PX_INSTANCE is all that ties them to us."""
    marker = short_tmp / "pid"
    source = """
import hashlib, os, pathlib, subprocess, sys
def test_it(short_tmp):
    state = short_tmp / "home" / "state"
    state.mkdir(parents=True)
    daemon = hashlib.sha256(os.fsencode(os.path.realpath(state))).hexdigest()[:8]
    env = {"PX_INSTANCE": daemon + ".ABCDEFGHIJKL"}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env=env)
    pathlib.Path(MARKER).write_text(str(child.pid))
    child.returncode = 0
""".replace("MARKER", repr(str(marker)))
    ended = run_pytest(short_tmp, source)
    assert ended.returncode == 1
    assert "left behind: process" in ended.stderr
    assert gone(marker)


def test_a_process_of_another_daemon_is_left_alone(short_tmp: Path) -> None:
    other = hashlib.sha256(b"elsewhere").hexdigest()[:8]
    marker = short_tmp / "pid"
    ended = run_pytest(short_tmp, LEAVES_A_PROCESS.format(env={"PX_INSTANCE": f"{other}.A"}, marker=str(marker)))
    assert (ended.returncode, "left behind" in ended.stderr) == (0, False)
    assert not gone(marker)
    os.kill(int(marker.read_text()), 9)


def test_a_clean_run_is_left_alone(short_tmp: Path) -> None:
    ended = run_pytest(short_tmp, "def test_it(short_tmp):\n    assert short_tmp.is_dir()\n")
    assert ended.returncode == 0, ended.stdout
    assert "left behind" not in ended.stderr


def test_what_cannot_run_is_skipped_here_and_fails_in_ci(short_tmp: Path) -> None:
    source = "def test_it(require):\n    require(False, 'needs a moon')\n"
    assert run_pytest(short_tmp, source).returncode == 0
    ended = run_pytest(short_tmp, source, CI="true")
    assert ended.returncode == 1
    assert "needed in CI: needs a moon" in ended.stdout


def test_any_other_skip_fails_in_ci_unless_it_is_about_another_system(short_tmp: Path) -> None:
    source = "import pytest\n@pytest.mark.skip(reason={!r})\ndef test_it(): pass\n"
    assert run_pytest(short_tmp, source.format("later")).returncode == 0
    ended = run_pytest(short_tmp, source.format("later"), CI="true")
    assert ended.returncode == 1
    assert "1 tests were skipped" in ended.stdout
    assert run_pytest(short_tmp, source.format("only on macOS: launchd"), CI="true").returncode == 0


def test_a_short_directory_is_short_and_goes_away(short_tmp: Path) -> None:
    """104 bytes is the least that a platform gives a socket's path; a home's socket is run/pxd.sock in it."""
    assert len(str(short_tmp / "home" / "run" / "pxd.sock")) < 60
    ended = run_pytest(
        short_tmp, f"def test_it(short_tmp):\n    open({str(short_tmp / 'where')!r}, 'w').write(str(short_tmp))\n"
    )
    assert ended.returncode == 0
    where = Path((short_tmp / "where").read_text())
    assert not where.exists()
    assert not where.parent.exists()
    shutil.rmtree(where, ignore_errors=True)


def test_a_house_ends_what_is_forked_while_it_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def fork(daemon_id: str) -> None:
        mark = {"PX_INSTANCE": f"{daemon_id}.key"}
        children.append(subprocess.Popen(["sleep", "600"], env=os.environ | mark))

    def listed(daemon_id: str) -> list[int]:
        found = marked(daemon_id)
        if len(children) == 1:
            fork(daemon_id)
        return found

    monkeypatch.setattr("e2e.house.marked", listed)
    with house() as home:
        fork(home.daemon_id)
    assert [child.wait() for child in children] == [-signal.SIGKILL] * 2
