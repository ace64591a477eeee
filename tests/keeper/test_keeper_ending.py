"""The end of the keeper, asked for or not: nothing survives it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keeper.keeper_rig import (
    KEEPER_ARGV,
    PYTHON,
    SLEEPS,
    Link,
    Rig,
    family,
    one_linux_rung,
    one_rung,
    probe,
)
from waiting import PATIENCE, alive, marked, until


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_control_plane_is_asked_first_and_says_when_it_is_done(rung: Rig, signum: int) -> None:
    link = rung.links[0]
    child = rung.spawn(SLEEPS)
    os.kill(rung.pid, signum)
    assert link.event("stop")["signum"] == signum
    assert alive(child["pid"])
    assert link.refused("spawn", **rung.spec(["/bin/true"]))["kind"] == "shutdown"
    link.call("stop", key=child["key"], grace_seconds=5, kill_seconds=5, reason="shutdown")
    link.call("shutdown")
    link.end()
    assert rung.wait() == 0


def test_a_dead_control_plane_does_not_keep_the_end_back(rigs: Callable[..., Rig]) -> None:
    """TERM to a keeper without control plane: it stops everything itself."""
    rig = rigs(backoff_initial_seconds=1000, backoff_max_seconds=1000)
    link = rig.up()
    child = rig.spawn(probe("family", rig.dir / "family", "child", "polite"))
    for _ in range(3):  # so many deaths in a row are answered at once
        link.end(1)
        link = rig.greet()
    link.end(1)
    until(lambda: len(rig.said("control_exited")) == 4, "the end of the control plane")
    os.kill(rig.pid, signal.SIGTERM)
    assert rig.wait() == 0
    assert not alive(child["pid"])
    assert not marked(rig.daemon_id)


# -- the grace of each unit ------------------------------------------------------------------------

LINGERS = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
open("up", "w").close()
while not os.path.exists("may end"):
    signal.sigtimedwait([], 0.01)
open("ended in peace", "w").close()
"""


def lingering(rig: Rig, **members: object) -> dict[str, Any]:
    """Spawn a child that ends only when it may, some time after SIGTERM, and wait until it is
    up.
    """
    child = rig.spawn([*PYTHON, "-c", LINGERS], stop_grace_seconds=1000, **members)
    until((rig.dir / "up").exists, "the child")
    return child


def test_the_keeper_gives_each_unit_its_own_grace(rigs: Callable[..., Rig]) -> None:
    """The control plane is gone when the end is asked for, and again when it dies in the middle
    of it.
    """
    rig = rigs(stop_seconds=0, backoff_initial_seconds=1000, backoff_max_seconds=1000)
    link = rig.up()
    lingering(rig)
    os.kill(rig.pid, signal.SIGTERM)
    link.event("stop")
    rig.dump()  # a turn of its loop is over: it did not lose its patience with the control plane
    assert not rig.said("control_late")
    link.end(1)
    until((rig.dir / "asked").exists, "SIGTERM to the child")
    rig.dump()
    (rig.dir / "may end").touch()
    assert rig.wait() == 0
    assert (rig.dir / "ended in peace").exists()


def test_a_second_signal_cuts_every_grace(rig: Rig) -> None:
    link = rig.up()
    child = lingering(rig)
    os.kill(rig.pid, signal.SIGTERM)
    link.event("stop")
    os.kill(rig.pid, signal.SIGTERM)
    assert rig.wait() == 0
    assert not alive(child["pid"])
    assert not (rig.dir / "ended in peace").exists()


def test_the_service_manager_is_told_how_long_the_end_may_take(rig: Rig) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(rig.dir / "notify"))
        manager.settimeout(PATIENCE)
        rig.start(env={"NOTIFY_SOCKET": str(rig.dir / "notify")})
        link = rig.greet()
        lingering(rig)
        (rig.dir / "may end").touch()
        os.kill(rig.pid, signal.SIGTERM)
        texts = iter(lambda: manager.recv(4096).decode(), "")
        text = next(text for text in texts if text.startswith("STOPPING=1"))
        micros = int(text.partition("EXTEND_TIMEOUT_USEC=")[2])
        assert micros >= 1000 * 1_000_000
        link.call("shutdown")
        link.end()


