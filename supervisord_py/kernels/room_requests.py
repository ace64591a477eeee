"""What the room is asked for, beside calls: frozen values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.cell import Step
    from supervisord_py.kernels.session import BackendName


class Owner(StrEnum):
    """Who made a session, and who ends it.

    Of those that Jupyter's front ends made, `jupyter` is one whose own program watches it and starts it anew after a
    crash (our provisioner there); `jupyter_api` came by Jupyter's REST API, where that is left to the server: to us.
    """

    SESSION = "session"
    PER_CALL = "per_call"
    JUPYTER = "jupyter"
    JUPYTER_API = "jupyter_api"

    @property
    def is_front_end(self) -> bool:
        """Whether one of Jupyter's front ends made it."""
        return self in {Owner.JUPYTER, Owner.JUPYTER_API}


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A session that is to have a living kernel.

    Attributes:
        name: Name or id of a session; a name is made a session by cwd, interpreter and backend.
        cwd: Absolute; must exist. None: that of the session when an id is given, else the daemon's home directory.
        interpreter, kernelspec, backend: None lets settings and candidates decide.
        language: `python` or `bash`.
        owner: Any but `per_call`; an existing session keeps its own.
        arguments: For the kernel's command line, behind its own (Jupyter's front ends send some).
        env: Variables beyond what the filter lets through (Jupyter's front ends send some); ours win.
        timeout_seconds: How long to wait for the kernel; None is the bound of a start in the settings.
        environ: The caller's variables; decide between interpreters, never passed on unfiltered.
    """

    name: str = "default"
    cwd: str | None = None
    interpreter: str | None = None
    kernelspec: str | None = None
    backend: BackendName | None = None
    language: str = "python"
    owner: Owner = Owner.SESSION
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InterruptReport:
    """What an interrupt did.

    Attributes:
        running: Id of the cell that was running. None when there was none of ours: then a start under way was ended, or
            the kernel was interrupted once, because a client that is not ours may have it at work.
        steps: The rungs that were climbed so far, in order; more may follow while the cell does not end.
    """

    session_id: str
    running: str | None
    steps: tuple[Step, ...] = ()
