"""`kill -9` in the middle of writing: what was awaited is there, the file is sound, the next start goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisord_py.ledger import instances
from supervisord_py.ledger.events import EventJournal
from supervisord_py.ledger.store import Ledger

OpenLedger = Callable[..., Awaitable[Ledger]]

WRITER = """
import asyncio, pathlib, sys
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.events import Event, EventJournal
from supervisord_py.ledger.store import Ledger

async def main():
    ledger = await Ledger.open(pathlib.Path(sys.argv[1]))
    journal = EventJournal(ledger)
    for number in range(1, 1_000_000):
        journal.append(Event(number, 0.0, None, "e", None, None, None, {}))
        await ledger.write(INSTANCES.insert(InstanceRow(f"k{number}", "tool:x", 0.0)))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 7, 120])
async def test_what_was_awaited_survives_a_kill(path: Path, open_ledger: OpenLedger, lines: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(lines)]
    child.kill()
    told += [int(line) for line in child.stdout.read().split()]
    child.stdout.close()
    child.wait()
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    # Queued before the row that was awaited, so written with it.
    assert await EventJournal(ledger).last_id() >= told[-1]
    rows = await instances.open_rows(ledger)
    assert {f"k{number}" for number in told} <= {row.key for row in rows}
    closed = await instances.close_interrupted(ledger, set(), 5.0)
    assert len(closed) == len(rows)
    assert await instances.open_rows(ledger) == []
