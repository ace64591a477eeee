"""Each system call of the keeper fails once, at many places: nothing is lost, and everything
works at the next try.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keeper.keeper_rig import MAIN, PROBES, PYTHON, RUNGS, SLEEPS, Link, Rig, alive, probe, until
from keeper.probes.fault_file import CALLS, LAYOUT, FaultFile
from rounds import DEEP

PASSING = (0, 1, 2, 3, 5, 9, 17, 34, 68, 144) if DEEP else (0, 2)
"""How many calls succeed before the one that fails."""
TRIES = 6
SPEAKS = ["/bin/sh", "-c", "echo one; echo two >&2; echo three; exit 3"]
ALL_OUTPUT = b"one\ntwo\nthree\n"


class Patient:
    """A control plane that asks again: what is refused, or cut off, once is to succeed soon
    after.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.link: Link = rig.links[-1]

    def ask(self, verb: str, fds: tuple[int, ...] = (), **members: Any) -> dict[str, Any]:
        refusals = []
        for _ in range(TRIES):
            try:
                reply = self.link.reply(self.link.send(verb, fds, **members))
            except (AssertionError, OSError):
                self.again()
                continue
            if reply["ok"]:
                return reply
            refusals.append(reply["error"])
        raise AssertionError(f"{verb} never succeeds: {refusals}")

    def again(self) -> None:
        """The channel is closed: be the next control plane."""
        for _ in range(TRIES):
            self.link.end(1)
            try:
                self.link = self.rig.greet()
            except (AssertionError, OSError):
                self.link = self.rig.links[-1]
                continue
            return
        raise AssertionError("no control plane can greet the keeper")

    def spawn(self, argv: list[str], unit: str) -> str:
        """Spawn, each try with a key of its own as a real control plane does; return the key."""
        for _ in range(TRIES):
            spec = self.rig.spec(argv, unit=unit)
            try:
                reply = self.link.reply(self.link.send("spawn", **spec))
            except (AssertionError, OSError):
                self.again()
                if any(child["key"] == spec["key"] for child in self.link.hello["children"]):
                    return str(spec["key"])
                continue
            if reply["ok"]:
                return str(spec["key"])
        raise AssertionError(f"{unit} can never be spawned")

    def event(self, name: str, key: str) -> dict[str, Any]:
        for _ in range(TRIES):
            try:
                return self.link.event(name, key=key)
            except (AssertionError, OSError):
                self.again()
        raise AssertionError(f"no event {name} of {key}")


def play(patient: Patient) -> None:
    """Do what a keeper is for: output and end of a child, a whole tree stopped, descriptors, a
    new control plane.
    """
    rig = patient.rig
    before = len(rig.output("tool:speaks"))
    speaks = patient.spawn(SPEAKS, "tool:speaks")
    assert patient.event("exit", speaks)["record"]["code"] == 3
    patient.event("gone", speaks)
    until(lambda: len(rig.output("tool:speaks")) >= before + len(ALL_OUTPUT), "the whole output")
    assert sorted(rig.output("tool:speaks")[before:].split()) == sorted(ALL_OUTPUT.split())
    patient.ask("release", key=speaks)

    book = rig.dir / f"family-{len(list(rig.dir.iterdir()))}"
    family = patient.spawn(probe("family", book, "child", "daemon"), "tool:family")
    pids = until(lambda: of_family(book), "a family of 3")
    patient.ask("stat", keys=[family])
    reply = patient.ask("stop", key=family, grace_seconds=30, kill_seconds=30, reason="stopped")
    assert reply["survivors"] == []
    assert not reply["killed"], "a SIGTERM that fails once is sent again"
    assert not any(alive(pid) for pid in pids), "a stop that was answered left something"
    patient.event("gone", family)
    patient.ask("release", key=family)
    # Whatever a start that failed has left is gone by itself.
    until(lambda: patient.ask("list", prefix="tool:family")["children"] == [], "an empty list")

    reader, writer = os.pipe()
    patient.ask("put_fd", (writer,), name="kept")
    patient.ask("take_fd", name="kept")
    patient.ask("drop_fd", name="kept")
    os.close(reader)
    os.close(writer)

    sleeper = patient.spawn(SLEEPS, "tool:sleeper")
    patient.again()
    assert sleeper in [child["key"] for child in patient.link.hello["children"]]
    patient.ask("stop", key=sleeper, grace_seconds=10, kill_seconds=30, reason="stopped")
    patient.ask("release", key=sleeper)


def of_family(book: Path) -> list[int] | None:
    pids = [int(line) for line in book.read_text().split()] if book.exists() else []
    return pids if len(pids) == 3 else None


@pytest.fixture(params=["subreaper", "cgroup"] if DEEP else ["subreaper"])
def keeper(
    request: pytest.FixtureRequest, rigs: Callable[..., Rig]
) -> Iterator[tuple[Patient, FaultFile]]:
    rig = rigs(**RUNGS[request.param], backoff_initial_seconds=0.01)
    path = rig.dir / "fault"
    path.write_bytes(bytes(LAYOUT.size))
    rig.argv = [*PYTHON, str(PROBES / "faulty.py"), str(MAIN)]
    rig.start(env={"PX_TEST_FAULT": str(path)})
    if rig.greet().hello["kill_rung"] != request.param:
        pytest.skip(f"this machine does not offer {request.param}")
    yield Patient(rig), FaultFile(path)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_once_delays_and_loses_nothing(
    keeper: tuple[Patient, FaultFile], call: str
) -> None:
    patient, fault = keeper
    for number, passing in enumerate(PASSING):
        # Each error in turn: what counts is where a call fails, and every error at every place
        # takes too long.
        error = CALLS[call][number % len(CALLS[call])]
        fault.arm(call, getattr(errno, error), passing)
        try:
            play(patient)
        except AssertionError as failure:
            raise AssertionError(
                f"{call} failed with {error} after {passing} calls: {failure}"
            ) from failure
        if not fault.disarm():
            break  # there are no more calls of it
    play(patient)
    assert patient.rig.process is not None
    assert patient.rig.process.poll() is None
