"""Stopping whole trees: nothing that a child started may be left, on any rung that can promise
it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keeper.keeper_rig import PYTHON, RUNGS, SLEEPS, Rig, alive, family, one_rung, probe, until
from supervisord_py.keeper import cgroup, procfs


def test_a_polite_leader_does_not_hide_a_deaf_child(rung: Rig) -> None:
    """K1: the leader exits 0 on TERM, its child ignores TERM: the stop waits, kills, and returns
    when all is gone.
    """
    link = rung.links[0]
    spec, pids = family(rung, 2, "child", "deaf", "polite")
    patient = link.send(
        "stop", key=spec["key"], grace_seconds=600, kill_seconds=30, reason="stopped"
    )
    assert link.exit(spec["key"])["code"] == 0
    assert link.stop(spec["key"], 0.1) == {"survivors": [], "killed": True}
    assert link.reply(patient)["killed"]
    assert not any(alive(pid) for pid in pids)
    assert link.event("gone", key=spec["key"])


@one_rung
def test_what_a_child_starts_to_end_itself_is_let_work(rung: Rig) -> None:
    """TERM is for what ran: a command of its trap is not asked to end as well."""
    link = rung.links[0]
    done, begun = rung.dir / "done", rung.dir / "begun"
    script = (
        f"trap 'sleep 0.5 && touch {done}; exit 0' TERM; touch {begun}; while :; do sleep 0.01; "
        "done"
    )
    spec = rung.spawn(["/bin/sh", "-c", script])
    until(begun.exists, "the trap is set")
    assert link.stop(spec["key"], 60) == {"survivors": [], "killed": False}
    assert done.exists()
    assert link.exit(spec["key"])["code"] == 0


def test_of_two_instances_only_the_stopped_one_s_orphans_die(linux_rung: Rig) -> None:
    """What ends is not counted either, although the stop's look at all processes is older than
    that.
    """
    link = linux_rung.links[0]
    first, first_pids = family(linux_rung, 2, "daemon", "deaf")
    second, second_pids = family(linux_rung, 2, "daemon", "deaf", unit="tool:other")
    link.stop(first["key"], 0.1)
    assert not any(alive(pid) for pid in first_pids)
    assert all(alive(pid) for pid in second_pids)
    (orphan,) = {*second_pids} - {link.call("spawn", **second)["child"]["pid"]}
    os.kill(orphan, signal.SIGKILL)
    until(lambda: not alive(orphan), "its end")
    assert link.call("stat", keys=[second["key"]])["stats"][second["key"]]["processes"] == 1
    link.stop(second["key"], 0.1)
    assert not any(alive(pid) for pid in second_pids)


@one_rung
def test_a_stop_right_behind_the_spawn_leaves_nothing(rung: Rig) -> None:
    """K8: both requests are in the channel before the child has reached exec."""
    link = rung.links[0]
    for _ in range(5):
        spec = rung.spec(probe("family", rung.dir / "book", "child", "daemon"))
        spawn = link.send("spawn", **spec)
        stopping = link.send(
            "stop", key=spec["key"], grace_seconds=30, kill_seconds=30, reason="stopped"
        )
        assert link.reply(stopping)["survivors"] == []
        link.reply(spawn)
        child = link.exit(spec["key"])
        assert not alive(child["pid"])
        assert link.call("release", key=spec["key"])


@one_rung
def test_dead_before_the_signal_is_an_answer_not_a_crash(rung: Rig) -> None:
    """K12."""
    link = rung.links[0]
    spec = rung.spawn(["/bin/true"])
    link.event("gone", key=spec["key"])
    assert link.refused("signal", key=spec["key"], signum=15)["kind"] == "dead"
    assert link.stop(spec["key"], 5) == {"survivors": [], "killed": False}
    assert link.refused("signal", key=spec["key"], signum=15)["kind"] == "dead"
    assert link.refused("signal", key="nobody", signum=15)["kind"] == "unknown_key"
    assert (
        link.refused("stop", key="nobody", grace_seconds=1, reason="stopped")["kind"]
        == "unknown_key"
    )


@one_rung
def test_a_signal_reaches_the_leader_or_its_whole_group(rung: Rig) -> None:
    link = rung.links[0]
    spec, pids = family(rung, 2, "child")
    link.call("signal", key=spec["key"], signum=int(signal.SIGSTOP))

    def states() -> str:
        return "".join(
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids
        )

    until(lambda: states() == "TT", "both stopped")
    link.call("signal", key=spec["key"], signum=int(signal.SIGCONT))
    until(lambda: states() == "SS", "both going on")
    link.call("signal", key=spec["key"], signum=int(signal.SIGKILL))
    assert link.exit(spec["key"])["signal"] == signal.SIGKILL


def test_a_leader_that_exits_leaves_its_tree_in_our_hands(linux_rung: Rig) -> None:
    """The exit is told at once; the instance is held until the tree is gone."""
    link = linux_rung.links[0]
    spec, pids = family(linux_rung, 3, "child", "daemon", "exits")
    assert link.exit(spec["key"])["code"] == 7
    child = link.call("list", prefix="")["children"][0]
    assert (child["exit"]["code"], child["tree_alive"]) == (7, True)
    assert link.refused("release", key=spec["key"])["kind"] == "alive"
    assert not any(event["event"] == "gone" for event in link.events)
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    link.event("gone", key=spec["key"])
    link.call("release", key=spec["key"])
    assert link.call("list", prefix="")["children"] == []
    link.call("release", key=spec["key"])  # again: nothing to forget


@pytest.mark.parametrize("linux_rung", ["cgroup"], indirect=True)
def test_a_pid_that_keeps_moving_does_not_escape_its_cgroup_which_goes_with_it(
    linux_rung: Rig,
) -> None:
    rig, link = linux_rung, linux_rung.links[0]
    spec = rig.spawn(probe("mover", rig.dir / "moving", 60))
    until((rig.dir / "moving").exists, "the mover")
    (group,) = cgroup.leftovers(rig.daemon_id)
    own = f"{group.path}/{spec['key']}"
    assert os.path.isdir(own)
    assert link.stop(spec["key"], 0.1) == {"survivors": [], "killed": True}
    link.event("gone", key=spec["key"])
    until(lambda: not os.path.exists(own), "the end of the group")
    os.kill(rig.pid, signal.SIGTERM)
    link.end()
    assert rig.wait() == 0
    assert cgroup.leftovers(rig.daemon_id) == []


def test_a_bystander_whose_pid_was_planted_is_never_touched(rigs: Any) -> None:
    """K13: the portable rung's record names a live pid with a start time that is not its own."""
    rig = rigs(platform="portable")
    with subprocess.Popen([*PYTHON, "-c", "import signal; signal.pause()"]) as bystander:
        boot = procfs.boot_id()
        record = rig.dir / "run" / "children"
        record.write_text(
            f"boot {boot}\n{bystander.pid} 12345 {rig.daemon_id}.x tool:x\nnonsense\n1 2 3\n"
        )
        rig.up()
        assert not rig.said("swept")
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.skipif(not os.path.exists("/proc/pressure/cpu"), reason="no PSI here")
@pytest.mark.parametrize("linux_rung", ["cgroup"], indirect=True)
def test_who_waits_for_a_processor_shows_it(linux_rung: Rig) -> None:
    link = linux_rung.links[0]
    spec = linux_rung.spawn(
        ["/bin/sh", "-c", "for each in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait"]
    )

    def pressure() -> dict[str, float]:
        found: dict[str, float] = link.call("stat", keys=[spec["key"]])["stats"][spec["key"]][
            "pressure"
        ]
        return found

    until(lambda: pressure()["cpu"] > 0, "pressure")
    assert all(0 <= pressure()[name] <= 100 for name in ("cpu", "memory", "io"))


