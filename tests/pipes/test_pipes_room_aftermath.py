"""What follows from an end: retries, other presets, hooks, budgets, and what is forgotten."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipe_rig import PATIENCE, eventually, pipe_house
from supervisord_py.ledger.pipe_executions import ErrorType, Status, Trigger
from supervisord_py.pipes.config import RetryLimits

if TYPE_CHECKING:
    from pathlib import Path

    from pipe_rig import PipeRig
    from supervisord_py.ledger.pipe_executions import Execution

FAST = RetryLimits(initial_seconds=0.01, jitter=0.0)


async def settled(rig: PipeRig, pipe: str, count: int) -> list[Execution]:
    """Return the executions of a pipe once there are so many and all are final."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await rig.rows(pipe)
            if len(rows) >= count and all(it.status.is_final for it in rows):
                return rows
            await asyncio.sleep(0.01)


async def test_another_preset_takes_over_at_once(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, retries=FAST) as rig:
        rig.config.presets_file.write_text(
            '[presets.one]\nprovider = "openai"\nmodel = "bad"\n[presets.two]\nprovider = "openai"\nmodel = "good"\n'
        )
        rig.fake("chain", "fail:429", front="preset: [one, two]\nretries: 1")
        first = await rig.run("chain")
        assert (first.preset.id, first.plan.fallbacks[0].id) == ("one", "two")
        rows = await settled(rig, "chain", 3)
        assert [(it.preset_id, it.model, it.trigger) for it in rows[:2]] == [
            ("one", "bad", Trigger.MANUAL),
            ("two", "good", Trigger.RETRY),
        ]


async def test_a_daily_budget_refuses_before_the_spawn(short_tmp: Path) -> None:
    noon_here = f"Etc/GMT{datetime.now(UTC).hour - 12:+d}"  # where no day ends meanwhile
    async with pipe_house(short_tmp, default_timezone=noon_here) as rig:
        rig.fake("paid", "usage:100/50/0.25", "answer:fine", front="budget: {daily_tokens: 200}\nretries: 0")
        assert (await rig.run("paid")).usage.total_tokens == 150
        assert (await rig.run("paid")).status is Status.COMPLETED
        refused = await rig.run("paid")
        assert (refused.error_type, refused.pid, refused.started_at) == (ErrorType.BUDGET_EXCEEDED, None, None)
        assert "300 tokens today of 200" in (refused.error_message or "")
        rig.time.pass_by(86400)
        assert (await rig.run("paid")).status is Status.COMPLETED


async def test_who_waits_gets_the_output_though_the_ledger_takes_nothing(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("talk", "while [ ! -e gate ]; do sleep 0.01; done; yes words | head -c 200000")
        queued = await rig.room.run("talk")
        await eventually(lambda: rig.running(queued.id), "the start")
        await rig.ledger.flush()
        connection = rig.ledger._writer._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        (folder / "gate").touch()
        done = await rig.room.wait(queued.id)
        assert rig.ledger.degraded is not None
        assert (done.status, (done.stdout or "")[:6]) == (Status.COMPLETED, "words\n")
        connection.execute("PRAGMA max_page_count = 1000000")
        await eventually(lambda: rig.ledger.degraded is None, "the recovery")
