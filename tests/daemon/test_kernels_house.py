"""Kernels in a real daemon: they outlive the control plane, not the daemon, and the next start knows of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from e2e.house import alive, until

if TYPE_CHECKING:
    from e2e.house import Answer, House


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


def replaced(house: House, control: int) -> None:
    def is_other() -> bool:
        with contextlib.suppress(OSError):  # the old one may close the connection between the two questions
            return house.answers() and house.pids()[1] != control
        return False

    until(is_other, "another control plane serves")


@pytest.mark.parametrize("how", ["asked", "killed"])
def test_a_kernel_outlives_the_control_plane_with_its_variables(running: House, how: str) -> None:
    first = execute(running, "x = 41")
    control = running.pids()[1]
    if how == "asked":
        assert running.request("POST", "/api/daemon/restart").status == 202
    else:
        os.kill(control, signal.SIGKILL)
    replaced(running, control)
    after = execute(running, "print(x + 1)")
    assert (text(after), after["variables"], after["instance"]) == ("42\n", "kept", first["instance"])
    assert kernel(running)["state"] == "idle"


def test_a_call_in_flight_is_told_and_its_cell_goes_on(running: House) -> None:
    execute(running, "x = 1", timeout=30)
    control = running.pids()[1]
    begun, flag = running.home / "begun", running.home / "go"
    code = f"import os, time\nopen({str(begun)!r}, 'w').close()\n"
    code += f"while not os.path.exists({str(flag)!r}): time.sleep(0.01)\nx = 42"
    got: list[Answer] = []
    body = {"code": code, "cwd": str(running.home), "timeout": 120}
    asking = threading.Thread(target=lambda: got.append(running.request("POST", "/api/kernels/default/execute", body)))
    asking.start()
    until(begun.exists, "the cell runs")
    assert kernel(running)["running"]
    assert running.request("POST", "/api/daemon/restart").status == 202
    asking.join()
    assert (got[0].status, got[0].json()["kind"]) == (503, "interrupted")
    replaced(running, control)
    assert kernel(running)["state"] == "busy"
    flag.touch()
    assert text(execute(running, "print(x)")) == "42\n"
    cells = running.get("/api/kernels/default/cells")["cells"]
    assert [cell["status"] for cell in cells] == ["ok", "ok", "ok"]


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


def test_places_of_kernels_are_private_and_doctor_looks_at_them(running: House) -> None:
    places = [running.home / name for name in ("run/k", "state/cells", "kernels")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in places] == [0o700] * 3
    checks = {check["name"]: check for check in running.get("/api/doctor")["checks"]}
    assert (checks["mode:cells"]["status"], checks["kernels:python"]["status"]) == ("ok", "ok")


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


def test_a_token_file_that_cannot_be_read_takes_the_gateway_and_not_the_daemon(home: House) -> None:
    (home.home / "pxd.toml").write_text('[kernels]\ngateway_token_file = "nope"\n')
    home.start()
    degraded = home.get("/api/daemon")["degraded"]
    assert [(each["part"], "nope" in each["detail"]) for each in degraded] == [("kernels.gateway", True)]
    assert text(execute(home, "print(1)")) == "1\n"
    (home.home / "pxd.toml").write_text("")
    home.request("POST", "/api/daemon/reload")
    assert home.get("/api/daemon")["degraded"] == []


def test_no_secret_reaches_a_kernel_the_log_or_the_settings_that_are_shown(home: House) -> None:
    secret = "s3cr3t-of-a-gateway"  # noqa: S105  # of none
    home.settings = {"PX_KERNELS__GATEWAY_TOKEN": secret, "PI_PYTHON_GATEWAY_TOKEN": secret, "PX_KERNELS__TRACE": "1"}
    home.start()
    seen = text(execute(home, "import os\nprint(sorted(os.environ.items()))"))
    assert "PATH" in seen
    assert secret not in seen
    shown = json.dumps(home.get("/api/config"))
    assert secret not in shown + home.said()
    assert "[hidden]" in shown
    for pid in home.pids():
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            assert secret.encode() not in command.read()
