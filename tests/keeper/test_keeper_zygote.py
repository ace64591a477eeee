"""A child that was started for nobody becomes somebody's: it notices nothing, and all that is said of it changes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from keeper.keeper_rig import alive, one_rung, probe, until

if TYPE_CHECKING:
    from keeper.keeper_rig import Rig

SPEAKER = "trap 'echo after; echo woe >&2; exit 7' USR1; echo before; while :; do sleep 0.02; done"


def spawned(rig: Rig, argv: list[str], **members: Any) -> str:
    spec = rig.spec(argv, unit="kernel-spare:one", **members)
    rig.links[0].call("spawn", **spec)
    return str(spec["key"])


def renamed(rig: Rig, key: str, unit: str = "kernel:mine") -> dict[str, Any]:
    members = {"key": key, "new_key": rig.key(), "unit": unit, "tag": "note"}
    child: dict[str, Any] = rig.links[0].call("rename", **members)["child"]
    assert rig.links[0].call("rename", **members)["child"] == child, "the same order again changes nothing"
    return child


@one_rung
def test_output_and_end_are_the_new_ones_from_then_on(rung: Rig) -> None:
    link = rung.links[0]
    key = spawned(rung, ["/bin/sh", "-c", SPEAKER])
    until(lambda: rung.output("kernel-spare:one") == b"before\n", "the first line")
    before = link.call("list", prefix="")["children"][0]
    child = renamed(rung, key)
    assert [one["key"] for one in link.call("list", prefix="")["children"]] == [child["key"]] != [key]
    assert (child["unit"], child["tag"], child["pid"]) == ("kernel:mine", "note", before["pid"])
    assert child["started_at"] > before["started_at"]
    link.call("signal", key=child["key"], signum=signal.SIGUSR1, tree=False)
    record = link.exit(child["key"])
    assert (record["unit"], record["code"], record["start_time"]) == ("kernel:mine", 7, before["start_time"])
    link.event("gone", key=child["key"])
    assert rung.output("kernel-spare:one") == b"before\n"
    assert sorted(rung.output("kernel:mine").splitlines()) == [b"after", b"woe"]
    assert record["log_end"] - record["log_position"] == len(b"after\nwoe\n")
    assert not [event for event in link.events if key in str(event)], "of the old key nothing is told"
    link.call("release", key=child["key"])
    assert link.call("list", prefix="")["children"] == []


def test_a_daemon_that_bears_the_old_mark_is_stopped_with_it(linux_rung: Rig) -> None:
    """A double-forked process is found by the mark that it has inherited, and that is the one of the first key."""
    book = linux_rung.dir / "family"
    key = spawned(linux_rung, probe("family", book, "daemon", "deaf"))
    pids = until(
        lambda: (words := book.read_text().split() if book.exists() else []) and len(words) == 2 and words, "a family"
    )
    other = linux_rung.spec(["/bin/sleep", "600"])
    linux_rung.links[0].call("spawn", **other)
    child = renamed(linux_rung, key)
    report = linux_rung.links[0].call("stop", key=child["key"], grace_seconds=0, kill_seconds=30, reason="stopped")
    assert report["survivors"] == []
    assert not any(alive(int(pid)) for pid in pids)
    linux_rung.links[0].call("stop", key=other["key"], grace_seconds=0, kill_seconds=30, reason="stopped")


@one_rung
def test_its_memory_is_still_watched(rung: Rig) -> None:
    if rung.links[0].hello["memory_rung"] == "cgroup":
        pytest.skip("the kernel enforces memory here, in the group that the child stays in")
    go = rung.dir / "go"
    eat = f"while [ ! -e {go} ]; do sleep 0.02; done; exec {' '.join(probe('eater', 1e9, 4e9))}"
    child = renamed(rung, spawned(rung, ["/bin/sh", "-c", eat], max_rss_bytes=100 << 20))
    go.touch()
    record = rung.links[0].exit(child["key"])
    assert record["verdict"]["reason"] == "memory_limit"


def test_what_has_ended_or_is_not_there_cannot_be_renamed(rig: Rig) -> None:
    link = rig.up()
    members = {"new_key": rig.key(), "unit": "kernel:mine", "tag": ""}
    ended, lives = spawned(rig, ["/bin/true"]), spawned(rig, ["/bin/sleep", "600"])
    link.exit(ended)
    assert link.refused("rename", key=ended, **members)["kind"] == "dead"
    assert link.refused("rename", key="nobody", **members)["kind"] == "unknown_key"
    assert link.refused("rename", key=lives, **{**members, "new_key": ended})["kind"] == "exists"
    assert link.refused("rename", key=lives, **{**members, "unit": "../.."})["kind"] == "bad_request"
    assert link.refused("rename", key=lives, unit="kernel:mine", tag="")["kind"] == "bad_request"
    link.call("stop", key=lives, grace_seconds=0, kill_seconds=30, reason="stopped")
    assert link.refused("rename", key=lives, **members)["kind"] == "dead"
