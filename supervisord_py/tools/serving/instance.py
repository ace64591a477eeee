"""One life of one tool's process, as the launcher holds it. Mutable facts in one place; never reused for a second life.

Up and ready are two facts: `child` says that a process is there, `ready_at` that it may take work. `wanted` is why it
is to end, `ended` how it did.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.process.spec import Reason
from supervisord_py.tools.serving import warm_events as ev

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from supervisord_py.errors import PxError
    from supervisord_py.process.spec import Child, ExitRecord, Reason, StopReport
    from supervisord_py.tools.config import PoolLimits
    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.serving.failure import Ended
    from supervisord_py.tools.serving.notify import NotifySocket
    from supervisord_py.tools.serving.upstream import Upstream
    from supervisord_py.tools.serving.visit import Visit


@dataclass(slots=True, eq=False)
class Instance:
    """One instance.

    Attributes:
        serial: Its number in the warm set.
        key: Its instance id.
        spec: The declaration that it was started from, or the present one when it was adopted.
        started_at: Unix seconds.
        asked_at: When the start was decided, on the loop's clock.
        event: Id of the newest event about it: the cause of the next one.
        port: Where it listens on 127.0.0.1; 0 before that is known.
        start_method: How it was started.
        ready_at: Unix seconds; None while it is not ready.
        cold_start_ms: From the decision to ready.
        child: Its process, once spawned.
        wanted: Why it is to end; None while it is to live.
        record: How its leader ended.
        ended: The same with evidence, once that is gathered.
        failure: Why it never became ready, for those who wait for it.
        visits: The runs on it.
        over: Set once `ended` is known.
        report: What its stop left, once it was stopped.
        extra_env: Beyond what the declaration gives.
        stopped: Set once nothing is left of it, or something has survived a stop.
    """

    serial: int
    key: str
    spec: ToolSpec
    started_at: float
    asked_at: float
    event: int | None = None
    port: int = 0
    start_method: str = "spawn"
    ready_at: float | None = None
    cold_start_ms: int = 0
    child: Child | None = None
    wanted: Reason | None = None
    record: ExitRecord | None = None
    ended: Ended | None = None
    failure: PxError | None = None
    notify: NotifySocket | None = None
    upstream: Upstream | None = None
    life: asyncio.Task[None] | None = None
    visits: set[Visit] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    report: StopReport | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    digest: str = ""
    extra_env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = self.digest or self.spec.digest

    @property
    def pid(self) -> int | None:
        """The leader's pid, once spawned."""
        return self.child.identity.pid if self.child else None

    def tag(self) -> Tag:
        """Return the note that a later control plane goes by."""
        return Tag(
            tool=self.spec.name,
            port=self.port,
            digest=self.digest,
            listen=self.spec.listen.value,
            start_method=self.start_method,
            ready=self.ready_at is not None,
            cold_start_ms=self.cold_start_ms,
            stopping=self.wanted.value if self.wanted else None,
        )


_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Granted:
    """A request's hold on an instance; `cold` when it waited for the start."""

    ticket: int
    instance: Instance
    cold: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """A held warm instance, for a client that talks to it directly. `over` is set when the instance ends."""

    address: str
    port: int
    pid: int | None
    instance: str
    cold_start_ms: int | None
    over: asyncio.Event


def bounds_of(pool: PoolLimits) -> ev.PoolBounds:
    """Return the bounds of the warm set that the settings ask for."""
    budget = None if pool.memory_budget_mb is None else pool.memory_budget_mb * _MEBIBYTE
    return ev.PoolBounds(max(1, pool.warm_keep_max), budget, pool.queue_max)


def rules_of(spec: ToolSpec) -> ev.Rules:
    """Return what the warm set has to know of a tool."""
    return ev.Rules(spec.digest, spec.concurrency, spec.warm_keep_seconds)


@dataclass(frozen=True, slots=True)
class Tag:
    """What is known of an instance besides its process. A tag of another version is not understood.

    Attributes:
        tool: Name of the tool.
        port: Where it listens on 127.0.0.1.
        digest: Of the declaration it was started from.
        listen: Its listen mode.
        start_method: How it was started.
        ready: It had become ready.
        cold_start_ms: How long that took.
        stopping: Why it is being stopped; None while it is not.
    """

    tool: str
    port: int
    digest: str
    listen: str
    start_method: str
    ready: bool = False
    cold_start_ms: int = 0
    stopping: str | None = None

    @property
    def wanted(self) -> Reason | None:
        """Why it is being stopped, as a reason."""
        return Reason(self.stopping) if self.stopping else None

    def encode(self) -> str:
        """Return the text for the keeper."""
        return json.dumps({"v": 1, **asdict(self)}, separators=(",", ":"))


def decode_tag(text: str) -> Tag | None:
    """Read a tag; None when it is none of ours or of another version."""
    try:
        members = json.loads(text)
        if members.pop("v") != 1:
            return None
        tag = Tag(**members)
        return tag if tag.wanted or not tag.stopping else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
