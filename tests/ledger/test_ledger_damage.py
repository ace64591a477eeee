"""Any damage of any byte: a ledger opens, at the latest the second time, and every list can be
read.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rounds import DEEP
from supervisord_py.api.idempotency import claim
from supervisord_py.ledger import instances, kernels, pipes, schema
from supervisord_py.ledger.instances import (
    INSTANCES,
    PINS,
    UNIT_STATES,
    InstanceRow,
    PinRow,
    UnitStateRow,
)
from supervisord_py.ledger.kernels import CELLS, SESSIONS, KernelCellRow, KernelSessionRow
from supervisord_py.ledger.pipes import EXECUTIONS, PIPE_STATES, Execution, ExecutionFilter, Status
from supervisord_py.ledger.store import Ledger, LedgerDegradedError
from supervisord_py.process.events import EventStream
from supervisord_py.tools.status import LastStates

FLIPS = (1, 1, 1, 2, 5)  # how many bytes are damaged
HEADER_BYTES = 100


async def fill(path: Path) -> None:
    ledger = await Ledger.open(path)
    stream = await EventStream.open(ledger)
    for number in range(40):
        stream.publish("e", "tool:x", instance="k", text="wördß", number=number)
    for number in range(10):
        execution = Execution(
            id=number + 1, pipe_name=f"p{number}", status=Status.QUEUED, queued_at=1.0
        )
        session = KernelSessionRow(
            f"s{number}", "n", "/", "py", "direct", "python", "session", 1.0, "cold"
        )
        for operation in (
            INSTANCES.insert(InstanceRow(f"k{number}", "tool:x", 1.0, verdict={"a": 1}, port=5)),
            PINS.put(PinRow(f"tool:p{number}", forever=True, pinned_at=1.0)),
            UNIT_STATES.put(UnitStateRow(f"tool:u{number}", "cold", 1.0, facts={"unpinned": True})),
            CELLS.insert(
                KernelCellRow(f"c{number}", "s", "call", 0, "1", "ok", 1.0, 1.0, instance="k")
            ),
            SESSIONS.put(session),
            EXECUTIONS.insert(execution),
            PIPE_STATES.merge(f"p{number}", enabled=False, enabled_file=True, schedule="x"),
        ):
            await ledger.write(operation)
        await claim(ledger, f"key{number}", "POST /x", "d")
    await ledger.close()


async def read_all(ledger: Ledger) -> None:
    """Ask what a start, the lists and a keyed request ask."""
    stream = await EventStream.open(ledger)
    for event in [*await stream.history(), *await stream.latest()]:
        json.dumps(event.document())
    await instances.close_interrupted(ledger, set(), 2.0)
    await instances.interrupted_since(ledger, 0.0)
    await instances.latest(ledger, "tool:x", 5)
    await LastStates(ledger).read()
    await PINS.find(ledger)
    await kernels.all_sessions(ledger)
    await kernels.newest_of_all(ledger)
    await kernels.open_cells(ledger)
    await kernels.of_session(ledger, "s")
    await pipes.open_rows(ledger)
    await pipes.last_of_each(ledger)
    await pipes.page(ledger, ExecutionFilter())
    await PIPE_STATES.find(ledger)
    for number in range(3):
        await claim(ledger, f"key{number}", "POST /x", "d")
    stream.publish("after")
    await ledger.flush()


async def opens_and_reads(path: Path) -> bool:
    ledger = await Ledger.open(path)
    try:
        await read_all(ledger)
    # it met the damage and moved the file aside: the next one begins anew
    except LedgerDegradedError:
        return False
    finally:
        await ledger.close()
    return True


@pytest.mark.parametrize("small_bytes", [0, schema.SMALL_BYTES], ids=["large", "small"])
async def test_damaged_bytes_break_neither_start_nor_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(schema, "SMALL_BYTES", small_bytes)
    path = tmp_path / "pxd.db"
    await fill(path)
    whole = {part: part.read_bytes() for part in tmp_path.iterdir()}
    used = [at for at, byte in enumerate(whole[path]) if byte and at >= HEADER_BYTES]
    for seed in range(300 if DEEP else 30):
        dice = random.Random(seed)
        damaged = bytearray(whole[path])
        for at in dice.sample(used, dice.choice(FLIPS)):
            damaged[at] = dice.randrange(256)
        for part in tmp_path.iterdir():
            part.unlink()
        for part, raw in {**whole, path: bytes(damaged)}.items():
            part.write_bytes(raw)
        assert await opens_and_reads(path) or await opens_and_reads(path), f"seed {seed}"