def test_ends_that_no_control_plane_took_are_held_by_the_next_keeper(
    rigs: Callable[..., Rig],
) -> None:
    """Twice in a row, then released: an end that the keeper had to bring about is told as
    `shutdown`.
    """
    rig = rigs()
    rig.boot["exit_records_path"] = str(rig.dir / "state" / "exit-records.json")
    link = rig.up()
    spec = rig.spec(SLEEPS, unit="tool:ends", tag="note")
    link.call("spawn", **spec)
    os.kill(rig.pid, signal.SIGTERM)
    link.event("stop")
    link.end(1)
    assert rig.wait() == 0
    for _ in range(2):
        link = rig.up()
        (held,) = link.hello["children"]
        assert (held["key"], held["tag"], held["tree_alive"]) == (spec["key"], "note", False)
        record = link.exit(spec["key"])
        assert (record["verdict"]["reason"], record["signal"]) == ("shutdown", signal.SIGTERM)
        link.event("gone", key=spec["key"])
        os.kill(rig.pid, signal.SIGTERM)
        link.end(1)
        assert rig.wait() == 0
    link = rig.up()
    link.call("release", key=spec["key"])
    until(lambda: not os.path.exists(rig.boot["exit_records_path"]), "the end of the file")
    os.kill(rig.pid, signal.SIGKILL)
    rig.wait()
    link.end()
    assert rig.up().hello["children"] == []


def test_exit_records_that_cannot_be_read_do_not_keep_the_keeper_from_starting(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs()
    path = rig.dir / "state" / "exit-records.json"
    rig.boot["exit_records_path"] = str(path)
    for text in ("{", "[]", '{"format": 1, "children": [{"key": 1}]}'):
        path.write_text(text)
        link = rig.up()
        assert link.hello["children"] == []
        assert rig.said("exit_records_not_read")
        link.call("shutdown")
        link.end()
        assert rig.wait() == 0


@pytest.mark.parametrize("by", ["a sweep", "the next keeper"])
def test_after_a_kill_9_nothing_is_left_and_what_was_interrupted_is_told(
    rigs: Callable[..., Rig], by: str
) -> None:
    """Leaders die with it; what hid in sessions of its own is found by its mark or cgroup.

    Others' live on.
    """
    rig, other = rigs(), rigs()
    theirs = other.up().call("spawn", **other.spec(SLEEPS))["child"]
    link = rig.up()
    _, pids = family(rig, 3, "child", "daemon", "deaf")
    os.kill(rig.pid, signal.SIGKILL)
    rig.wait()
    while not link.closed:
        link.receive(1)  # what the control plane sees
    if by == "a sweep":
        done = sweep(rig)
        assert done.returncode == 0
        found = json.loads(done.stderr.splitlines()[-1])["units"]
        assert not alive(link.pid)  # it bore the mark too
    else:
        assert rig.up().hello["children"] == []
        found = rig.said("swept")[-1]["units"]
    assert found == ["tool:probe"]
    assert not any(alive(pid) for pid in pids)
    assert (alive(other.pid), alive(theirs["pid"])) == (True, True), "another daemon's"


def test_the_portable_rung_sweeps_by_recorded_identity(rigs: Callable[..., Rig]) -> None:
    """The marks are left out on purpose: only the record can tell."""
    rig = rigs(platform="portable")
    link = rig.up()
    book = rig.dir / "family"
    spec = rig.spec(probe("family", book, "child"))
    spec["env"] = {"PATH": "/usr/bin:/bin"}
    child = link.call("spawn", **spec)["child"]
    pids = until(
        lambda: [int(x) for x in book.read_text().split()] if book.exists() else None, "the family"
    )
    record = (rig.dir / "run" / "children").read_text()
    assert f"{child['pid']} {child['start_time']} {spec['key']} tool:probe" in record
    os.kill(rig.pid, signal.SIGKILL)
    rig.wait()
    assert alive(child["pid"])  # no PDEATHSIG on this rung
    rig.up()
    assert rig.said("swept")[-1]["units"] == ["tool:probe"]
    until(lambda: not any(alive(pid) for pid in pids), "the end of the family")


def sweep(rig: Rig) -> subprocess.CompletedProcess[str]:
    with rig.boot_fd() as fd:
        words = [*KEEPER_ARGV, "--sweep", "--boot-fd", str(fd)]
        return subprocess.run(
            words, pass_fds=(fd,), capture_output=True, text=True, timeout=PATIENCE, check=False
        )


def test_restart_of_everything_becomes_pxd_again(rigs: Callable[..., Rig]) -> None:
    """Same pid; children gone, umask and open files as they were, nothing of the keeper's, nor
    its lock, inherited.
    """
    rig = rigs(pxd_argv=probe("felt"))
    lock = os.open(rig.dir / "lock", os.O_CREAT | os.O_RDWR)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(rig.dir / "sock"))
        listener.listen()
        rig.boot |= {
            "listen_fd": listener.fileno(),
            "socket_path": str(rig.dir / "sock"),
            "lock_fd": lock,
        }
        rig.start(fds=(lock, listener.fileno()), env={"NOTIFY_SOCKET": "/nowhere"})
    os.close(lock)
    link = rig.greet()
    child = rig.spawn(SLEEPS)
    link.call("restart", all=True)
    link.end()
    assert rig.wait() == 0
    assert not alive(child["pid"])
    (felt,) = [line for line in rig.lines() if "umask" in line]
    os.umask(mask := os.umask(0))
    assert (felt["pid"], felt["umask"], felt["env"]["NOTIFY_SOCKET"]) == (rig.pid, mask, "/nowhere")
    assert felt["limits"]["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert (felt["env"]["LISTEN_PID"], felt["env"]["LISTEN_FDS"]) == (str(rig.pid), "1")
    assert sorted(felt["fds"]) == ["0", "1", "2", "3"]
    assert felt["fds"]["3"].startswith("socket:")


# -- idle ------------------------------------------------------------------------------------------


def switches(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("voluntary")))


