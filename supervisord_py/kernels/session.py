"""Who a session is: its name, its key, and what it is asked to be. Frozen values, no I/O."""

from __future__ import annotations

import hashlib
import re
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from supervisord_py.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
JUPYTER_NAMESPACE = uuid.UUID("6d0f3f64-0d6e-5d8b-9d5a-3c1b6f8f2f10")


class BackendName(StrEnum):
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


class Owner(StrEnum):
    """Who made a session, and who ends it.

    Of those that Jupyter's front ends made, `jupyter` is one whose own program watches it and starts it anew after a
    crash (our provisioner there); `jupyter_api` came by Jupyter's REST API, where that is left to the server: to us.
    """

    SESSION = "session"
    PER_CALL = "per_call"
    JUPYTER = "jupyter"
    JUPYTER_API = "jupyter_api"


def session_name(asked: str) -> str:
    """Return the name of a session as asked for. Raises InvalidInputError: it cannot be one."""
    if NAME.fullmatch(asked):
        return asked
    message = "must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
    errors = [{"pointer": "/name", "message": message}]
    said = f"name {message}, not {asked[:64]!a}."
    raise InvalidInputError(said, hint="Without a name it is `default`.", errors=errors)


class SessionKey(Struct, frozen=True):
    """What makes two calls share one kernel."""

    name: str  # chosen by the user; `default` where none is given
    cwd: str  # real path
    # A path (its directory made real: a venv's python is a link), `spec:NAME` of a kernelspec, or `bash`.
    interpreter: str
    backend: BackendName

    @property
    def id(self) -> str:
        """The `{k}` of the routes and the name of the unit: the name and six hex digits of the whole key."""
        return f"{self.name}-{hashlib.sha256(self._whole.encode()).hexdigest()[:6]}"

    @property
    def jupyter_id(self) -> str:
        """The id by which Jupyter's own clients call it: a UUID, as their routes demand."""
        return str(uuid.uuid5(JUPYTER_NAMESPACE, self._whole))

    @property
    def _whole(self) -> str:
        return f"{self.name}\0{self.cwd}\0{self.interpreter}\0{self.backend}"


class StartRequest(Struct, frozen=True):
    """A session that is to have a living kernel."""

    name: str = "default"  # name or id of a session; a name is made a session by cwd, interpreter and backend
    cwd: str | None = None  # absolute; None: that of the session when an id is given, else the daemon's home directory
    interpreter: str | None = None  # None lets settings and candidates decide, here and in the next two
    kernelspec: str | None = None
    backend: BackendName | None = None
    language: str = "python"  # `python` or `bash`
    owner: Owner = Owner.SESSION  # an existing session keeps its own; `per_call` is for calls
    arguments: tuple[str, ...] = ()  # for the kernel's command line, behind its own (Jupyter's front ends send some)
    env: Mapping[str, str] = {}  # beyond what the filter lets through; ours win
    timeout_seconds: float | None = None  # as asked for; None is the default of the settings
    environ: Mapping[str, str] = {}  # of the caller: decides between interpreters, is never passed on unfiltered
