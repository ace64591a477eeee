"""The daemon's own life, seen from outside: start, restart, stop, upgrade, broken ledger, bad
settings, no cgroups.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.house import BIN, DEADLINE, House, alive, marked, server, until
from rounds import DEEP
from waiting import bearing

ECHO = server("return {'echo': body}")


def test_parallel_starts_give_one_daemon(home: House) -> None:
    # so many interpreters at once may need more than the seconds that one start has
    count = 10 if DEEP else 4
    starts = [home.pxctl_later("daemon", "start", "--timeout", "85") for _ in range(count)]
    said = [start.communicate(timeout=90) for start in starts]
    assert [start.returncode for start in starts] == [0] * count, said
    pids = set(home.pids())
    # A start returns when a daemon answers, its own or not: one that has not lost yet would win
    # after the stop.
    until(
        lambda: set(bearing(f"PX_HOME={home.home}\0")) <= pids,
        "those that lost to another are gone",
    )
    assert set(marked(home.daemon_id)) <= pids
    assert home.pxctl("daemon", "stop").returncode == 0


def test_restart_keeps_the_tools_with_all_it_replaces_everything_and_a_stop_leaves_nothing(
    running: House,
) -> None:
    running.tool("echo", ECHO)
    running.run("echo")
    tool = running.status("echo")["pid"]
    keeper, control = running.pids()
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (keeper, control)]
    assert names == ["pxd: keeper", "pxd: control"]  # what `pgrep pxd` finds
    for _ in range(2):
        before = running.pids()[1]
        assert running.pxctl("daemon", "restart").returncode == 0
        new = running.pids()
        assert (new[0] == keeper, new[1] == before) == (True, False)
        assert (running.status("echo")["pid"], running.status("echo")["state"]) == (tool, "ready")
        assert running.run("echo").status == 200
    for _ in range(2):
        assert running.run("echo").status == 200
        tool = running.status("echo")["pid"]
        before = running.pids()[1]
        assert running.pxctl("daemon", "restart", "--all").returncode == 0
        until(running.answers, "the daemon is back")
        assert running.pids()[1] != before
        assert (alive(tool), running.status("echo")["state"]) == (False, "cold")
    assert running.run("echo", {"a": 1}).json() == {"echo": {"a": 1}}
    assert running.stop() == 0
    assert (marked(running.daemon_id), os.path.exists(running.socket)) == ([], False)


TAKES_ITS_TIME = """
def ask(*_):
    open("asked", "w").close()
    while not os.path.exists("may end"):
        time.sleep(0.01)
    open("ended in peace", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, ask)
