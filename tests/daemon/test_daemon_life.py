"""A real daemon: start, second daemon, replaced and killed control planes, killed keepers, what
is told of losses.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.house import BIN, House, alive, house, server, until

ECHO = server("return {'echo': body}")
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ECHO


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """For tests that leave it as it was: its tool `echo` has run."""
    with house(start=True, measured=True) as made:
        made.tool("echo", ECHO)
        assert made.run("echo").status == 200
        yield made


def facts(house: House, event: str) -> list[dict[str, Any]]:
    """Return the log entries of that event so far."""
    found = []
    for line in (house.home / "pxd.stderr").read_text().splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if entry["event"] == event:
                found.append(entry)
    return found


def test_there_is_never_a_second_daemon_on_one_ledger(running: House, short_tmp: Path) -> None:
    """Sessions of one user may disagree about XDG_RUNTIME_DIR: the state directory decides. Locks
    may be deleted: the other one holds still, or else the socket answers, which is not unlinked.
    """

    def refused(**more: str) -> str:
        environ = {**running.environ, **more}
        done = subprocess.run(
            [BIN / "pxd"], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 8
        assert running.answers()
        return done.stderr

    told = refused(RUNTIME_DIRECTORY=str(short_tmp / "run"))
    assert f"pid {running.pids()[0]}" in told
    assert str(running.home / "state") in told
    (running.home / "run" / "pxd.lock").unlink()
    refused()
    (running.home / "state" / "pxd.lock").unlink()
    assert any(f"pid {pid}" in refused() for pid in running.pids()), "whoever listens is named"


def test_term_to_the_control_plane_alone_replaces_it(shared: House) -> None:
    tool, (keeper, control) = shared.status("echo")["pid"], shared.pids()
    seen = len(facts(shared, "control_exited"))
    os.kill(control, signal.SIGTERM)
    until(lambda: not alive(control), "it is gone")
    assert (shared.pids()[0], shared.status("echo")["pid"]) == (keeper, tool)
    (exited,) = facts(shared, "control_exited")[seen:]
    assert exited["planned"]
    assert exited["code"] in {0, -signal.SIGKILL}, "after its last word it has five seconds to go"


@pytest.mark.deep
def test_a_keeper_that_dies_during_the_stop_leaves_nothing_either(running: House) -> None:
    running.tool("deaf", DEAF, stop_timeout_seconds=50)
    assert running.run("deaf").status == 200
    tool = running.status("deaf")["pid"]
    keeper, control = running.pids()
    os.kill(keeper, signal.SIGTERM)
    until(lambda: len(facts(running, "stopping")) == 2, "both have begun to stop")
    os.kill(keeper, signal.SIGKILL)
    running.process.wait(60)
    until(lambda: not alive(control), "the clean-up has ended")
    assert not alive(tool)
    assert len(facts(running, "sweeping")) == 1


FAULTY = """
import os
from supervisord_py.daemon import control_plane
from supervisord_py.ledger.store import Ledger
async def prune(*_, **__):
    if os.path.exists("{0}/fault"): raise RuntimeError("a task broke")
