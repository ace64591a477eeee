"""The keeper's decisions and readings that need no process: kinship, records, cgroup texts, stat
lines, the loop.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.keeper import cgroup, procfs
from supervisord_py.keeper.loop import Loop
from supervisord_py.keeper.procfs import Process
from supervisord_py.keeper.protocol import close_fds
from supervisord_py.keeper.tree import assign

KEEPER, CONTROL = 100, 101


def person(pid: int, ppid: int) -> Process:
    return Process(pid, ppid, pid, pid)


TWO = {(200, 200): "a", (300, 300): "b"}
LEADERS = [person(200, KEEPER), person(300, KEEPER)]
FAMILIES: list[tuple[list[Process], dict[str, Any], dict[str, set[int]]]] = [
    (
        [person(201, 200), person(202, 201), person(301, 300)],
        {},
        {"a": {200, 201, 202}, "b": {300, 301}},
    ),
    # strangers are nobody's
    ([person(900, 1), person(901, CONTROL)], {}, {"a": {200}, "b": {300}}),
    (
        [person(250, KEEPER), person(251, 250)],
        {"marks": {250: "b"}},
        {"a": {200}, "b": {300, 250, 251}},
    ),
    ([person(250, 1)], {"marks": {250: "b"}, "adopter": 1}, {"a": {200}, "b": {300, 250}}),
    (
        [person(250, KEEPER), person(251, 250)],
        {"known": {(250, 250): "a"}},
        {"a": {200, 250, 251}, "b": {300}},
    ),
    # the pid was reused
    ([person(250, KEEPER)], {"known": {(250, 7): "a"}}, {"a": {200}, "b": {300}}),
    # a torn snapshot
    ([person(400, 401), person(401, 400), person(402, 401)], {}, {"a": {200}, "b": {300}}),
]


@pytest.mark.parametrize(("rows", "more", "expected"), FAMILIES)
def test_whose_process_is_whose(
    rows: list[Process], more: dict[str, Any], expected: dict[str, set[int]]
) -> None:
    table = {
        row.pid: row
        for row in [person(1, 0), person(KEEPER, 1), person(CONTROL, KEEPER), *LEADERS, *rows]
    }
    owners, marks = {**TWO, **more.get("known", {})}, more.get("marks", {})
    found = assign(
        table,
        owners,
        more.get("adopter", KEEPER),
        {KEEPER, CONTROL},
        lambda row: marks.get(row.pid),
    )
    assert {key: {row.pid for row in people} for key, people in found.items()} == expected


STAT = (
    b"4242 (a) b (c)) S 7 4242 4240 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 3 0 987654 1000000 321 "
    b"1844674407370 "
    b"10 20 30 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0"
)


def test_a_stat_line_is_read_whatever_the_name_is_and_a_zombie_is_dead_unless_its_threads_live() -> (
    None
):
    row = procfs.parse_stat(STAT)
    assert (row.pid, row.ppid, row.pgid, row.start_time) == (4242, 7, 4242, 987654)
    assert row.name == "a) b (c)"
    assert row.ticks == 50 + 60 + 7 + 8
    assert row.alive
    assert procfs.parse_stat(STAT.replace(b") S ", b") Z ")).alive  # three threads
    assert not procfs.parse_stat(
        STAT.replace(b") S ", b") Z ").replace(b" 20 0 3 0 ", b" 20 0 1 0 ")
    ).alive
    with pytest.raises(ValueError, match="stat"):
        procfs.parse_stat(b"1 (x) S 1")


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_signal_needs_the_same_start_time(
    monkeypatch: pytest.MonkeyPatch, *, pidfd: bool
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    me = procfs.look(os.getpid())
    assert me is not None
    me.start_time += 1
    assert not procfs.send(me, 9)
    me.start_time -= 1
    assert procfs.send(me, 0)
    assert not procfs.send(person(2**22 + 1, 1), 9)


MOUNTS = (
    "23 1 0:21 / /proc rw - proc proc rw\n"
    "41 31 0:38 {root} /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
)


@pytest.mark.parametrize(
    ("root", "membership", "expected"),
    [
        ("/", "9:name=systemd:/x\n0::/\n", "/sys/fs/cgroup/uni fied"),
        ("/", "0::/user.slice/px.service\n", "/sys/fs/cgroup/uni fied/user.slice/px.service"),
        ("/a/b", "0::/a/b/c\n", "/sys/fs/cgroup/uni fied/c"),
        ("/a/b", "0::/a/bc\n", None),
        ("/", "0::/../elsewhere\n", None),
        ("/", "1:cpu:/\n", None),
    ],
)
def test_our_place_among_cgroups_is_found(root: str, membership: str, expected: str | None) -> None:
    place = cgroup.locate(MOUNTS.replace("{root}", root), membership)
    assert (place[1] if place else None) == expected


def test_a_group_holds_what_its_controllers_can(tmp_path: Path) -> None:
    """The files of a group with the controllers memory and pids; tests/e2e/test_e2e_cgroups.py
    has a kernel do it.
    """
    for name in ("memory.max", "memory.oom.group", "memory.swap.max", "pids.max"):
        (tmp_path / name).touch()
    group = cgroup.Cgroup(str(tmp_path))
    assert group.limit(None, {"nproc": (-1, -1), "core": (0, 0)}) == set()
    limits = {"nproc": (20, 20), "cpu_percent": (150, 150), "cpu": (1, 2)}
    assert group.limit(1 << 20, limits) == {"memory", "nproc"}
    (tmp_path / "cpu.max").touch()
    assert group.limit(None, limits) == {"nproc", "cpu_percent"}
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    only = {"memory.oom.group": "1", "memory.swap.max": "0"}
    assert written == {
        "memory.max": "1048576",
        "pids.max": "20",
        "cpu.max": "150000 100000",
        **only,
    }


OOMS = [("oom 3\noom_kill 0\n", None), ("oom 1\noom_kill 2\noom_group_kill 1\n", "memory_limit")]
OOMS += [("oom 0\noom_kill 1\n", "oom_kill"), ("", None)]


@pytest.mark.parametrize(("events", "reason"), OOMS)
def test_a_kill_of_the_kernel_is_told_from_a_limits(
    events: str, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "memory.events").write_text(events)
    assert cgroup.Cgroup(str(tmp_path)).oom() == reason


def test_a_record_of_macos_is_read() -> None:
    record = bytearray(procfs.BSD_INFO_BYTES)
    struct.pack_into("<5I", record, 0, 0, procfs.ZOMBIE, 0, 77, 5)
    record[48:53] = b"tool\0"
    struct.pack_into("<I", record, 100, 70)
    struct.pack_into("<QQ", record, 120, 1000, 5)
    row = procfs.parse_bsd(bytes(record))
    found = (row.pid, row.ppid, row.pgid, row.start_time, row.name, row.alive)
    assert found == (77, 5, 70, 1_000_000_005, "tool", False)


# -- the loop --------------------------------------------------------------------------------------


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe(), os.pipe()]
    yield made
    close_fds(fd for ends in made for fd in ends)


def test_a_descriptor_closed_by_a_neighbour_in_the_same_turn_is_not_called(
    pipes: list[tuple[int, int]],
) -> None:
    ours, called = Loop(pytest.fail), []
    for number, (read, write) in enumerate(pipes):
        ours.watch(
            read, lambda number=number: (called.append(number), ours.unwatch(pipes[1 - number][0]))
        )
        os.write(write, b"x")
    ours.turn()
    assert len(called) == 1


def test_an_answer_goes_out_after_what_was_printed_before_it_was_asked_for(
    pipes: list[tuple[int, int]],
) -> None:
    ours, called, (asked, output) = Loop(pytest.fail), list[str](), pipes

    # the keeper was stopped between its look and this: meanwhile a child has printed
    def receive() -> None:
        os.read(asked[0], 1)
        os.write(output[1], b"x")
        ours.later(0, lambda: called.append("answered"))

    ours.watch(asked[0], receive)
    ours.watch(output[0], lambda: called.append("read") or os.read(output[0], 1))
    os.write(asked[1], b"x")
    ours.turn()
    ours.turn()
    assert called == ["read", "answered"]


def test_a_walk_leaves_out_groups_that_are_closed_to_us_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's daemon has its cgroup for itself: that must not end the start of ours."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    real = os.scandir
    refusal: list[int] = [errno.EACCES]

    def scandir(path: str) -> Any:
        if path.endswith("theirs"):
            raise OSError(refusal[0], os.strerror(refusal[0]))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert sorted(cgroup.walk(str(tmp_path))) == [str(tmp_path), str(tmp_path / "ours")]
    refusal[0] = errno.EMFILE
    with pytest.raises(OSError, match="open files"):
        cgroup.walk(str(tmp_path))