"""


@pytest.mark.parametrize(
    "loses_control", [False, True], ids=["orderly", "the control plane dies during the stop"]
)
def test_sigterm_gives_a_unit_its_own_grace_and_says_shutdown(
    home: House, loses_control: bool
) -> None:
    """As `systemctl stop` does; twice in a row."""
    source = "import os, signal, time\n" + TAKES_ITS_TIME + ECHO
    folder = home.tool("slow", source, stop_timeout_seconds=600)
    for _ in range(2):
        home.start()
        home.run("slow")
        keeper, control = home.pids()
        os.kill(keeper, signal.SIGTERM)
        until((folder / "asked").exists, f"SIGTERM to the tool; {home.said()}")
        if loses_control:
            os.kill(control, signal.SIGKILL)
        assert home.process is not None
        assert home.process.poll() is None
        (folder / "may end").touch()
        assert home.process.wait(DEADLINE) == 0
        assert (folder / "ended in peace").exists()
        home.start()
        assert home.status("slow")["reason"] == "shutdown"
        assert home.stop() == 0
        for name in ("asked", "may end", "ended in peace"):
            (folder / name).unlink()


def test_a_broken_ledger_is_moved_aside_and_said(home: House) -> None:
    """Its damage is such that what SQLite says of it is no text either."""
    home.start()
    home.tool("echo", ECHO)
    home.run("echo")
    home.stop()
    state = home.home / "state"
    whole = (state / "pxd.db").read_bytes()
    (state / "pxd.db").write_bytes(
        whole.replace(b"CREATE TABLE events", b"CREATE \xff\xfe\xff\xfe\xff events")
    )
    for rest in state.glob("pxd.db-*"):
        rest.unlink()
    home.start()
    assert home.run("echo").status == 200
    [moved] = state.glob("pxd.db.corrupt*")
    told = home.request("GET", "/api/events").lines()
    assert [event["moved_to"] for event in told if event["event"] == "ledger_rebuilt"] == [
        str(moved)
    ]


@pytest.mark.deep
def test_settings_that_are_no_proper_file_are_refused_and_block_nothing(running: House) -> None:
    file = running.home / "pxd.toml"
    makes: list[Callable[[], object]] = [
        lambda: os.mkfifo(file), lambda: file.symlink_to("/dev/zero"),
        lambda: file.write_text("#" * (2 << 20)),
        lambda: file.write_text("a = " + "[" * 5000),
    ]  # fmt: skip
    for make in makes:
        file.unlink(missing_ok=True)
        make()
        reloaded = running.pxctl("daemon", "reload", timeout=20)
        assert (reloaded.returncode, "pxd.toml" in reloaded.stderr) == (2, True)
        assert running.request("GET", "/api/health", seconds=20).status in {200, 503}
        argv = [BIN / "pxd", "--check-config"]  # which reads them as a start does
        started = subprocess.run(
            argv, env=running.environ, capture_output=True, text=True, timeout=20, check=False
        )
        assert (started.returncode, "pxd.toml" in started.stderr) == (78, True)
    stopped = running.pxctl("daemon", "stop")
    assert (stopped.returncode, stopped.stdout) == (0, "pxd stopped\n"), (
        "who stops it needs none of them"
    )
    assert running.process.wait(DEADLINE) == 0


# -- on the rungs of macOS (DESIGN §5) -------------------------------------------------------------


PXD = """
import json, types
from supervisord_py.daemon import main, settings
def dumps(document):
    return json.dumps({**document, "platform": "portable"})
settings.json = types.SimpleNamespace(dumps=dumps)
main.main()
"""
FAMILY = server(
    """
    import subprocess
    if "grow" in body:
        block = bytearray(body["grow"] << 20)
        time.sleep(1000)  # over its limit until somebody looks
    member = subprocess.Popen(["sleep", "1000"])
    leaver = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return {"pid": os.getpid(), "others": [member.pid, leaver.pid]}
    """
)


def test_a_daemon_without_control_groups_and_subreaper(home: House) -> None:
    home.process = subprocess.Popen(
        [sys.executable, "-P", "-c", PXD], env=home.environ, stdin=subprocess.DEVNULL
    )
    until(home.answers, "pxd answers")
    home.tool("family", FAMILY, max_memory_mb=100)
    daemon = home.get("/api/status")["daemon"]
    assert (daemon["kill_rung"], daemon["memory_rung"]) == ("process_group", "footprint")
    checks = {
        one["name"]: one["status"]
        for one in json.loads(home.pxctl("doctor", "--json").stdout)["checks"]
    }
    assert checks["kill_rung"] == "warn"

    family = home.run("family").json()
    assert home.pxctl("stop", "family").returncode == 0
    assert [pid for pid in (family["pid"], *family["others"]) if alive(pid)] == [], (
        "every descendant that was seen"
    )
    assert "ResourceLimitExceeded: memory" in json.dumps(home.run("family", {"grow": 300}).json())
    until(lambda: home.status("family")["reason"] == "memory_limit", "its end has a name")

    # Kernels are not forked: what is would come to the keeper as an orphan, and none comes to it
    # here.
    code = (
        "import os, subprocess; pid = os.getpid(); print(subprocess.Popen(['sleep', '1000']).pid)"
    )
    child = int(home.pxctl("exec", code).stdout)
    assert home.get("/api/kernels")["zygotes"] == []
    before = home.pids()
    os.kill(before[1], signal.SIGKILL)
    until(lambda: home.answers() and home.pids() != before, "the next control plane")
    assert home.pxctl("exec", "print(os.getpid() == pid)").stdout == "True\n", "it lives on"
    os.kill(before[0], signal.SIGKILL)
    until(lambda: not alive(child) and not marked(home.daemon_id), "nothing survives the keeper")
