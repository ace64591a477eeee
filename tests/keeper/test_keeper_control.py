"""The control plane under the keeper: started, heard, replaced; nothing of the children is lost
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keeper.keeper_rig import PATIENCE, SLEEPS, Link, Rig, alive, one_rung, until

HANG = 0.5
"""Seconds after which the keeper gives a silent control plane up, where that is to happen."""


@one_rung
def test_an_exit_that_happened_meanwhile_is_told_until_released(rung: Rig) -> None:
    """S3: the child exits 7 while there is no control plane.

    Before that, SIGUSR1 shows it on both sides.
    """
    link = rung.links[0]
    gate = rung.dir / "gate"
    os.mkfifo(gate)
    spec = rung.spawn(["/bin/sh", "-c", f"read x < {gate}; exit 7"])
    state = rung.dump()
    link.event("dump")
    assert (state["control_pid"], spec["key"] in state["children"][0]) == (link.pid, True)
    link.end(1)
    gate.write_text("go\n")
    link = rung.greet()
    assert link.exit(spec["key"])["code"] == 7
    link.event("gone", key=spec["key"])
    link.end(1)
    link = rung.greet()  # not released: told again
    assert link.hello["children"][0]["exit"]["code"] == 7
    assert link.exit(spec["key"])["code"] == 7
    link.event("gone", key=spec["key"])
    link.call("release", key=spec["key"])
    link.end(1)
    link = rung.greet()
    assert link.hello["children"] == []
    link.call("list", prefix="")
    assert not any(event["event"] == "exit" for event in link.events)


@one_rung
def test_orders_that_were_sent_before_the_end_are_carried_out_twice_in_a_row(rung: Rig) -> None:
    """The keeper was silent meanwhile: it finds a dead control plane, and more orders than it
    reads at a time.
    """
    spec = rung.spawn(SLEEPS)
    for life in ("first", "second"):
        link = rung.links[-1]
        os.kill(rung.pid, signal.SIGSTOP)
        for number in range(30):
            link.send("annotate", key=spec["key"], tag=f"{life} {number:04000}")
        link.bridge.send(bytes([1]))
        until(lambda link=link: not alive(link.pid), "the control plane is dead")
        os.kill(rung.pid, signal.SIGCONT)
        (child,) = rung.greet().hello["children"]
        assert child["tag"] == f"{life} {29:04000}"


@one_rung
@pytest.mark.deep
def test_a_control_plane_that_does_not_leave_is_killed(rung: Rig) -> None:
    link = rung.links[0]
    link.call("restart", all=False)
    rung.greet()
    assert not alive(link.pid)
    assert rung.said("control_exited")[0]["code"] == -signal.SIGKILL


def one_that_answers(rig: Rig, heard: Callable[[Link], object]) -> Link:
    """Greet a started keeper; return a link that has answered pings for thrice the time it waits,
    and was kept.

    On a crowded machine we may be silent for too long ourselves, and only then may the keeper give
    us up: once more.
    """
    for _ in range(20):
        spoke, link = time.monotonic(), rig.greet()
        began = time.monotonic()
        with contextlib.suppress(AssertionError, ConnectionError):
            while time.monotonic() < began + 3 * HANG:
                link.event("ping")
                link.events.clear()
                now = time.monotonic()
                link.call("alive")
                spoke = now
                heard(link)
            return link
        assert time.monotonic() - spoke > HANG, "it was given up although it answered"
    raise AssertionError("we are always too slow")


def test_one_that_answers_no_ping_is_replaced(rigs: Callable[..., Rig]) -> None:
    rig = rigs(watchdog_seconds=0.05, control_hang_seconds=HANG)
    spec = rig.spec(SLEEPS)
    rig.start()
    # the same order again changes nothing
    one_that_answers(rig, lambda link: link.send("spawn", **spec))
    second = rig.connect()  # silent from here on
    assert len(rig.said("control_hung")) == len(rig.links) - 1
    (child,) = second.call("hello", protocol=1)["children"]
    assert child["key"] == spec["key"]
    assert alive(child["pid"])


def test_a_keeper_that_was_stopped_itself_gives_nobody_up(rigs: Callable[..., Rig]) -> None:
    """It asked nothing meanwhile; whoever sets it going again finds the same control plane."""
    rig = rigs(watchdog_seconds=HANG / 2, control_hang_seconds=HANG)
    rig.start()
    for _ in range(20):
        link = one_that_answers(rig, lambda _: None)
        os.kill(rig.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        until(
            lambda began=stopped: time.monotonic() > began + 3 * HANG,
            "a stop longer than any silence may be",
        )
        goes_on = time.monotonic()
        os.kill(rig.pid, signal.SIGCONT)
        for _ in range(2):  # one turn of its loop, and so its timers, is over
            rig.dump()
        with contextlib.suppress(AssertionError, ConnectionError):
            link.call("alive")
            return
        assert time.monotonic() - goes_on > HANG / 2, (
            "it was given up although the keeper had not asked"
        )
    raise AssertionError("we are always too slow")


def test_one_that_speaks_nonsense_is_replaced_and_never_sees_the_channel_close_alive(
    rig: Rig,
) -> None:
    link = rig.up()
    link.channel.sendall(b"\xff\xff\xff\xff")
    again = rig.greet()
    assert not alive(link.pid)
    assert rig.said("control_protocol_broken")
    assert again.hello["control_restarts"] == 1


def settled_fds(rig: Rig) -> int:
    """Count the keeper's descriptors once it sleeps: a reply leaves a moment before what came
    with it is closed.
    """
    rig.links[-1].call("list", prefix="")
    until(
        lambda: Path(f"/proc/{rig.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S",
        "the sleep",
    )
    return len(os.listdir(f"/proc/{rig.pid}/fd"))


@one_rung
def test_descriptors_are_kept_over_control_planes(rung: Rig) -> None:
    link = rung.links[0]
    read, write = os.pipe()
    link.call("put_fd", (read,), name="pipe")
    os.close(read)
    link.end(1)
    link = rung.greet()
    (fd,) = link.call("take_fd", name="pipe")["received"]
    os.write(write, b"through")
    assert os.read(fd, 100) == b"through"
    os.close(fd)
    held = settled_fds(rung)
    link.call("put_fd", (write,), name="pipe")  # replaces
    assert settled_fds(rung) == held
    link.call("drop_fd", name="pipe")
    link.call("drop_fd", name="pipe")
    assert settled_fds(rung) == held - 1
    assert link.refused("take_fd", name="pipe")["kind"] == "unknown_fd"
    assert link.refused("put_fd", name="none")["kind"] == "bad_request"
    assert link.refused("put_fd", (write, write), name="two")["kind"] == "bad_request"
    assert settled_fds(rung) == held - 1
    os.close(write)


# -- what the machine refuses for a while ----------------------------------------------------------


def test_a_control_plane_that_dies_without_descriptors_is_started_once_there_are_some(
    rig: Rig,
) -> None:
    """Twice in a row: the duty to start one is not lost with the start that fails."""
    link = rig.up()
    child = rig.spawn(SLEEPS)
    limits = resource.prlimit(rig.pid, resource.RLIMIT_NOFILE)
    for number in (1, 2):
        resource.prlimit(rig.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        link.end(1)
        until(lambda count=number: len(rig.said("control_not_started")) >= count, "a refused start")
        resource.prlimit(rig.pid, resource.RLIMIT_NOFILE, limits)
        link = rig.greet()
        assert [child["pid"] for child in link.hello["children"]] == [child["pid"]]
    assert not rig.said("callback_failed")


# -- the service manager ---------------------------------------------------------------------------


class Manager:
    """A service manager's notification socket."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.settimeout(PATIENCE)
        self.address = address

    def next(self, *but: str) -> str:
        """Return the next datagram that begins with none of `but`."""
        while True:
            text = self.sock.recv(4096).decode()
            if not text.startswith(but):
                return text

    def falls_silent(self, seconds: float = 0.5) -> bool:
        """Read what was said and is still being said; False when that does not end."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and select.select([self.sock], [], [], seconds)[0]:
            self.sock.recv(4096)
        return time.monotonic() < deadline


def test_readiness_reload_status_and_stop_are_told(rig: Rig) -> None:
    manager = Manager(f"@{rig.dir}/notify")
    with manager.sock:
        rig.start(env={"NOTIFY_SOCKET": manager.address})
        link = rig.greet()
        link.call("ready")
        assert manager.next() == "READY=1"
        link.call("status", text="two\nlines")
        assert manager.next() == "STATUS=two lines"
        os.kill(rig.pid, signal.SIGHUP)
        first, second = manager.next().split("\n")
        assert first == "RELOADING=1"
        assert second.startswith("MONOTONIC_USEC=")
        assert link.event("reload")
        link.call("ready")
        assert manager.next() == "READY=1"
        os.kill(rig.pid, signal.SIGTERM)
        assert manager.next().split("\n")[0] == "STOPPING=1"
        link.event("stop")
        link.end()


def test_the_watchdog_is_fed_only_while_the_control_plane_answers(rigs: Callable[..., Rig]) -> None:
    rig = rigs(control_hang_seconds=HANG)
    manager = Manager(str(rig.dir / "notify"))

    def fed(_: Link) -> None:
        assert manager.next("STATUS=") == "WATCHDOG=1"

    with manager.sock:
        rig.start(env={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "100000"})
        link = one_that_answers(rig, fed)
        until(lambda: not alive(link.pid), "the end of the silent control plane")
        rig.connect()  # says no hello: no progress, no food
        assert manager.falls_silent(), "it is fed although nobody answers"
