"""Who a session is: its key, what it is asked to be, and how it is shown. Frozen values, no I/O."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisord_py.process.model import Reason

JUPYTER_NAMESPACE = uuid.UUID("6d0f3f64-0d6e-5d8b-9d5a-3c1b6f8f2f10")


class BackendName(StrEnum):
    """Who runs a kernel."""

    DIRECT = "direct"
    GATEWAY_LOCAL = "gateway-local"
    GATEWAY_EXTERNAL = "gateway-external"
    BASH = "bash"


class SessionState(StrEnum):
    """What is observed of a session. `STOPPED` ones are remembered, hold no process, and start with the next call."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What makes two calls share one kernel.

    Attributes:
        name: Chosen by the user; `default` where none is given. `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
        cwd: Real path.
        interpreter: Path of the interpreter (its directory made real, the last part as it was: a venv's python is a
            link), or `spec:NAME` for a kernelspec; `bash` for shell cells.
        backend: Who runs it.
    """

    name: str
    cwd: str
    interpreter: str
    backend: BackendName

    @property
    def id(self) -> str:
        """The `{k}` of the routes and the name of the unit: the name and six hex digits of the whole key."""
        return f"{self.name}-{hashlib.sha256(self._whole.encode()).hexdigest()[:6]}"

    @property
    def unit(self) -> str:
        """`kernel:<id>`."""
        return f"kernel:{self.id}"

    @property
    def jupyter_id(self) -> str:
        """The id by which Jupyter's own clients call it: a UUID, as their routes demand."""
        return str(uuid.uuid5(JUPYTER_NAMESPACE, self._whole))

    @property
    def _whole(self) -> str:
        return f"{self.name}\0{self.cwd}\0{self.interpreter}\0{self.backend}"


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session as it is shown now. Times are Unix seconds.

    Attributes:
        state: See SessionState.
        reason: Why the last process ended, where none runs; or why it stops.
        queued: Calls in line, the running one not counted.
        running: Id of the cell that runs, if any.
        instance: Key of the process life, if one is there.
        restarts: How often it came back by itself.
        failure: Problem document of a hard failure.
        owner: `session`, `per_call`, `jupyter` or `jupyter_api`: who made it, and who ends it (room_requests.Owner).
        notices: What its last start or recycling had to say.
        start_method: `spawn` or `spare`: how its process came about, if there is one.
        cold_start_ms: How long its start took, None while it lasts.
    """

    key: SessionKey
    state: SessionState
    reason: Reason | None
    pid: int | None
    queued: int
    running: str | None
    last_used: float | None
    started_at: float | None
    rss_bytes: int | None
    instance: str | None
    restarts: int
    failure: dict[str, object] | None
    owner: str
    kernelspec: str | None
    language: str
    notices: tuple[str, ...] = ()
    start_method: str | None = None
    cold_start_ms: int | None = None

    @property
    def id(self) -> str:
        """As in SessionKey."""
        return self.key.id

    @property
    def unit(self) -> str:
        """As in SessionKey."""
        return self.key.unit