# -- orphans that carry no mark --------------------------------------------------------------------

HIDES = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in map(int, sys.argv[2].split(",") if sys.argv[2] else []):
            os.dup2(null, number)
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
import signal
signal.pause()
"""


def hiding(rig: Rig, name: str, closes: str) -> tuple[dict[str, Any], int]:
    """Spawn an instance with an orphan that emptied its environment and has a session of its
    own; return both.
    """
    book = rig.dir / name
    spec = rig.spec([*PYTHON, "-c", HIDES, str(book), closes], unit=f"tool:{name}")
    rig.links[-1].call("spawn", **spec)
    return spec, int(until(lambda: book.read_text() if book.exists() else "", "the orphan"))


def without_groups(rigs: Callable[..., Rig]) -> Rig:
    rig = rigs(**RUNGS["subreaper"])
    rig.up()
    return rig


def test_an_orphan_that_writes_into_our_log_is_found_by_its_pipe(rigs: Callable[..., Rig]) -> None:
    rig = without_groups(rigs)
    rig.spawn(SLEEPS, unit="tool:other")
    for name in ("one", "two"):
        spec, orphan = hiding(rig, name, "")
        assert (
            rig.links[-1].call("stop", key=spec["key"], grace_seconds=5, kill_seconds=5)[
                "survivors"
            ]
            == []
        )
        assert not alive(orphan)


def test_an_orphan_is_assigned_to_the_only_instance_there_is(rigs: Callable[..., Rig]) -> None:
    rig = without_groups(rigs)
    spec, orphan = hiding(rig, "one", "0,1,2")
    reply = rig.links[-1].call("stop", key=spec["key"], grace_seconds=5, kill_seconds=5)
    assert (reply["survivors"], reply["unassigned"]) == ([], [])
    assert not alive(orphan)


def test_an_orphan_that_may_be_anybodys_is_named_and_not_signalled(
    rigs: Callable[..., Rig],
) -> None:
    """Also when its instance, and then every other one, is stopped: in doubt, nothing is
    signalled.
    """
    rig = without_groups(rigs)
    other = rig.spawn(SLEEPS, unit="tool:other")
    spec, orphan = hiding(rig, "one", "0,1,2")
    link = rig.links[-1]
    reply = link.call("stop", key=spec["key"], grace_seconds=5, kill_seconds=5)
    assert reply["survivors"] == []
    assert [row["pid"] for row in reply["unassigned"]] == [orphan]
    link.call("stop", key=other["key"], grace_seconds=5, kill_seconds=5)
    assert alive(orphan)
    link.call("shutdown")
    link.end()
    assert rig.wait() == 0
    assert not alive(orphan), "nothing survives the keeper"