control_plane.FIRST_PRUNE_SECONDS = 0.0
Ledger.prune = prune
"""


@pytest.mark.deep
def test_what_dies_in_the_background_ends_the_control_plane_loudly(short_tmp: Path) -> None:
    """Nothing goes on half alive: it exits, the keeper starts another one."""
    (short_tmp / "sitecustomize.py").write_text(FAULTY.format(short_tmp))
    (short_tmp / "fault").touch()
    with house({"PYTHONPATH": str(short_tmp)}) as home:
        home.start(wait=False)
        until(lambda: facts(home, "control_crashed"), "it has crashed")
        (short_tmp / "fault").unlink()
        until(home.answers, "another one serves")
        assert "a task broke" in facts(home, "control_crashed")[0]["exception"]


def test_a_stopped_keeper_is_no_dead_keeper(shared: House) -> None:
    """SIGSTOP makes it silent, not dead: nobody may sweep its children."""
    tool, (keeper, _) = shared.status("echo")["pid"], shared.pids()
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert shared.run("echo").status == 200
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert shared.run("echo").status == 200
    assert shared.status("echo")["pid"] == tool
    assert facts(shared, "sweeping") == []


def test_reload_by_signal_keeps_the_last_good_settings_and_says_so_also_after_a_crash(
    shared: House,
) -> None:
    tool, restarts = shared.status("echo")["pid"], shared.get("/api/daemon")["control"]["restarts"]
    settings = shared.home / "pxd.toml"
    settings.write_text('[tools]\nqueue_max = 7\n[kernels]\nexpose = "bash"\n')
    shared.process.send_signal(signal.SIGHUP)
    until(
        lambda: setting(shared, "tools.queue_max") == (7, f"{settings}:2"),
        "the new setting is in force",
    )
    assert shared.get("/api/capabilities")["expose"] == "bash"
    settings.write_text("[tools]\nqueue_mux = 7\n")
    shared.process.send_signal(signal.SIGHUP)
    (degraded,) = until(lambda: shared.get("/api/health")["degraded"], "the mistake is shown")
    assert degraded["part"] == "config"
    assert "did you mean tools.queue_max?" in degraded["detail"]
    assert setting(shared, "tools.queue_max")[0] == 7
    assert shared.request("POST", "/api/daemon/restart").status == 422
    assert shared.get("/api/daemon")["control"]["restarts"] == restarts
    control = shared.pids()[1]
    os.kill(control, signal.SIGKILL)
    until(lambda: not alive(control), "it is dead")
    assert shared.status("echo")["pid"] == tool
    (degraded,) = until(lambda: shared.get("/api/health")["degraded"], "what is broken is told")
    assert "those that worked last are in force" in degraded["detail"]
    settings.unlink()
    assert shared.request("POST", "/api/daemon/reload").json()["changed"] == [
        "tools.queue_max",
        "kernels.expose",
    ]
    assert not shared.get("/api/health")["degraded"]


def setting(house: House, key: str) -> tuple[Any, str]:
    return next(
        (one["value"], one["origin"])
        for one in house.get("/api/config")["settings"]
        if one["key"] == key
    )


@pytest.mark.deep
def test_a_port_that_is_taken_degrades_the_daemon_but_does_not_stop_it(home: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        home.start("--set", f"api.listen=127.0.0.1:{taken.getsockname()[1]}")
        (degraded,) = home.get("/api/health")["degraded"]
    assert degraded["part"] == "tcp"
    assert "Address already in use" in degraded["detail"]


def reason_of(house: House, name: str) -> tuple[str, str | None]:
    found = house.status(name)
    return found["state"], found["reason"]


def interrupted(house: House) -> set[str]:
    return {
        each["unit"] for each in house.get("/api/daemon")["interrupted"] if each["pid"] is not None
    }


def test_the_next_start_says_what_was_cut_off_and_the_one_after_it_does_not(running: House) -> None:
    for name in ("one", "two", "ended"):
        running.tool(name, ECHO)
        running.run(name)
    assert running.pxctl("stop", "ended").returncode == 0
    running.tool("fails", "raise SystemExit('no')")
    running.run("fails")
    pid = running.status("one")["pid"]
    keeper, control = running.pids()
    os.kill(keeper, signal.SIGKILL)
    running.process.wait(60)
    until(lambda: not alive(control), "it is gone, with its lock")
    log = running.home / "pxd.stderr"
    before = len(log.read_text())
    running.start()
    assert not alive(pid)
    assert interrupted(running) == {"tool:one", "tool:two"}
    doctor = {check["name"]: check for check in running.get("/api/doctor")["checks"]}
    assert "tool:one, tool:two" in doctor["interrupted"]["detail"]
    assert '"tool:one", "tool:two"' in log.read_text()[before:]
    ends = [reason_of(running, name) for name in ("one", "two", "ended", "fails")]
    assert ends == [
        ("cold", "interrupted"),
        ("cold", "interrupted"),
        ("cold", "stopped"),
        ("failed", "early_exit"),
    ]
    assert json.loads(running.pxctl("why", "one", "--json").stdout)["reason"] == "interrupted"
    running.run("one")
    assert reason_of(running, "one") == ("ready", None)
    os.kill(running.pids()[1], signal.SIGKILL)
    until(
        lambda: running.answers() and running.get("/api/daemon")["control"]["restarts"] == 1,
        "another one serves",
    )
    assert interrupted(running) == {"tool:one", "tool:two"}, "the same keeper, the same loss"
    assert reason_of(running, "one") == ("ready", None)
    assert reason_of(running, "two") == ("cold", "interrupted")
    assert running.stop() == 0
    running.start()
    assert interrupted(running) == set()
    assert reason_of(running, "one") == ("cold", "shutdown")
    assert reason_of(running, "two") == ("cold", "interrupted"), "it was not started since"


def test_a_second_signal_stops_at_once_and_that_was_a_shutdown(running: House) -> None:
    running.tool("deaf", DEAF, stop_timeout_seconds=500)
    running.run("deaf")
    pid = running.status("deaf")["pid"]
    running.process.send_signal(signal.SIGTERM)
    until(lambda: running.status("deaf")["state"] == "stopping", "the tool is asked to stop")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert "killing_everything" in running.said()
    until(lambda: not alive(pid), "the tool is gone")
    running.start()
    assert reason_of(running, "deaf") in {("cold", "shutdown"), ("cold", "interrupted")}
    assert not interrupted(running) or reason_of(running, "deaf")[1] == "interrupted"
