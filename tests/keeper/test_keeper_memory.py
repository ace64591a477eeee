"""The memory watchdog: in time, sure, and written down before the kill."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeper.keeper_rig import Rig, alive, probe, until
from supervisord_py.keeper import memory

MB = 1 << 20
TRIES = 6
"""At a gigabyte a second it is the machine, if it lets the keeper wait for 50 ms, that is too
late; not every time.
"""


@pytest.fixture
def sampled(linux_rung: Rig) -> Rig:
    """A keeper that looks for itself how much its children take."""
    if linux_rung.links[0].hello["memory_rung"] == "cgroup":
        pytest.skip("the kernel enforces memory here")
    return linux_rung


def test_a_runaway_is_killed_with_the_verdict_written_first(rung: Rig) -> None:
    if rung.links[0].hello["memory_rung"] == "cgroup":
        pytest.skip("the kernel enforces memory here")
    limit = 200 * MB
    assert any(overrun(rung, limit, "eater", 1e9, 4e9) <= limit * 1.25 for _ in range(TRIES))


def overrun(rig: Rig, limit: int, name: str, *words: object) -> int:
    """Let a probe be killed for its memory; return with how much it was found."""
    link = rig.links[0]
    spec = rig.spawn(probe(name, *words), max_rss_bytes=limit)
    record = link.exit(spec["key"])
    verdict = record["verdict"]
    assert (verdict["reason"], verdict["by"], verdict["signal"]) == (
        "memory_limit",
        "watchdog",
        signal.SIGKILL,
    )
    assert verdict["limit_bytes"] == limit < verdict["rss_bytes"]
    assert verdict["time"] <= record["ended_at"]
    assert record["signal"] == signal.SIGKILL
    assert link.event("gone", key=spec["key"])
    assert link.call("stat", keys=[spec["key"]])["stats"][spec["key"]]["processes"] == 0
    found: int = verdict["rss_bytes"]
    return found


GRACES = [  # total and mode of the eater, its grace, its code and signal, the signal of the verdict
    (215 * MB, "polite", 600, 7, None, signal.SIGTERM),
    (215 * MB, "deaf", 0.2, None, signal.SIGKILL, signal.SIGKILL),
    (4e9, "deaf", 600, None, signal.SIGKILL, signal.SIGKILL),  # it grows on
]


@pytest.mark.parametrize(("total", "mode", "grace", "code", "signum", "verdict"), GRACES)
def test_a_child_with_a_grace_is_asked_to_end_first_unless_it_grows_on(
    sampled: Rig, total: float, mode: str, grace: float, code: int, signum: int, verdict: int
) -> None:
    link = sampled.links[0]
    spec = sampled.spawn(
        probe("eater", 5e8, total, mode), max_rss_bytes=200 * MB, memory_grace_seconds=grace
    )
    record = link.exit(spec["key"])
    assert (record["code"], record["signal"]) == (code, signum)
    assert (record["verdict"]["reason"], record["verdict"]["signal"]) == ("memory_limit", verdict)
    link.event("gone", key=spec["key"])


def test_shared_pages_are_not_counted_twice(sampled: Rig) -> None:
    """Three processes that share 150 MB are 450 MB by the sum of RSS; the limit of 300 MB is
    still not exceeded.
    """
    link = sampled.links[0]
    spec = sampled.spec(probe("eater", 1e9, 150 * MB, "shared"), max_rss_bytes=300 * MB)
    child = link.call("spawn", **spec)["child"]

    def total() -> int:
        found: int = link.call("stat", keys=[spec["key"]])["stats"][spec["key"]]["rss_bytes"]
        return found

    until(lambda: total() > 400 * MB, "a sum over the limit")
    for _ in range(50):
        link.receive(0.02)
        assert alive(child["pid"])
    assert not any(event["event"] == "exit" for event in link.events)


@given(
    used=st.integers(0, 1 << 34),
    grown=st.integers(-(1 << 30), 1 << 30),
    limit=st.integers(1 << 20, 1 << 34),
    before=st.floats(memory.MIN_SECONDS, memory.QUIET_SECONDS),
)
def test_the_interval_keeps_the_promise(used: int, grown: int, limit: int, before: float) -> None:
    """What grows, or is near its limit, cannot cross it at 2 GB/s unseen by more than one
    shortest interval.
    """
    seconds = memory.interval(used, grown, limit, before)
    assert memory.MIN_SECONDS <= seconds <= memory.QUIET_SECONDS
    if abs(grown) > memory.QUIET_BYTES or used > limit / 2:
        assert (
            seconds == memory.MIN_SECONDS
            or used + seconds * memory.GROWTH_BYTES_PER_SECOND <= limit + 1
        )
        assert seconds <= memory.MAX_SECONDS
