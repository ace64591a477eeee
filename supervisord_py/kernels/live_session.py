"""One session as the room knows it: living, or remembered with nothing running."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.kernels.choice import BASH, PYTHON, SPEC_PREFIX, ChooseRequest
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.messages import refusal_error
from supervisord_py.kernels.room_requests import Owner
from supervisord_py.kernels.session import BackendName, SessionState, SessionView
from supervisord_py.kernels.session_events import Refusal, Refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.choice import Choice
    from supervisord_py.kernels.execution import CellRun
    from supervisord_py.kernels.kernel_driver import KernelInstance
    from supervisord_py.kernels.session import SessionKey
    from supervisord_py.kernels.session_events import Standing
    from supervisord_py.ledger.kernels import Newest
    from supervisord_py.process.model import Reason


@dataclass(slots=True, eq=False)
class LiveSession:
    """One session.

    Attributes:
        created: Unix seconds.
        last_used: Unix seconds of the end of the last call.
        choice: What the next kernel is started from, if that has been decided.
        extra: Variables that Jupyter's front end sent for it.
        arguments: What it sent for the kernel's command line.
        environ: The caller's variables at the last choice.
        reason: Why its last kernel ended.
        notices: What its last start or recycling had to say.
        newest: The cell that was sent last when this control plane began.
        lost: Why variables of earlier calls are gone, until a call has been told.
        life: The kernel that is there.
        run: The cell that is under way.
        has_cells: A cell of ours was run in it.
        ended_by: Id of the event of its last kernel's end, where nobody asked for that: the cause of the next start.
        rested_at: Unix seconds of the end of its last kernel; 0 before the first end that we saw.
    """

    key: SessionKey
    language: str
    created: float
    owner: Owner = Owner.SESSION
    kernelspec: str | None = None
    interrupt_mode: str = "signal"
    last_used: float | None = None
    choice: Choice | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    reason: Reason | None = None
    notices: tuple[str, ...] = ()
    newest: Newest | None = None
    lost: str | None = None
    life: KernelInstance | None = None
    run: CellRun | None = None
    restarts: int = 0
    has_cells: bool = False
    ended_by: int | None = None
    rested_at: float = 0.0

    @property
    def id(self) -> str:
        """As in SessionKey."""
        return self.key.id

    @property
    def unit(self) -> str:
        """As in SessionKey."""
        return self.key.unit

    @property
    def keeps_variables(self) -> bool:
        """Whether there is a state between cells at all: shell cells have none."""
        return self.key.backend is not BackendName.BASH

    def adopt(self, choice: Choice) -> None:
        """Have the next kernel be started from a choice; what the present one is, stays."""
        self.choice = choice
        if self.life is None or self.life.handle is None:
            self.language = choice.language
            self.kernelspec = choice.kernelspec
            self.interrupt_mode = choice.interrupt_mode

    def choose_request(self, deadline: float) -> ChooseRequest:
        """Return what is to be asked for when its next kernel is chosen; `deadline` in loop time."""
        key, is_bash = self.key, self.key.backend is BackendName.BASH
        has_spec = key.interpreter.startswith(SPEC_PREFIX)
        return ChooseRequest(
            cwd=key.cwd,
            interpreter=None if has_spec or is_bash else key.interpreter,
            kernelspec=key.interpreter.removeprefix(SPEC_PREFIX) if has_spec else None,
            backend=key.backend,
            language=BASH if is_bash else PYTHON,
            extra=self.extra,
            environ=self.environ,
            deadline=deadline,
        )

    def view(self, standing: Standing | None) -> SessionView:
        """Return it as it is shown now."""
        life = self.life
        wanted = (life.wanted if life else None) or (standing.stopping_for if standing else None)
        return SessionView(
            key=self.key,
            state=standing.state if standing else SessionState.STOPPED,
            reason=wanted if life else self.reason,
            pid=life.pid if life else None,
            queued=standing.queued if standing else 0,
            running=self.run.cell_id if self.run else None,
            last_used=self.last_used,
            started_at=life.started_at if life else None,
            rss_bytes=life.rss_bytes if life else None,
            instance=life.key if life else None,
            restarts=max(self.restarts, standing.restarts if standing else 0),
            failure=self._failure(standing),
            owner=self.owner.value,
            kernelspec=self.kernelspec,
            language=self.language,
            notices=self.notices,
            start_method=life.method.value if life and life.child else None,
            cold_start_ms=life.cold_start_ms if life and life.ready_at is not None else None,
        )

    def _failure(self, standing: Standing | None) -> dict[str, object] | None:
        """Return the problem document of the hard failure that stands, with the words that a call would hear."""
        if standing is None or standing.failure is None:
            return None
        refusal = Refuse(0, self.id, Refusal.HARD_FAILURE, 0.0, failure=standing.failure)
        return refusal_error(refusal, SessionLimits(), self.unit).problem()
