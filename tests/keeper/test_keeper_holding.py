"""Children that are fed from a file and held back by a slow reader: nothing is lost, nobody's end waits."""

from __future__ import annotations

import errno
import os
import resource
import signal
from typing import TYPE_CHECKING, Any

from keeper.keeper_rig import PYTHON, until
from supervisord_py.keeper.holding import MARK_PIECES, Hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keeper.keeper_rig import Link, Rig

HOLD = 256 << 10
PIPE = 64 << 10
"""What a pipe holds (pipe(7)); two of them, and a piece under way, lie beyond a hold at an end."""
SLACK = 2 * MARK_PIECES * 24
"""Records count, too, where the keeper was quick enough to read single writes."""
FLOOD = "import os\nwhile True: os.write(1, b'x' * 4096)"
POLITE = """
import os, signal, sys
def end(*_):
    for _ in range(50):
        os.write(1, b"y" * 4096)
    os._exit(7)
signal.signal(signal.SIGTERM, end)
while True:
    os.write(1, b"x" * 4096)
"""


def python(script: str) -> list[str]:
    return [*PYTHON, "-c", script]


def child(link: Link, key: str) -> dict[str, Any]:
    found = [one for one in link.call("list", prefix="")["children"] if one["key"] == key]
    return dict(found[0])


def held(link: Link, key: str) -> None:
    until(lambda: child(link, key)["held"], "the hold")


def spawn(rig: Rig, script: str, **members: Any) -> dict[str, Any]:
    spec = rig.spec(python(script), **members)
    rig.links[-1].call("spawn", **spec)
    return spec


def test_standard_input_is_a_stored_file_whole_and_then_closed(rig: Rig, tmp_path: Path) -> None:
    link = rig.up()
    text = os.urandom(3 * PIPE)
    (tmp_path / "prompt").write_bytes(text)
    fd = os.open(tmp_path / "prompt", os.O_RDONLY)
    link.call("put_fd", (fd,), name="prompt")
    os.close(fd)
    spec = rig.spec(["/bin/cat"], stdin_name="prompt")
    link.call("spawn", **spec)
    link.call("drop_fd", name="prompt")
    record = link.exit(spec["key"])
    assert (record["code"], record["log_end"]) == (0, len(text))
    assert rig.output("tool:probe") == text
    assert link.refused("spawn", **rig.spec(["/bin/cat"], stdin_name="prompt"))["kind"] == "unknown_fd"
    empty = rig.spec(["/bin/cat"])
    link.call("spawn", **empty)
    assert link.exit(empty["key"])["log_end"] == len(text), "nothing to read is the end of the file, not a wait"


def read_until_held(link: Link, rig: Rig, key: str, position: int) -> int:
    """Wait until a child is held that was seen up to `position`; return the end of its output."""

    def is_full() -> bool:
        return HOLD - SLACK <= len(rig.output("tool:probe")) - position <= HOLD and child(link, key)["held"]

    until(is_full, "exactly as much as may be unseen")
    return len(rig.output("tool:probe"))


def test_a_child_waits_when_it_is_too_far_ahead_and_goes_on_when_it_is_seen(rig: Rig) -> None:
    link = rig.up()
    key = spawn(rig, FLOOD, hold_bytes=HOLD)["key"]
    position = 0
    for _ in range(3):
        position = read_until_held(link, rig, key, position)
        link.call("seen", key=key, position=position)
    position = read_until_held(link, rig, key, position)
    link.call("seen", key=key, position=1 << 40)  # what is not there yet cannot have been seen
    read_until_held(link, rig, key, position)
    link.call("stop", key=key, grace_seconds=5, kill_seconds=30, reason="stopped")


def test_the_end_of_a_held_child_is_told_with_all_that_it_wrote(rig: Rig) -> None:
    """Nobody ever says `seen`: what is in the pipe when it ends is drained all the same."""
    link = rig.up()
    total = HOLD + PIPE // 2
    key = spawn(rig, f"import os; os.write(1, b'x' * {total}); os.write(2, b'oops')", hold_bytes=HOLD)["key"]
    record = link.exit(key)
    assert (record["code"], record["log_end"]) == (0, total + 4)
    link.event("gone", key=key)
    assert child(link, key)["held"] is False
    link.call("release", key=key)


