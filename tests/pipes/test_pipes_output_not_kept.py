"""Output that is longer than what is kept of it: nobody takes the beginning for the whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from api.pipe_fakes import execution
from pipe_rig import pipe_house
from requirement_stage import settings
from supervisord_py.pipes.config import OutputLimits
from supervisord_py.pipes.execution import Status
from supervisord_py.pipes.room_requests import OutputStream
from supervisord_py.pipes.running.adoption import _as_it_lies
from supervisord_py.pipes.running.spool import Spool
from supervisord_py.pipes.views import FollowDone, FollowOutput

if TYPE_CHECKING:
    from pathlib import Path

    from pipe_rig import PipeRig

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR


async def paged_through(rig: PipeRig, number: int, stream: OutputStream) -> bytes:
    """Read as a client does: page after page, until one is empty or complete."""
    found = b""
    while True:
        page = await rig.room.output(number, stream, len(found), 3000)
        found += page.data
        if page.complete or not page.data:
            return found


async def test_who_reads_the_beginning_is_told_that_it_is_not_the_whole(short_tmp: Path) -> None:
    """In pages, by following, in the row; also when only the row is left."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("long", "head -c 200000 /dev/zero | tr '\\0' x; echo err >&2")
        with settings(rig, output=OutputLimits(file_bytes=5000)):
            done = await rig.run("long")
        assert (done.status, done.stdout_bytes, done.lost_bytes) == (Status.COMPLETED, 200_000, 195_000)
        assert done.stdout == "x" * 5000 + "\n[... 195000 bytes not kept ...]\n"
        first = await rig.room.output(done.id, OUT, 0, 5000)
        assert (first.total_bytes, first.complete, first.truncated) == (200_000, False, True)
        assert await paged_through(rig, done.id, OUT) == b"x" * 5000
        whole = await rig.room.output(done.id, ERR, 0, 100)
        assert (whole.data, whole.total_bytes, whole.complete, whole.truncated) == (b"err\n", 4, True, False)

        told = [item async for item in rig.room.follow(done.id)]
        assert isinstance(told[-1], FollowDone)
        assert told[-1].execution.truncated
        assert sum(len(it.data) for it in told if isinstance(it, FollowOutput) and it.stream is OUT) == 5000
        shutil.rmtree(rig.config.executions_dir / str(done.id))
        row = await rig.room.output(done.id, OUT, 0, 10_000)
        assert (row.data.decode(), row.total_bytes, row.complete, row.truncated) == (done.stdout, 200_000, False, True)
        assert (await rig.room.output(done.id, ERR, 0, 100)).complete


def test_a_row_whose_reader_left_no_note_says_no_less_than_before(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"12345")
    known = replace(execution(), stdout_bytes=20, stderr_bytes=0, lost_bytes=0)
    found = _as_it_lies(known, Spool(tmp_path, 5), 100)
    assert (found.stdout, found.stdout_bytes, found.lost_bytes) == ("12345\n[... 15 bytes not kept ...]\n", 20, 15)
