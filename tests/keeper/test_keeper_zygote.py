"""A child that a zygote forks is held, limited, found, told and swept as one that the keeper
forks.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest

from keeper.keeper_rig import (
    PYTHON,
    Rig,
    alive,
    deafen,
    family,
    marked,
    one_linux_rung,
    probe,
    until,
)

SLEEP = "import time; time.sleep(600)"


def begun(rig: Rig) -> dict[str, Any]:
    """Start a zygote; return its child document once it forks."""
    link, (ours, theirs) = rig.links[-1], socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link.call("put_fd", (theirs.fileno(),), name="theirs")
        spec = rig.spec(probe("forks", 3), unit="zygote:one", grant_fds=[[3, "theirs"]])
        child: dict[str, Any] = link.call("spawn", **spec)["child"]
        link.call("drop_fd", name="theirs")
        theirs.close()
        assert "made_from" in json.loads(zlib.decompress(ours.recv(1 << 20)))
        link.call("put_fd", (ours.fileno(),), name=f"zygote:{child['key']}")
    return child


def script(rig: Rig, text: str) -> list[str]:
    (rig.dir / "script.py").write_text(text)
    return [*PYTHON, str(rig.dir / "script.py")]


@one_linux_rung
def test_what_is_forked_is_what_is_spawned(linux_rung: Rig) -> None:
    rig, link = linux_rung, linux_rung.links[0]
    zygote = begun(rig)
    (rig.dir / "folder").mkdir()
    read, write = os.pipe()
    link.call("put_fd", (read,), name="granted")
    felt = []
    for forked in ({}, {"zygote": zygote["key"]}):
        more = {
            "cwd": str(rig.dir / "folder"),
            "env": {"PX_X": "ä \udcff"},
            "rlimits": [["nofile", 99, 100], ["core", 0, 0]],
            "grant_fds": [[5, "granted"]],
            "set_listen_pid": True,
        }
        spec = rig.spec(probe("felt"), unit=f"tool:probe-{len(felt)}", **more, **forked)
        child = link.call("spawn", **spec)["child"]
        record = link.exit(spec["key"])
        link.event("gone", key=spec["key"])
        assert (record["code"], record["pid"], record["start_time"]) == (
            0,
            child["pid"],
            child["start_time"],
        )
        said = json.loads(rig.output(spec["unit"]).replace(spec["key"].encode(), b"KEY"))
        assert [said.pop(name) for name in ("pid", "sid", "pgid", "ppid")] == [
            *[child["pid"]] * 3,
            rig.pid,
        ]
        assert said["env"].pop("LISTEN_PID") == str(child["pid"])
        assert said["env"].pop("PX_UNIT") == spec["unit"]
        # which coverage gives to what a measured keeper executes
        said["env"].pop("COVERAGE_PROCESS_CONFIG", None)
        said["fds"] = {
            number: re.sub(r"^pipe:.*", "pipe", place) for number, place in said["fds"].items()
        }
        felt.append(said)
    assert felt[0] == felt[1]
    assert said["pdeathsig"] == signal.SIGKILL
    assert link.call("spawn", **spec)["child"]["pid"] == child["pid"], (
        "the same order again starts nothing"
    )
    os.close(read)
    os.close(write)


@pytest.mark.deep
@pytest.mark.timeout(600)  # measured, on a busy machine: minutes
@one_linux_rung
def test_a_thousand_forks_leave_nothing_behind(linux_rung: Rig) -> None:
    rig, link = linux_rung, linux_rung.links[0]
    zygote = begun(rig)
    seen = []
    for number in range(1000):
        order = rig.spawn(script(rig, "pass"), zygote=zygote["key"])
        assert link.exit(order["key"])["code"] == 0
        link.event("gone", key=order["key"])
        link.call("release", key=order["key"])
        if number in {100, 999}:
            until(
                lambda: len(marked(rig.daemon_id)) == 3,
                "the control plane, the zygote, and what waits for an order",
            )
            seen.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in (rig.pid, zygote["pid"])])
    assert seen[0] == seen[1]
    assert [one["key"] for one in link.call("list", prefix="")["children"]] == [zygote["key"]]


@one_linux_rung
def test_its_tree_is_found_and_ended(linux_rung: Rig) -> None:
    """A double-forked process is found by the mark that it has inherited, which /proc must show."""
    rig, link = linux_rung, linux_rung.links[0]
    zygote = begun(rig)
    spec, pids = family(rig, 2, "daemon", "deaf", zygote=zygote["key"])
    other = rig.spawn(script(rig, SLEEP), zygote=zygote["key"])
    assert link.stop(spec["key"], 0)["survivors"] == []
    assert not any(alive(pid) for pid in pids)
    ended = {
        child["key"]: child["exit"] is not None
        for child in link.call("list", prefix="")["children"]
    }
    assert ended == {zygote["key"]: False, spec["key"]: True, other["key"]: False}


@pytest.mark.parametrize("linux_rung", ["cgroup"], indirect=True)
def test_what_waits_for_an_order_waits_in_a_group_that_goes_with_the_zygote(
    linux_rung: Rig,
) -> None:
    def group(pid: int) -> Path:
        mount = next(
            line.split()[1]
            for line in Path("/proc/mounts").read_text().splitlines()
            if " cgroup2 " in line
        )
        words = next(
            line
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
        return Path(mount + words[3:])

    def parked() -> str:
        return "".join(each.read_text() for each in ours.glob("*.next/cgroup.procs"))

    rig, link = linux_rung, linux_rung.links[0]
    zygote = begun(rig)
    ours = group(zygote["pid"]).parent
    places = []
    for _ in range(3):
        order = rig.spec(script(rig, SLEEP), zygote=zygote["key"], max_rss_bytes=1 << 28)
        child = link.call("spawn", **order)["child"]
        waiting = until(
            lambda child=child: (found := parked().split()) != [str(child["pid"])] and found,
            "the next",
        )
        places.append((order["key"], group(child["pid"])))
        assert places[-1][1].joinpath("cgroup.procs").read_text() == f"{child['pid']}\n"
    assert [place.name.endswith(".next") for _, place in places] == [False, True, True], (
        "nobody waits for a move"
    )
    for key, _ in places:
        assert link.stop(key, 0)["survivors"] == []
    os.kill(zygote["pid"], signal.SIGKILL)
    link.event("gone", key=zygote["key"])
    until(lambda: not any(alive(int(pid)) for pid in waiting), "the end of what waited")
    until(lambda: not [each for each in ours.iterdir() if each.is_dir()], "no group is left")


def test_what_cannot_be_is_told_as_of_a_spawn(rig: Rig) -> None:
    link = rig.up()
    zygote = begun(rig)["key"]
    cases: list[tuple[dict[str, Any], str, int]] = [
        ({"cwd": "/nowhere"}, "chdir", errno.ENOENT),
        ({"rlimits": [["nofile", 10, 5]]}, "rlimit", errno.EINVAL),
        ({"zygote": "nobody"}, "zygote", errno.ENOENT),
    ]
    for members, *wanted in cases:
        error = link.refused(
            "spawn", **rig.spec(script(rig, "pass"), **{"zygote": zygote, **members})
        )
        assert [error[name] for name in ("kind", "stage", "errno")] == ["spawn_failed", *wanted]
        assert [child["unit"] for child in link.call("list", prefix="")["children"]] == [
            "zygote:one"
        ]


def test_a_zygote_that_does_not_answer_delays_nobody_for_long(rig: Rig) -> None:
    link = rig.up()
    zygote = begun(rig)
    stopped = deafen(zygote["pid"], zygote["key"])
    order = rig.spec(script(rig, f"open({str(rig.dir / 'ran')!r}, 'w')"), zygote=zygote["key"])
    assert link.refused("spawn", **order)["errno"] == errno.ETIMEDOUT
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not alive(stopped[0]), "the end of the fork that waited")
    assert (
        link.refused("spawn", **rig.spec(probe("felt"), zygote=zygote["key"]))["errno"]
        == errno.ENOENT
    ), "once"
    assert not (rig.dir / "ran").exists(), (
        "an order that nobody waits for any more is not carried out"
    )
