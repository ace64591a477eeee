"""A real daemon after a loss: status, daemon, doctor, log and why agree on what was cut off, until the next start."""

from __future__ import annotations

import json
import os
import signal

from e2e.house import House, alive, server, until

ECHO = server("return {'pid': os.getpid()}")
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ECHO


def reason_of(house: House, name: str) -> tuple[str, str | None]:
    found = house.status(name)
    return found["state"], found["reason"]


def interrupted(house: House) -> set[str]:
    return {each["unit"] for each in house.get("/api/daemon")["interrupted"] if each["pid"] is not None}


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
    assert ends == [("cold", "interrupted"), ("cold", "interrupted"), ("cold", "stopped"), ("failed", "early_exit")]
    assert json.loads(running.pxctl("why", "one", "--json").stdout)["reason"] == "interrupted"
    running.run("one")
    assert reason_of(running, "one") == ("ready", None)
    os.kill(running.pids()[1], signal.SIGKILL)
    until(lambda: running.answers() and running.get("/api/daemon")["control"]["restarts"] == 1, "another one serves")
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
    assert reason_of(running, "deaf") == ("cold", "interrupted" if interrupted(running) else "shutdown")
