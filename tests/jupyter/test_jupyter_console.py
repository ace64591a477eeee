"""`jupyter console` and other front ends that join a session of the daemon, or start one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.house import until
from jupyter_house import PATIENCE, PYTHON, Front, end

pytestmark = pytest.mark.deep


def console(front: Front, text: str, *options: str) -> str:
    """Run a console that is typed `text` into; return what it showed."""
    process = subprocess.Popen(
        [PYTHON, "-m", "jupyter_console", "--simple-prompt", *options],
        cwd=front.folder,
        env=front.environ(TERM="dumb"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        shown, _ = process.communicate(text, timeout=PATIENCE)
        return shown
    finally:
        end(process)


def execute(front: Front, session: str, code: str) -> str:
    answer = front.house.request("POST", f"/api/kernels/{session}/execute", {"code": code, "cwd": str(front.folder)})
    assert answer.status == 200, answer.body
    return str(answer.json()["cells"][0]["text"])


def test_a_console_that_joins_a_session_shares_its_variables_both_ways(front: Front) -> None:
    assert execute(front, "shared", "x = 6 * 7") == ""
    ((name, session),) = front.living().items()
    typed = "print('seen', x)\ny = x + 1\nexit(keep_kernel=True)\n"
    # Without a heartbeat for a second a console waits for nothing, and leaves at the end of its input.
    until(lambda: "seen 42" in console(front, typed, "--existing", session["connection_file"]), "it shows the value")
    assert execute(front, "shared", "print(y)") == "43\n"
    assert front.living()[name]["pid"] == session["pid"]


def test_a_console_starts_a_kernel_of_its_own_and_ends_it(front: Front) -> None:
    typed = "import os\nprint('in', os.getcwd())\nquit()\n"
    until(lambda: f"in {front.folder}" in console(front, typed, "--kernel", "pxd"), "it shows what is printed")
    until(lambda: front.living() == {}, "its kernel ends as it was told to")


def test_the_connection_file_of_a_session_is_private_and_goes_with_its_kernel(front: Front) -> None:
    execute(front, "private", "1")
    ((name, session),) = front.living().items()
    file = Path(session["connection_file"])
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert front.house.request("POST", f"/api/kernels/{name}/stop").status == 200
    assert not file.exists()