def test_a_stop_waits_for_no_reader_and_still_throws_nothing_away(rig: Rig) -> None:
    link = rig.up()
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FLOOD
    key = spawn(rig, deaf, hold_bytes=HOLD)["key"]
    held(link, key)
    stopped = link.call("stop", key=key, grace_seconds=0.2, kill_seconds=30, reason="timeout")
    assert (stopped["survivors"], stopped["killed"]) == ([], True)
    assert link.exit(key)["log_end"] <= 2 * HOLD + 2 * PIPE


def test_the_last_words_of_a_held_child_are_heard_after_term(rig: Rig) -> None:
    link = rig.up()
    key = spawn(rig, POLITE, hold_bytes=HOLD)["key"]
    held(link, key)
    stopped = link.call("stop", key=key, grace_seconds=60, kill_seconds=30, reason="stopped")
    assert stopped == {**stopped, "survivors": [], "killed": False}
    assert link.exit(key)["code"] == 7
    assert rig.output("tool:probe").count(b"y") == 50 * 4096


def test_a_full_disk_holds_a_child_that_can_be_held_instead_of_losing_what_it_says(rigs: Callable[..., Rig]) -> None:
    """RLIMIT_FSIZE is a disk that is full for us: write(2) fails with EFBIG."""
    rig = rigs(log_spill_bytes=PIPE)
    link = rig.up()
    before = resource.prlimit(rig.pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    total = 4 * PIPE
    script = f"import os, time\nfor _ in range({total // 4096}): os.write(1, b'x' * 4096)\ntime.sleep(1000)"
    key = spawn(rig, script, hold_bytes=2 * total, rlimits=[["fsize", -1, -1]])["key"]
    assert link.event("log_degraded")["errno"] == errno.EFBIG
    held(link, key)
    resource.prlimit(rig.pid, resource.RLIMIT_FSIZE, before)
    assert link.event("log_recovered")["lost_bytes"] == 0
    until(lambda: len(rig.output("tool:probe")) == total, "all that it said")
    assert child(link, key)["held"] is False
    link.call("stop", key=key, grace_seconds=5, kill_seconds=30, reason="stopped")


def test_a_new_control_plane_goes_on_where_the_old_one_was(rig: Rig) -> None:
    link = rig.up()
    assert link.hello["revision"] == 2
    key = spawn(rig, FLOOD, hold_bytes=HOLD)["key"]
    position = read_until_held(link, rig, key, 0)
    os.kill(link.pid, signal.SIGKILL)
    link.close()
    link = rig.greet()
    assert [(one["key"], one["held"]) for one in link.hello["children"]] == [(key, True)]
    link.call("seen", key=key, position=position)
    read_until_held(link, rig, key, position)
    link.call("stop", key=key, grace_seconds=5, kill_seconds=30, reason="stopped")


def test_a_hold_is_a_positive_number_of_bytes(rig: Rig) -> None:
    link = rig.up()
    for limit in (0, -1, 1.5, True, "1"):
        assert link.refused("spawn", **rig.spec(["/bin/true"], hold_bytes=limit))["kind"] == "bad_request"
    assert link.refused("seen", key="nobody", position=1)["kind"] == "unknown_key"


def hold_after(limit: int, pieces: int, size: int = 1) -> Hold:
    hold = Hold(limit)
    for number in range(1, pieces + 1):
        hold.took(number * size)
    return hold


def test_small_pieces_count_with_their_records() -> None:
    """A flood of single bytes takes 25 bytes of the log each: by bytes alone the log would be full long before."""
    hold = hold_after(10_000, 2 * MARK_PIECES)
    assert hold.room(2 * MARK_PIECES) == 10_000 - 2 * MARK_PIECES * 25
    hold.see(MARK_PIECES)
    assert hold.room(2 * MARK_PIECES) == 10_000 - MARK_PIECES * 25
    hold.see(2 * MARK_PIECES)
    assert hold.room(2 * MARK_PIECES) == 10_000


def test_a_stop_grants_as_much_once_more_and_no_limit_stays_none() -> None:
    hold = hold_after(100, 1, 100)
    assert hold.room(100) == 0
    hold.relax()
    hold.relax()
    assert hold.room(100) == 100
    free = Hold()
    for number in range(10 * MARK_PIECES):
        free.took(number)
    assert free.room(1 << 40) > 1 << 50
