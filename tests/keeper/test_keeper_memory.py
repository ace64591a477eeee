"""The memory watchdog: in time, sure, and written down before the kill."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeper.keeper_rig import alive, probe, until
from supervisord_py.keeper import memory, processes

if TYPE_CHECKING:
    from keeper.keeper_rig import Rig

MB = 1 << 20
TRIES = 6
"""At a gigabyte a second it is the machine, if it lets the keeper wait for 50 ms, that is too late; not every time."""


def resident_rung(rig: Rig) -> bool:
    return bool(rig.links[0].hello["memory_rung"] != "cgroup")


def test_a_runaway_is_killed_with_the_verdict_written_first(rung: Rig) -> None:
    if not resident_rung(rung):
        pytest.skip("the kernel enforces memory here")
    limit = 200 * MB
    assert any(overrun(rung, limit, "eater", 1e9, 4e9) <= limit * 1.25 for _ in range(TRIES))


def overrun(rig: Rig, limit: int, name: str, *words: object) -> int:
    """Let a probe be killed for its memory; return with how much it was found."""
    link = rig.links[0]
    spec = rig.spec(probe(name, *words), max_rss_bytes=limit)
    link.call("spawn", **spec)
    record = link.exit(spec["key"])
    verdict = record["verdict"]
    assert (verdict["reason"], verdict["by"], verdict["signal"]) == ("memory_limit", "watchdog", signal.SIGKILL)
    assert verdict["limit_bytes"] == limit < verdict["rss_bytes"]
    assert verdict["time"] <= record["ended_at"]
    assert record["signal"] == signal.SIGKILL
    assert link.event("gone", key=spec["key"])
    assert link.call("stat", keys=[spec["key"]])["stats"][spec["key"]]["processes"] == 0
    found: int = verdict["rss_bytes"]
    return found


@pytest.mark.parametrize(("mode", "code", "signum"), [("polite", 7, None), ("deaf", None, signal.SIGKILL)])
def test_a_child_with_a_grace_is_asked_to_end_first(linux_rung: Rig, mode: str, code: int, signum: int) -> None:
    if not resident_rung(linux_rung):
        pytest.skip("the kernel enforces memory here")
    link = linux_rung.links[0]
    grace = 600 if mode == "polite" else 0.2
    eater = probe("eater", 1e9, 215 * MB, mode)
    spec = linux_rung.spec(eater, max_rss_bytes=200 * MB, memory_grace_seconds=grace)
    link.call("spawn", **spec)
    record = link.exit(spec["key"])
    assert (record["code"], record["signal"]) == (code, signum)
    assert (record["verdict"]["reason"], record["verdict"]["signal"]) == ("memory_limit", signum or signal.SIGTERM)
    link.event("gone", key=spec["key"])


def test_who_grows_on_in_its_grace_is_killed_at_once(linux_rung: Rig) -> None:
    if not resident_rung(linux_rung):
        pytest.skip("the kernel enforces memory here")
    link = linux_rung.links[0]
    spec = linux_rung.spec(probe("eater", 5e8, 4e9, "deaf"), max_rss_bytes=200 * MB, memory_grace_seconds=600)
    link.call("spawn", **spec)
    record = link.exit(spec["key"])
    assert record["signal"] == signal.SIGKILL
    assert (record["verdict"]["reason"], record["verdict"]["signal"]) == ("memory_limit", signal.SIGKILL)
    link.event("gone", key=spec["key"])


def test_the_whole_tree_counts_and_dies(linux_rung: Rig) -> None:
    if not resident_rung(linux_rung):
        pytest.skip("the kernel enforces memory here")
    limit = 200 * MB
    assert any(overrun(linux_rung, limit, "eater", 1e9, 2e9, "forked") <= limit * 1.25 for _ in range(TRIES))


def test_shared_pages_are_not_counted_twice(linux_rung: Rig) -> None:
    """Three processes that share 150 MB are 450 MB by the sum of RSS; the limit of 300 MB is still not exceeded."""
    if not resident_rung(linux_rung):
        pytest.skip("the kernel enforces memory here")
    link = linux_rung.links[0]
    spec = linux_rung.spec(probe("eater", 1e9, 150 * MB, "shared"), max_rss_bytes=300 * MB)
    child = link.call("spawn", **spec)["child"]

    def total() -> int:
        found: int = link.call("stat", keys=[spec["key"]])["stats"][spec["key"]]["rss_bytes"]
        return found

    until(lambda: total() > 400 * MB, "a sum over the limit")
    for _ in range(50):
        link.receive(0.02)
        assert alive(child["pid"])
    assert not any(event["event"] == "exit" for event in link.events)


def test_a_child_below_its_limit_is_left_alone(rung: Rig) -> None:
    link = rung.links[0]
    spec = rung.spec(probe("talker", 3, 0), max_rss_bytes=500 * MB)
    link.call("spawn", **spec)
    record = link.exit(spec["key"])
    assert (record["code"], record["verdict"]) == (0, None)


@given(used=st.integers(0, 1 << 34), grown=st.integers(-(1 << 30), 1 << 30), limit=st.integers(1 << 20, 1 << 34))
def test_the_interval_keeps_the_promise(used: int, grown: int, limit: int) -> None:
    """Growth at 2 GB/s never crosses the limit unseen by more than one shortest interval."""
    seconds = memory.interval(used, grown, limit)
    assert memory.MIN_SECONDS <= seconds <= memory.FLAT_SECONDS
    assert seconds == memory.MIN_SECONDS or used + seconds * memory.GROWTH_BYTES_PER_SECOND <= limit + 1
    if abs(grown) > memory.FLAT_BYTES:
        assert seconds <= memory.MAX_SECONDS


class FakeLoop:
    """Time that stands still; timers that are only counted."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[Any] = []

    def now(self) -> float:
        return self.time

    def later(self, seconds: float, callback: Any) -> Any:
        timer = type("Timer", (), {"cancel": lambda own: own in self.timers and self.timers.remove(own)})()
        timer.when, timer.callback = self.time + seconds, callback
        self.timers.append(timer)
        return timer

    def jump(self) -> None:
        """Go to the next timer and fire it."""
        timer = min(self.timers, key=lambda one: one.when)
        self.time = timer.when
        self.timers.remove(timer)
        timer.callback()


class FakeCensus:
    def __init__(self) -> None:
        self.pids = [1, 2]
        self.looks = 0

    def catch_up(self) -> None:
        self.looks += 1

    def member_pids(self, _instance: Any) -> list[int]:
        return self.pids


def fake_instance(limit: int) -> Any:
    return type("Instance", (), {"key": f"k{limit}", "group": None, "max_rss_bytes": limit, "memory_grace": 0.0})()


def test_a_share_that_cannot_be_read_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "resident", lambda _pid: 150 * MB)
    monkeypatch.setattr(processes, "proportional", lambda _pid: None)
    loop, over = FakeLoop(), []
    watchdog = memory.Watchdog(loop, FakeCensus(), lambda _, used, _grace: over.append(used))  # type: ignore[arg-type]
    watchdog.watch(fake_instance(250 * MB))
    loop.jump()
    assert over == [300 * MB]
