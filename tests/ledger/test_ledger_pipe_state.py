"""What is remembered of pipes, and which events they have taken."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from supervisord_py.ledger import table
from supervisord_py.ledger.pipe_history import PIPE_STATES, Claim, PipeStateRow, claimed, forget, release_claim
from supervisord_py.ledger.schema import TableLimit
from supervisord_py.ledger.store import Ledger

NOW = 1_763_700_000.5


async def take(ledger: Ledger, claim: Claim) -> bool:
    """Claim, and count in the same transaction; say whether it was free."""
    count = "UPDATE pipe_scheduler_state SET occurrences = occurrences + 1 WHERE pipe_name = ?"
    return bool(await ledger.call(claimed(claim, lambda connection: connection.execute(count, (claim.pipe_name,)))))


async def cells(ledger: Ledger, column: str) -> list[object]:
    return await ledger.read(lambda it: [cell for (cell,) in it.execute(f"SELECT {column} FROM pipe_claims")])  # noqa: S608


async def test_a_change_says_only_what_changes_and_does_to_the_file_what_it_does_in_memory(ledger: Ledger) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"anchor_at": NOW, "schedule": "every 1h"},
        {"enabled": True, "enabled_file": False},
        {"last_run_at": NOW + 1, "last_due": NOW, "occurrences": 3, "consecutive_failures": 2},
        {"last_success_at": NOW + 2, "last_context_end": NOW, "consecutive_failures": 0},
        {"last_decision": "waits", "last_decision_at": NOW + 3},
        {"enabled": None, "anchor_at": None},
        {},
    )
    row = PipeStateRow("a")
    for change in changes:
        row = structs.replace(row, **change)
        await ledger.write(PIPE_STATES.merge("a", **change))
        assert await PIPE_STATES.get(ledger, "a") == row
    assert (row.enabled, row.enabled_file, row.occurrences, row.last_run_at) == (None, False, 3, NOW + 1)


async def test_a_pipe_that_is_removed_is_forgotten_with_its_claims(ledger: Ledger) -> None:
    for pipe in ("a", "b"):
        await ledger.write(PIPE_STATES.merge(pipe))
        assert await take(ledger, Claim(pipe, "e", "k", NOW))
    await ledger.write(forget("a"))
    assert await PIPE_STATES.find(ledger) == [PipeStateRow("b", occurrences=1)]
    assert await cells(ledger, "pipe_name") == ["b"]


async def test_a_claim_is_somebodys_until_it_is_given_back_or_old(ledger: Ledger) -> None:
    await ledger.write(PIPE_STATES.merge("a"))
    asked = await asyncio.gather(*(take(ledger, Claim("a", "e", "k", NOW + later)) for later in (0, 9, 3)))
    assert (asked, [it.occurrences for it in await PIPE_STATES.find(ledger)]) == ([True, False, False], [1])
    await ledger.write(release_claim("a", "e", "k"))
    assert await take(ledger, Claim("a", "e", "k", NOW))
    for number in range(25):
        assert await take(ledger, Claim("a", "e", f"k{number}", NOW + number))
    limits = {"pipe_claims": TableLimit(age_seconds=10.0)}
    assert await ledger.prune(NOW + 30, limits, batch=4) == {"pipe_claims": 21}
    assert await take(ledger, Claim("a", "e", "k", NOW + 30))
    assert table.to_text(NOW + 30) in await cells(ledger, "claimed_at")


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_texts_sort_as_the_moments_do_and_are_read_to_the_millisecond(one: float, two: float) -> None:
    assert (table.to_text(one) < table.to_text(two)) is (round(one * 1000) < round(two * 1000))
    read = table.to_seconds(table.to_text(one))
    assert read is not None
    assert abs(read - one) <= 0.000_51
    assert table.to_text(read) == table.to_text(one), "what is read and written again is the same"
