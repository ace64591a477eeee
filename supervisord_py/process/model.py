"""What a child is to be, and what became of it: frozen values, no I/O.

The keeper's JSON is read into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Why an instance ended: the closed list of CONTRACT §7, the same word on every surface."""

    EXIT = "exit"
    SIGNAL = "signal"
    STOPPED = "stopped"
    EVICTED_LRU = "evicted_lru"
    EVICTED_TTL = "evicted_ttl"
    MEMORY_LIMIT = "memory_limit"
    OOM_KILL = "oom_kill"
    RUNTIME_LIMIT = "runtime_limit"
    CPU_LIMIT = "cpu_limit"
    WATCHDOG = "watchdog"
    READINESS_TIMEOUT = "readiness_timeout"
    EARLY_EXIT = "early_exit"
    SPAWN_FAILED = "spawn_failed"
    SHUTDOWN = "shutdown"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REPLACED = "replaced"
    SCHEMA_DRIFT = "schema_drift"


class Identity(Struct, frozen=True):
    """A process, beyond reuse of its pid: pid, kernel start time (clock ticks since boot), boot
    id.
    """

    pid: int
    start_time: int
    boot_id: str


class ResourceLimit(Struct, frozen=True, array_like=True):
    """One limit of SPAWN (keeper/protocol.py), set in the child before exec or for its group; -1
    is infinity.
    """

    name: str
    soft: int
    hard: int


def tree_limits(processes: int | None, cpu_percent: int | None) -> tuple[ResourceLimit, ...]:
    """Return limits of a tree, None for none; all others are those that pxd was started with."""
    asked = (("nproc", processes), ("cpu_percent", cpu_percent))
    return tuple(ResourceLimit(name, value, value) for name, value in asked if value is not None)


class GrantedFd(Struct, frozen=True, array_like=True):
    """A descriptor that the keeper holds under `stored_name`, given to the child as number
    `child_fd` (>= 3).
    """

    child_fd: int
    stored_name: str


_SPAWN = {"limits": "rlimits", "grants": "grant_fds", "listen_pid": "set_listen_pid"}
_SPAWN |= {"stdin_fd": "stdin", "stdout_fd": "stdout", "stderr_fd": "stderr"}
"""What SPAWN of keeper/protocol.py calls the fields that it calls otherwise."""


class ChildSpec(Struct, frozen=True, rename=_SPAWN):
    unit: str  # `kind:name`
    # program and arguments; the program is an absolute path or looked up on `env["PATH"]`
    argv: tuple[str, ...]
    cwd: str  # absolute path; must exist
    # the complete environment; the marks of DESIGN D11 are added by the keeper's client
    env: Mapping[str, str]
    limits: tuple[ResourceLimit, ...] = ()  # beside that of memory
    grants: tuple[GrantedFd, ...] = ()  # descriptors beyond stdio
    listen_pid: bool = False  # set LISTEN_PID to the child's pid (the LISTEN_FDS protocol wants it)
    # resident limit of the whole tree, enforced by the keeper; None for none
    max_rss_bytes: int | None = None
    # of a tree over it, as of SPAWN; a kernel that enforces it kills at once
    memory_grace_seconds: float = 0.0
    # between TERM and KILL, where the keeper has to stop it by itself
    stop_grace_seconds: float = 5.0
    tag: str = ""  # opaque text that the keeper keeps with the child for a later control plane
    # Of this process, those of output opened O_APPEND; they may be closed after the spawn. None:
    # there is nothing to read (/dev/null), and output goes into the unit's log.
    stdin_fd: int | None = None
    stdout_fd: int | None = None
    stderr_fd: int | None = None
    zygote: str | None = None  # key of the child that forks it; None: the keeper does


class Verdict(Struct, frozen=True):
    reason: Reason
    by: str
    time: float
    signal: int | None = None
    rss_bytes: int | None = None
    limit_bytes: int | None = None


class ExitRecord(Struct, frozen=True):
    """How a leader ended. Exactly one of `code` and `signal` is set."""

    key: str
    unit: str
    identity: Identity
    started_at: float
    ended_at: float
    code: int | None
    signal: int | None
    user_seconds: float
    system_seconds: float
    max_rss_bytes: int
    log_position: int
    log_end: int
    verdict: Verdict | None = None
    memory_peak_bytes: int | None = None


class Child(Struct, frozen=True):
    """A child as the keeper holds it.

    `exit` is set once the leader was reaped (its tree may still live).
    """

    key: str
    unit: str
    identity: Identity
    started_at: float
    tag: str
    log_position: int
    exit: ExitRecord | None = None


class Survivor(Struct, frozen=True):
    pid: int
    name: str
    start_time: int


class StopReport(Struct, frozen=True):
    """The outcome of a stop: empty `survivors` means that the whole tree is gone and its pipes
    are drained.
    """

    survivors: tuple[Survivor, ...] = ()
    killed: bool = False
    unassigned: tuple[Survivor, ...] = ()
    """Orphans that may be its descendants, though nothing tells whose they are; they were not
    signalled.
    """


class TreeStat(Struct, frozen=True):
    """Resources of a whole tree at one moment: bytes, seconds, count, and what it waits for
    (Cgroup.pressure).
    """

    rss_bytes: int
    cpu_seconds: float
    processes: int
    pressure: dict[str, float | None] | None = None
    pids: tuple[int, ...] = ()  # of the tree; empty where the keeper is older


class Caps(Struct, frozen=True):
    """What the keeper is and can do here, shown by `pxctl status --json` and `doctor`."""

    keeper_pid: int
    keeper_started_at: float
    boot_id: str
    kill_rung: str
    memory_rung: str
    control_restarts: int
    # what it knows of the protocol: it may be older than the control plane
    keeper_revision: int = 1
    keeper_version: str | None = None
    # the version that did not come up, so that the keeper went back to this one
    rolled_back_from: str | None = None
    controllers: tuple[str, ...] = ()  # of cgroups that are ours: "cpu", "memory", "pids"
