"""A Python without ipykernel: what is installed for its cells is seen by everybody, and costs no
call its time.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.house import House, house, until
from e2e.kernel_house import PATIENT, Calls, environment

UV = """#!/bin/sh
echo started >> "{home}/installs"
echo "Resolved 24 packages in 1.2s"
while [ ! -e "{home}/go" ] && [ ! -e "{home}/fail" ]; do sleep 0.02; done
if [ -e "{home}/fail" ]; then echo "error: no route to the index" >&2; exit 2; fi
while [ $# -gt 1 ]; do [ "$1" = --target ] && mkdir -p "$2" && ln -s {packages}/* "$2"; shift; done
"""


class Bare(Calls):
    """A daemon whose project has a Python without ipykernel, and an installer that waits to be
    told to go on.
    """

    def __init__(self, home: House, project: Path) -> None:
        super().__init__(home, project)
        self.project = project
        self.started, self.go, self.fail = (home.home / name for name in ("installs", "go", "fail"))

    def begin(self) -> None:
        """Forget what was installed, and hold the next install."""
        for path in (self.started, self.go, self.fail):
            path.unlink(missing_ok=True)

    def unit(self) -> dict[str, Any]:
        (found,) = (
            unit for unit in self.house.get("/api/status")["units"] if unit["kind"] == "kernel"
        )
        return dict(found)

    def is_preparing(self) -> bool:
        """Say whether a session is, and its installer has said how much there is to do."""
        return any(
            "24 packages" in str(unit["preparing"])
            for unit in self.house.get("/api/status")["units"]
        )


def without_uv(folder: Path) -> Path:
    """Make an environment that has all that this one has, but no programs."""
    python = environment(folder)
    packages = sysconfig.get_path("purelib")
    next(folder.rglob("ours.pth")).write_text(f"import site; site.addsitedir({packages!r})\n")
    return python


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    project = tmp_path / "project"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", project / ".venv"],
        check=True,
        capture_output=True,
    )
    with house({**PATIENT, "PX_KERNELS__TIMEOUT_SECONDS": "20"}) as home:
        tools = home.home / "bin"
        tools.mkdir()
        (tools / "uv").write_text(UV.format(home=home.home, packages=sysconfig.get_path("purelib")))
        (tools / "uv").chmod(0o755)
        # A daemon without a uv of its own, beside whose Python the installer of the test would not
        # be looked for.
        home.runner = (str(without_uv(tmp_path / "daemon")),)
        home.settings = {**home.settings, "PATH": f"{tools}:/usr/bin:/bin"}
        home.start()
        yield Bare(home, project)


def test_an_install_is_a_state_that_everybody_sees_and_costs_no_call_its_time(bare: Bare) -> None:
    """A second caller, who has three seconds, waits for the same install for longer."""
    first = bare.later("default", "40 + 2")
    until(bare.is_preparing, "the session is preparing")
    unit = bare.unit()
    assert unit["preparing"] == "installing ipykernel (once), 24 packages so far"
    listed = bare.known()["default"]
    assert (listed["state"], listed["preparing"]) == ("preparing", unit["preparing"])
    why = bare.house.json("why", "default")
    assert (why["state"], unit["preparing"] in why["summary"]) == ("preparing", True), why
    assert [event["event"] for event in bare.house.events(unit["unit"])] == ["preparing"]
    with bare.stream("default", "40 + 3", timeout=3) as second:
        second.until("preparing")
        joined_at = time.monotonic()
        until(lambda: time.monotonic() > joined_at + 3.5, "its time would be over")
        assert not first.done()
        bare.go.touch()
        assert second.until("cell_done")["cell"]["text"] == "43\n"
    assert first.result().text == "42"
    assert bare.started.read_text() == "started\n"
    assert [event["event"] for event in bare.house.events(unit["unit"])][:3] == [
        "preparing",
        "prepared",
        "starting",
    ]


def test_a_failed_install_is_told_with_its_cause_and_is_tried_again_by_the_next_call(
    bare: Bare,
) -> None:
    for _ in range(2):
        bare.begin()
        call = bare.later("default", "1")
        until(bare.is_preparing, "the session is preparing")
        bare.fail.touch()
        problem = call.result().refused(503)
        assert "no route to the index" in problem["detail"]
        assert "pip install" in problem["hint"]
        unit = bare.unit()
        assert (unit["state"], unit["preparing"]) == ("failed", None)
        why = bare.house.json("why", unit["unit"])
        assert "no route to the index" in why["summary"], why
        assert "pip install" in why["next_step"]
        assert bare.house.events(unit["unit"])[-1]["event"] == "prepare_failed"
    bare.begin()
    bare.go.touch()
    assert bare.value("default", "2") == "2"
    assert bare.unit()["state"] == "idle"


def test_a_caller_who_leaves_does_not_end_the_install_and_a_stop_does(bare: Bare) -> None:
    with bare.stream("default", "1") as stream:
        assert "installing ipykernel" in stream.until("preparing")["text"]
    until(bare.is_preparing, "it goes on without its caller")
    joined = bare.later("default", "1")
    until(lambda: bare.house.events(bare.unit()["unit"], "preparing"), "it is told")
    stopped = bare.house.pxctl("stop", bare.unit()["unit"])
    assert stopped.returncode == 0, stopped.stderr
    assert "was stopped" in joined.result().refused(409)["detail"]
    until(lambda: bare.known()["default"]["state"] == "stopped", "nothing is being installed")
    bare.go.touch()
    assert bare.value("default", "3") == "3"


def test_an_install_that_a_dead_control_plane_has_begun_is_begun_again_by_the_next_call(
    bare: Bare,
) -> None:
    for _ in range(2):
        cut_off = bare.later("default", "1")
        until(bare.is_preparing, "the session is preparing")
        bare.house.kill_brain()
        cut_off.cut_off()
        assert not bare.is_preparing()
    bare.go.touch()
    assert bare.value("default", "4") == "4"
    assert bare.started.read_text() == "started\n" * 3
