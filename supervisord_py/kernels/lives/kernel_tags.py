"""The note that the keeper holds with each kernel: enough for a later control plane to go on with it.

Law: a tag of another version is not understood, and nothing is guessed. The cell in it is the last one that was sent;
whether it has ended meanwhile stands in the cell's own files. Its deadline is read off the clock that counts suspend,
which is the same for every process of one boot.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from supervisord_py.kernels.backend import StartMethod
from supervisord_py.kernels.session import BackendName, SessionKey
from supervisord_py.process.model import Reason

VERSION = 1


@dataclass(frozen=True, slots=True)
class KernelTag:
    """What is known of a kernel besides its process.

    Attributes:
        name, cwd, interpreter, backend: The session's key.
        owner, language, kernelspec: As in SessionView.
        interrupt_mode: As in Launch.
        created: When the session was made, Unix seconds.
        last_used: When its last call was dispatched, Unix seconds.
        ready: It had become ready.
        cold_start_ms: How long that took.
        start_method: How its process came about.
        restarts: How often the session came back by itself.
        cell: Id of the last cell that was sent, None before the first.
        deadline: When the call of that cell is over, in seconds of the clock that counts suspend.
        stopping: Why it is being stopped; None while it is not.
    """

    name: str
    cwd: str
    interpreter: str
    backend: str
    owner: str
    language: str
    kernelspec: str | None
    interrupt_mode: str
    created: float
    last_used: float
    ready: bool = False
    cold_start_ms: int = 0
    start_method: str = StartMethod.SPAWN.value
    restarts: int = 0
    cell: str | None = None
    deadline: float | None = None
    stopping: str | None = None

    @property
    def key(self) -> SessionKey:
        """Whose kernel it is."""
        return SessionKey(self.name, self.cwd, self.interpreter, BackendName(self.backend))

    @property
    def wanted(self) -> Reason | None:
        """Why it is being stopped, as a reason."""
        return Reason(self.stopping) if self.stopping else None

    def encode(self) -> str:
        """Return the text for the keeper."""
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":"))


def decode(text: str) -> KernelTag | None:
    """Read a tag; None when it is none of ours or of another version."""
    try:
        members = json.loads(text)
        if members.pop("v") != VERSION:
            return None
        tag = KernelTag(**members)
        BackendName(tag.backend), StartMethod(tag.start_method), tag.wanted
        return tag
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
