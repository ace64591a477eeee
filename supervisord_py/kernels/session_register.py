"""Every session that is known: living ones, and those that are remembered from before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from supervisord_py.errors import AmbiguousNameError, UnknownUnitError
from supervisord_py.kernels.choice import shortened
from supervisord_py.kernels.live_session import LiveSession
from supervisord_py.kernels.messages import end_in_row, how_it_ended
from supervisord_py.kernels.session import BackendName, Owner, SessionKey, SessionState
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.kernels import KernelSessionRow
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.ledger.kernels import Newest
    from supervisord_py.ledger.store import Ledger

CUT_OFF = "The session's last kernel was cut off with the daemon; its variables are gone."
_SHORT = {Reason.EXIT: "exited", Reason.SIGNAL: "was killed by a signal"}  # ends of which only a record could tell more
_AT_REST = frozenset({SessionState.STOPPED.value, SessionState.FAILED.value})
REMEMBERED_MAX = 200  # stopped sessions that are shown; older ones are found in the ledger's history only
FORGET_SECONDS = 60.0  # so long a session that its front end ended is still shown: whoever watched it sees how it ended


class SessionRegister:
    """Sessions by id, in `sessions`. `ledger`: where they are remembered."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sessions: dict[str, LiveSession] = {}
        self._unsettled: list[KernelSessionRow] = []

    async def open(self) -> None:
        """Read what earlier control planes remembered."""
        newest = await kernel_rows.newest_of_all(self._ledger)
        for number, row in enumerate(await kernel_rows.all_sessions(self._ledger)):
            if row.state not in _AT_REST:
                self._unsettled.append(row)
            session = _session(row)
            if number < REMEMBERED_MAX and session is not None and session.owner is not Owner.PER_CALL:
                if (cell := newest.get(row.id)) is not None:
                    session.newest, session.has_cells = cell, True
                    session.lost = how_lost(cell, row.reason) if session.keeps_variables else None
                self.sessions.setdefault(session.id, session)

    def settle_the_rest(self) -> None:
        """Once it is known what lives: what was alive when it was written down last, and is not, was cut off."""
        for row in self._unsettled:
            session = self.sessions.get(row.id)
            if session is not None and session.kernel is not None:
                continue
            if session is not None:
                session.reason = session.reason or Reason.INTERRUPTED
                session.lost = session.lost or (CUT_OFF if session.keeps_variables else None)
            state, reason = SessionState.STOPPED.value, row.reason or Reason.INTERRUPTED.value
            kernel_rows.remember(self._ledger, msgspec.structs.replace(row, state=state, reason=reason))
        self._unsettled.clear()

    def ensure(self, key: SessionKey, language: str, owner: Owner = Owner.SESSION) -> LiveSession:
        """Return the session of a key, made where there is none."""
        session = self.sessions.get(key.id)
        if session is None:
            session = self.sessions[key.id] = LiveSession(key, language, time.time(), owner)
            self._shrink()
        return session

    def restored(self, row: KernelSessionRow) -> LiveSession | None:
        """Return the session of a row as it is known, else as the row says; None where that is not understood."""
        return self.sessions.get(row.id) or _session(row)

    def known(self, session_id: str) -> LiveSession:
        """Return a session by its id. Raises UnknownUnitError: there is none."""
        session = self.sessions.get(session_id)
        if session is None:
            raise unknown(session_id)
        return session

    def find(self, name: str, cwd: str | None = None) -> LiveSession:
        """Return the session that a user means by an id, a Jupyter id or a name.

        `cwd`, a real path, decides between sessions of one name, then a living one, then a Python one.

        Raises UnknownUnitError, AmbiguousNameError: there is none, or several; `candidates` lists their ids.
        """
        if (session := self.sessions.get(name)) is not None:
            return session
        found = [it for it in self.sessions.values() if name in {it.key.name, it.key.jupyter_id}]
        if len(found) > 1 and cwd is not None:
            found = [it for it in found if it.key.cwd == cwd]
        if len(found) > 1:
            found = [it for it in found if it.kernel is not None] or found
        pythons = {(it.key.name, it.key.cwd) for it in found if it.keeps_variables}
        found = [it for it in found if it.keeps_variables or (it.key.name, it.key.cwd) not in pythons]
        if not found:
            raise unknown(name)
        if len(found) > 1:
            ids = sorted(it.id for it in found)
            raise AmbiguousNameError(
                f"{name} names {len(found)} sessions: {', '.join(ids)}.",
                hint="Use an id: `pxctl kernel list` shows them with their folders.",
                candidates=[f"kernel:{each}" for each in ids],
            )
        return found[0]

    def write(self, session: LiveSession) -> None:
        session.written_use = session.last_used
        kernel_rows.remember(self._ledger, session.view())

    def write_used(self) -> None:
        """Write down what living sessions are now that were used since they were last written."""
        for session in self.sessions.values():
            if session.kernel is not None and session.last_used != session.written_use:
                self.write(session)

    def settle(self, session: LiveSession) -> None:
        """A kernel of a session is gone: write down what is left of it, or forget it where it was one call's own."""
        if session.owner is Owner.PER_CALL and session.is_at_rest:
            self.sessions.pop(session.id, None)
        session.rested_at = time.time()
        self.write(session)

    def _is_over(self, session: LiveSession) -> bool:
        """Say whether a front end has ended it, and nobody has run a cell of ours there."""
        if not session.owner.is_front_end or session.has_cells or session.reason is not Reason.STOPPED:
            return False
        return time.time() - session.rested_at > FORGET_SECONDS

    def _shrink(self) -> None:
        idle = [it for it in self.sessions.values() if it.is_at_rest]
        for session in [it for it in idle if self._is_over(it)]:
            idle.remove(session)
            del self.sessions[session.id]
            kernel_rows.forget(self._ledger, session.id)
        for session in idle[: max(0, len(self.sessions) - REMEMBERED_MAX)]:
            self.sessions.pop(session.id)


def unknown(name: str) -> UnknownUnitError:
    name = shortened(name)
    return UnknownUnitError(
        f"There is no kernel session {name}.",
        hint="`pxctl kernel list` shows them; `pxctl kernel start` makes one.",
        unit=f"kernel:{name}",
    )


def how_lost(newest: Newest, session_reason: str | None) -> str:
    """Say where the variables of a session's last cells went, from how their kernel or else its session ended."""
    end = end_in_row(newest.reason or session_reason, newest.code, newest.signal)
    if end is None or end.reason is Reason.INTERRUPTED:
        return CUT_OFF
    how = _SHORT.get(end.reason) if end.record is None else None
    return f"The session's last kernel {how or how_it_ended(end)}; its variables are gone."


def _session(row: KernelSessionRow) -> LiveSession | None:
    """Return the session of a row; None for one that this version does not understand."""
    try:
        key = SessionKey(row.name, row.cwd, row.interpreter, BackendName(row.backend))
        session = LiveSession(key, row.language, row.created_at, Owner(row.owner))
        session.reason = Reason(row.reason) if row.reason else None
    except ValueError:
        return None
    session.kernelspec, session.last_used, session.restarts = row.kernelspec, row.last_used, row.restarts
    if session.reason is Reason.INTERRUPTED and session.keeps_variables:
        session.lost = CUT_OFF
    return session
