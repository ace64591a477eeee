"""A unit that is removed leaves nothing to the next one of its name: no pin, no state, no
reason, no last words.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from e2e.house import until
from e2e.pipe_house import PipeHouse, pipes_house


@pytest.fixture(scope="module")
def shared() -> Iterator[PipeHouse]:
    with pipes_house() as made:
        yield made


def assert_never_started(home: PipeHouse, unit: str) -> None:
    why = home.json("why", unit)
    assert (why["state"], why["reason"], why["chain"], why["stderr_tail"]) == ("cold", None, [], "")
    assert "never started" in why["summary"]
    told = home.unit(f"tool:{unit}")
    assert (told["reason"], told["pinned"], told["last_used"], told["restarts"]) == (
        None,
        False,
        None,
        0,
    )


def broken_tool(home: PipeHouse, name: str) -> None:
    """Make a tool, pin it, and have its start fail."""
    assert home.pxctl("tools", "new", name).returncode == 0
    (home.home / "tools" / name / "main.py").write_text("raise SystemExit('broken')\n")
    assert home.pxctl("run", name, "text=a", "times=1").returncode == 1
    until(lambda: home.unit(f"tool:{name}")["state"] == "failed", "its start has failed")
    assert home.pxctl("pin", "--forever", name).returncode == 0


def test_a_tool_begins_anew_after_remove(shared: PipeHouse) -> None:
    for _ in range(2):
        broken_tool(shared, "bad")
        assert shared.pxctl("tools", "remove", "bad", "--yes").returncode == 0
        assert shared.pxctl("tools", "new", "bad").returncode == 0
        assert_never_started(shared, "bad")
        assert shared.pxctl("tools", "remove", "bad", "--yes").returncode == 0


def test_a_tool_begins_anew_after_its_folder_was_deleted_by_hand(shared: PipeHouse) -> None:
    broken_tool(shared, "gone")
    shutil.rmtree(shared.home / "tools" / "gone")
    assert shared.pxctl("tools", "new", "gone").returncode == 0
    assert_never_started(shared, "gone")


def test_a_pipe_begins_anew_after_remove_and_after_a_restart(shared: PipeHouse) -> None:
    shared.shell("often", "exit 3", front="schedule: 0 3 1 1 *")
    until(lambda: "often" in shared.names(), "it is seen")
    assert shared.execute("often").status == "failed"
    assert shared.pipe("often")["consecutive_failures"] == 1
    assert shared.pxctl("pipe", "disable", "often").returncode == 0
    assert shared.pxctl("pipe", "remove", "often", "--yes").returncode == 0
    shared.shell("often", "exit 3", front="schedule: 0 3 1 1 *")
    until(lambda: "often" in shared.names(), "it is seen again")

    def assert_never_ran() -> None:
        told = shared.pipe("often")
        assert (told["last_status"], told["consecutive_failures"], told["last_run"]) == (
            None,
            0,
            None,
        )
        assert told["enabled"], "that it was disabled is forgotten as well"
        why = shared.json("why", "often")
        assert "it never ran" in why["summary"]
        assert why["chain"] == [] or why["chain"][0]["event"] == "pipe_added"

    assert_never_ran()
    shared.kill_brain()
    assert_never_ran()
    assert shared.execute("often").status == "failed"
    assert shared.pipe("often")["last_status"] == "failed"
