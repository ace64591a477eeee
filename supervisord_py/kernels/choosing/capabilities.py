"""Which cells this daemon offers, and why not the others: what the preflight found, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.exposure import Expose, degraded

if TYPE_CHECKING:
    from supervisord_py.kernels.session import BackendName

NOT_WANTED = "turned off by [kernels] expose"
NO_BASH = "there is no bash on PATH"


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of cells.

    Attributes:
        offered: Whether a call of that kind will be taken.
        reason: Why not; or, where it is offered, what is to be known.
        program: The interpreter, or the shell.
    """

    offered: bool
    reason: str | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True)
class CapabilityReport:
    """What is offered.

    Attributes:
        wanted: By setting.
        expose: Offered, after degrading to bash where Python cannot be had; None when nothing is left.
    """

    wanted: Expose
    expose: Expose | None
    python: Offer
    bash: Offer
    backend: BackendName

    def document(self) -> dict[str, Any]:
        """Return JSON values; an `expose` of null is a daemon that can offer no cells at all."""
        return {
            "expose": self.expose.value if self.expose else None,
            "wanted": self.wanted.value,
            "python": {
                "offered": self.python.offered,
                "reason": self.python.reason,
                "interpreter": self.python.program,
            },
            "bash": {"offered": self.bash.offered, "reason": self.bash.reason, "shell": self.bash.program},
            "backend": self.backend.value,
        }


def report(wanted: Expose, python: Offer, shell: str | None, backend: BackendName) -> CapabilityReport:
    """Put together what is offered of what is wanted and can be had.

    Args:
        wanted: By setting.
        python: What the preflight says; not asked for where Python is not wanted.
        shell: The bash, None where there is none.
        backend: Which runs Python cells.
    """
    expose = degraded(wanted, python=python.offered, bash=shell is not None)
    if not wanted.python:
        python = Offer(offered=False, reason=NOT_WANTED)
    if shell is None:
        bash = Offer(offered=False, reason=NO_BASH)
    elif expose is None or not expose.bash:
        bash = Offer(offered=False, reason=NOT_WANTED, program=shell)
    else:
        instead = None if wanted.bash else "in place of Python cells, which cannot be had"
        bash = Offer(offered=True, reason=instead, program=shell)
    return CapabilityReport(wanted, expose, python, bash, backend)
