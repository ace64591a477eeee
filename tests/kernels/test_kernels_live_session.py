"""The register of sessions: which key has which id, and what is forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from supervisord_py.kernels.live_session import SessionRegister
from supervisord_py.kernels.session import BackendName, Owner, SessionKey
from supervisord_py.ledger.store import Ledger

PYTHON = "/usr/bin/python3"


def key(folder: str) -> SessionKey:
    return SessionKey("default", folder, PYTHON, BackendName.DIRECT)


FIRST, SECOND = key("/home/u/p1131"), key("/home/u/p2831")
"""Two folders whose sessions have the same short id."""


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(tmp_path / "pxd.db")
    yield opened
    await opened.close()


async def test_sessions_of_two_folders_are_two_whatever_their_short_ids(ledger: Ledger) -> None:
    assert FIRST.id == SECOND.id
    register = SessionRegister(ledger)
    first, second = (register.ensure(each, "python", Owner.SESSION) for each in (FIRST, SECOND))
    assert (first.id, first.key, second.key) == (FIRST.id, FIRST, SECOND)
    assert second.id.startswith(f"{first.id}")
    assert second.id != first.id
    assert register.ensure(SECOND, "python", Owner.SESSION) is second


async def test_ids_stay_over_a_restart_also_where_the_first_session_is_forgotten(
    ledger: Ledger,
) -> None:
    register = SessionRegister(ledger)
    ids = []
    for each in (SECOND, FIRST):
        session = register.ensure(each, "python", Owner.SESSION)
        register.write(session)
        ids.append(session.id)
    await ledger.flush()
    for _ in range(2):
        register = SessionRegister(ledger)
        await register.open()
        register.sessions.clear()
        assert [
            register.ensure(each, "python", Owner.SESSION).id for each in (SECOND, FIRST)
        ] == ids