@one_rung
@pytest.mark.deep
def test_an_idle_keeper_sleeps(rung: Rig) -> None:
    """No wake-up in an observed while, children held, without a watchdog that asks for one."""
    link = rung.links[0]
    for number in range(5):
        rung.spawn(["/bin/sh", "-c", "echo ready; exec sleep 600"], unit=f"tool:t{number}")
    until(
        lambda: all(rung.output(f"tool:t{number}") == b"ready\n" for number in range(5)),
        "five idle children",
    )
    link.call("list", prefix="")
    # The first while may see it go to sleep: a process is counted as switched only after it is
    # shown as sleeping.
    assert any(sleeps_on(link, rung.pid) for _ in range(3))


def sleeps_on(link: Link, pid: int) -> bool:
    before = switches(pid)
    assert not link.receive(1.5)
    return switches(pid) == before


@one_rung
def test_the_keeper_is_small(rung: Rig) -> None:
    if "-S" not in KEEPER_ARGV:
        pytest.skip("measured with the tracer of the coverage report inside")
    for number in range(20):
        rung.spawn(SLEEPS, unit=f"tool:t{number}")
    text = Path(f"/proc/{rung.pid}/status").read_text()
    kilobytes = int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))
    assert kilobytes <= 14 * 1024


@one_linux_rung
def test_a_process_of_no_instance_dies_with_the_keeper(linux_rung: Rig) -> None:
    """With two instances an unmarked orphan without pipes is nobody's; it still may not survive
    the end.
    """
    link = linux_rung.links[0]
    book = linux_rung.dir / "lone"
    code = (
        "import os, sys\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        "  null = os.open('/dev/null', os.O_RDWR)\n  for n in (0, 1, 2): os.dup2(null, n)\n"
        f"  os.execve(sys.executable, {probe('family', book, 'deaf')!r}, {{}})\n os._exit(0)\n"
        "os.wait()\nimport signal\nsignal.pause()\n"
    )
    linux_rung.spawn([*PYTHON, "-c", code], unit="tool:one")
    linux_rung.spawn(SLEEPS, unit="tool:two")
    pid = int(until(lambda: book.read_text() if book.exists() else "", "the lone orphan"))
    link.call("shutdown")
    link.end()
    assert linux_rung.wait() == 0
    assert not alive(pid)
