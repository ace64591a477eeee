"""Kernels in a real daemon: they outlive the control plane, not the daemon, and the next start knows of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from e2e.house import alive, until

if TYPE_CHECKING:
    from e2e.house import House

pytestmark = pytest.mark.deep


def execute(house: House, code: str, **body: Any) -> dict[str, Any]:
    answer = house.request(
        "POST", "/api/kernels/default/execute", {"code": code, "cwd": str(house.home), "timeout": 60, **body}
    )
    assert answer.status == 200, answer.body
    document: dict[str, Any] = answer.json()
    return document


def text(document: dict[str, Any]) -> str:
    return str(document["cells"][0]["text"])


def kernel(house: House) -> dict[str, Any]:
    (found,) = house.get("/api/kernels")["kernels"]
    document: dict[str, Any] = found
    return document


def test_an_orderly_stop_leaves_nothing_and_is_remembered(running: House) -> None:
    execute(running, "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)")
    pid = kernel(running)["pid"]
    assert running.stop() == 0
    running.wait_gone()
    assert not alive(pid)
    left = [it.name for it in (running.home / "run" / "k").iterdir()]
    assert set(left) <= {".secret"}, "of which the keys are made by which front ends find a session's next kernel"
    running.start()
    after = kernel(running)
    assert (after["state"], after["reason"], after["pid"]) == ("stopped", "shutdown", None)
    assert running.get("/api/status")["units"] == []
    assert text(execute(running, "print('again')")) == "again\n"


def test_a_keeper_that_died_is_why_a_kernel_is_gone(running: House) -> None:
    execute(running, "x = 1")
    before = kernel(running)
    keeper, control = running.pids()
    os.kill(keeper, signal.SIGKILL)
    assert running.process is not None
    running.process.wait(60)
    running.process = None
    until(lambda: not alive(control), "it is gone, with its lock")
    running.start()
    assert not alive(before["pid"])
    after = kernel(running)
    assert (after["id"], after["state"], after["reason"]) == (before["id"], "stopped", "interrupted")
    assert running.get("/api/units/default/why")["reason"] == "interrupted"
    assert {each["unit"] for each in running.get("/api/daemon")["interrupted"]} == {before["unit"]}


def test_a_reload_puts_settings_of_kernels_in_force(running: House) -> None:
    assert running.get("/api/capabilities")["expose"] == "both"
    (running.home / "pxd.toml").write_text('[kernels]\nexpose = "bash"\ntimeout_max_seconds = 50\n')
    answer = running.request("POST", "/api/daemon/reload").json()
    assert set(answer["changed"]) == {"kernels.expose", "kernels.timeout_max_seconds"}
    assert answer["needs_restart"] == []
    assert running.get("/api/capabilities")["expose"] == "bash"
    document = execute(running, "echo $((40 + 2))", language="bash")
    assert (text(document), document["timeout_seconds"], document["clamped"]) == ("42\n", 50.0, True)


def test_a_dump_tells_of_kernels(running: House) -> None:
    execute(running, "x = 1")
    assert running.process is not None
    running.process.send_signal(signal.SIGUSR1)

    def dumped() -> list[dict[str, Any]]:
        found = []
        for line in (running.home / "pxd.stderr").read_text().splitlines():
            with contextlib.suppress(ValueError):  # half written
                found.append(json.loads(line))
        return [each for each in found if "tools" in each]

    assert until(dumped, "a dump")[0]["kernels"][0] == {
        "unit": kernel(running)["unit"],
        "state": "idle",
        "pid": kernel(running)["pid"],
        "queued": 0,
        "running": None,
    }
