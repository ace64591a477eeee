"""Output: raw, dated, in order, cut and thrown away by size; kept in memory while the disk takes
nothing.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.house import small_disk
from keeper.keeper_rig import Rig, one_rung, records, until
from supervisord_py.keeper.logs import Segments
from supervisord_py.keeper.protocol import GAP, STDERR, STDOUT


@one_rung
def test_bytes_come_through_as_they_are_with_stream_and_time(rung: Rig) -> None:
    link, before = rung.links[0], time.time()
    # Two pipes have no order: the keeper must have seen what is in one before the other is written
    # to.
    gates = [rung.dir / name for name in ("gate", "next-gate")]
    for gate in gates:
        os.mkfifo(gate)
    first, second = (f"read x < {gate}" for gate in gates)
    script = rf"printf 'a\000\377\r\n'; {first}; printf '\033[1mb' >&2; {second}; printf c"
    spec = rung.spawn(["/bin/sh", "-c", script])
    for gate, seen in zip(gates, (b"a\0\xff\r\n", b"a\0\xff\r\n\x1b[1mb"), strict=True):
        until(lambda seen=seen: rung.output("tool:probe") == seen, "what was written so far")
        gate.write_text("go\n")
    link.event("gone", key=spec["key"])
    record = link.exit(spec["key"])
    assert rung.output("tool:probe") == b"a\0\xff\r\n\x1b[1mbc"
    told = records(rung.dir / "logs" / "tool" / "probe")
    found = [(position, length, stream) for position, _, length, _, stream, _ in told]
    assert found == [(0, 5, STDOUT), (5, 5, STDERR), (10, 1, STDOUT)]
    times = [when for _, when, *_ in told]
    assert times == sorted(times)
    assert before - 1 <= times[0] <= times[-1] <= time.time() + 1
    assert (record["log_position"], record["log_end"]) == (0, 11)


@one_rung
@pytest.mark.parametrize("streams", [["stdout"], ["stderr"], ["stderr", "stdout"]])
def test_a_stream_with_a_descriptor_goes_into_the_file_and_not_into_the_log(
    rung: Rig, streams: list[str]
) -> None:
    """The file is the descriptor: no pipe, no log; the exit is told, and a new control plane
    finds the child.
    """
    link = rung.links[0]
    gate = rung.dir / "gate"
    os.mkfifo(gate)
    files = {name: rung.dir / f"its-{name}" for name in streams}
    fds = []
    for path in files.values():
        path.write_bytes(b"before\n")
        fds.append(os.open(path, os.O_WRONLY | os.O_APPEND))
    spec = rung.spec(
        [
            "/bin/sh",
            "-c",
            f"echo out; echo err >&2; read x < {gate}; echo more; echo woe >&2; exit 3",
        ]
    )
    number = link.send("spawn", tuple(fds), stdio_fds=streams, **spec)
    child = link.reply(number)["child"]
    for fd in fds:
        os.close(fd)
    os.kill(link.pid, signal.SIGKILL)
    link.close()
    link = rung.greet()
    assert [one["pid"] for one in link.hello["children"]] == [child["pid"]]
    gate.write_text("go\n")
    record = link.exit(spec["key"])
    link.event("gone", key=spec["key"])
    said = {"stdout": b"out\nmore\n", "stderr": b"err\nwoe\n"}
    for name, path in files.items():
        assert path.read_bytes() == b"before\n" + said.pop(name)
    logged = b"".join(said.values())
    assert sorted(rung.output("tool:probe").split()) == sorted(logged.split())
    assert (record["code"], record["log_end"] - record["log_position"]) == (3, len(logged))
    assert logged or not (rung.dir / "logs" / "tool").exists()


def test_a_grandchild_that_keeps_the_pipe_does_not_keep_the_exit_back(linux_rung: Rig) -> None:
    link = linux_rung.links[0]
    spec = linux_rung.spawn(["/bin/sh", "-c", "sleep 1000 & echo done"])
    record = link.exit(spec["key"])
    assert (record["code"], record["log_end"]) == (0, 5)
    link.stop(spec["key"], 5)


DISK = 256 << 10
PIPE = 64 << 10
"""What a pipe holds (pipe(7))."""


def test_a_full_disk_harms_nobody_and_the_gap_is_counted(
    rigs: Callable[..., Rig], tmp_path: Path, require_root: None
) -> None:
    spill, disk = 16 << 10, tmp_path / "disk"
    with small_disk(disk, str(DISK)):
        rig = rigs(log_dir=str(disk), log_spill_bytes=spill)
        link = rig.up()
        filler = disk / "filler"
        filler.write_bytes(b"x" * (100 << 10))
        # room for what is kept in memory, once the talker has filled the disk again
        reserve = disk / "reserve"
        reserve.write_bytes(b"x" * (64 << 10))
        talker = rig.spec(["/bin/sh", "-c", "while :; do echo a line; done"])
        pid = link.call("spawn", **talker)["child"]["pid"]
        degraded = link.event("log_degraded", unit="tool:probe")
        assert degraded["errno"] == errno.ENOSPC
        kept = rig.spawn(["/bin/sh", "-c", "echo kept"], unit="tool:quiet")
        assert link.exit(kept["key"])["code"] == 0
        for _ in (1, 2):  # a new control plane hears of it, too
            link.end(1)
            link = rig.greet()
            assert link.event("log_degraded", unit="tool:probe")["errno"] == errno.ENOSPC
        until(lambda: link.call("list", prefix="tool:probe")["children"][0]["exit"] is None)
        most, io = DISK + spill + 2 * PIPE, Path(f"/proc/{pid}/io")
        until(
            lambda: int(io.read_text().split()[3]) > most,
            "more than disk, memory and pipes can hold",
        )
        filler.unlink()
        recovered = link.event("log_recovered", unit="tool:probe")
        assert recovered["lost_bytes"] > 0
        link.stop(talker["key"], 5)
        reserve.unlink()
        probes = disk / "tool" / "probe"
        until(
            lambda: any(record[4] == GAP for record in records(probes)),
            "all that was kept in memory is written",
        )
        told = records(probes)
        gaps = [length for _, _, length, _, stream, _ in told if stream == GAP]
        assert gaps[0] == recovered["lost_bytes"]
        positions = [position for position, *_ in told]
        assert positions == sorted(positions)
        assert positions[-1] <= len(rig.output("tool:probe"))
        until(lambda: rig.output("tool:quiet") == b"kept\n", "what it said meanwhile")


# -- the files, without a keeper -------------------------------------------------------------------


def opened(folder: Path, segment: int = 1000, total: int = 10000) -> Segments:
    segments = Segments(str(folder), segment, total)
    segments.open()
    return segments


@pytest.mark.parametrize(
    ("size", "torn", "kept"),
    [
        (20, b"", 2),
        (20, b"torn record", 2),
        (15, b"", 2),
        (5, b"", 1),
        (20, b"\xff" * 48, 2),
        (0, b"", 1),
    ],
)
def test_a_segment_is_gone_on_with_whatever_a_crash_left(
    tmp_path: Path, size: int, torn: bytes, kept: int
) -> None:
    segments = opened(tmp_path)
    segments.append(1.0, STDOUT, 7, b"0123456789")
    segments.append(2.0, STDERR, 7, b"abcdefghij")
    segments.close()
    os.truncate(next(tmp_path.glob("*.log")), size)
    with next(tmp_path.glob("*.idx")).open("ab") as file:
        file.write(torn)
    again = opened(tmp_path)
    assert (again.position, again.instance) == (size, 7)
    again.append(4.0, STDOUT, 8, b"XY")
    again.close()
    found = [(record[0], record[4]) for record in records(tmp_path)]
    assert found == [*[(0, STDOUT), (10, STDERR)][:kept], (size, STDOUT)]
    assert next(tmp_path.glob("*.log")).read_bytes() == b"0123456789abcdefghij"[:size] + b"XY"


def test_segments_join_and_the_oldest_go(tmp_path: Path) -> None:
    segments = opened(tmp_path, segment=100, total=500)
    for number in range(200):
        segments.append(1.0, STDOUT, 1, b"line %04d\n" % number)
    segments.close()
    logs = sorted(tmp_path.glob("*.log"))
    position = int(logs[0].stem)
    assert position > 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 500 + 100
    for path in logs:
        assert (int(path.stem), path.stat().st_size <= 100) == (position, True)
        position += path.stat().st_size
    assert position == segments.position == 2000
    assert b"".join(path.read_bytes() for path in logs).endswith(b"line 0198\nline 0199\n")
