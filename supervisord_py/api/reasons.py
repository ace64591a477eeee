"""What each reason of the closed list (CONTRACT §7) means to a person, and the next step. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from supervisord_py.process.model import Reason


@dataclass(frozen=True, slots=True)
class Meaning:
    """A reason in words. `next_step` may hold `{unit}` and `{name}`."""

    sentence: str
    next_step: str

    def step_for(self, unit: str) -> str:
        """Return the next step for a unit."""
        return self.next_step.format(unit=unit, name=unit.partition(":")[2])


_LOGS = "pxctl logs {unit} --stderr"
_START = "pxctl start {unit}"

MEANINGS: dict[Reason, Meaning] = {
    Reason.EXIT: Meaning("it exited by itself", _LOGS),
    Reason.SIGNAL: Meaning("a signal that this daemon did not send ended it", _LOGS),
    Reason.STOPPED: Meaning("someone asked to stop it", _START),
    Reason.EVICTED_LRU: Meaning("others were used more recently and the warm set was full", "pxctl pin {name}"),
    Reason.EVICTED_TTL: Meaning("nobody used it for its warm_keep_seconds", "pxctl pin --forever {name}"),
    Reason.MEMORY_LIMIT: Meaning("it used more memory than max_memory_mb", "raise max_memory_mb in tool.json"),
    Reason.OOM_KILL: Meaning(
        "the kernel killed it because memory ran out", "lower max_memory_mb of what runs beside it"
    ),
    Reason.RUNTIME_LIMIT: Meaning(
        "a run took longer than max_runtime_seconds", "raise max_runtime_seconds in tool.json"
    ),
    Reason.CPU_LIMIT: Meaning("it used more CPU time than limits.cpu_seconds", "raise limits.cpu_seconds"),
    Reason.WATCHDOG: Meaning("it stopped giving signs of life", _LOGS),
    Reason.READINESS_TIMEOUT: Meaning("it never became ready within start_timeout_seconds", "pxctl tools debug {name}"),
    Reason.EARLY_EXIT: Meaning("it ended before it was ready", "pxctl tools debug {name}"),
    Reason.SPAWN_FAILED: Meaning("it could not be started at all", "pxctl tools debug {name}"),
    Reason.SHUTDOWN: Meaning("the daemon stopped", _START),
    Reason.INTERRUPTED: Meaning("the keeper or the machine went down under it", _START),
    Reason.CANCELLED: Meaning("who had asked for it went away", _START),
    Reason.TIMEOUT: Meaning("the caller's own deadline passed", "give it longer: --timeout"),
    Reason.REPLACED: Meaning("its files changed, and a new instance took its place", "nothing to do"),
    Reason.SCHEMA_DRIFT: Meaning("its /schema differs from tool.json (a warning only)", "pxctl tools validate {name}"),
}

_KERNEL_START = "pxctl kernel start {name}"

KERNEL_MEANINGS: dict[Reason, Meaning] = {
    Reason.EXIT: Meaning("its process ended by itself, or a cell called exit()", _LOGS),
    Reason.STOPPED: Meaning("someone asked to stop it", _KERNEL_START),
    Reason.EVICTED_LRU: Meaning(
        "others were used more recently and there were kernels.max_sessions of them", "raise kernels.max_sessions"
    ),
    Reason.EVICTED_TTL: Meaning("nobody used it for kernels.idle_seconds", "raise kernels.idle_seconds"),
    Reason.MEMORY_LIMIT: Meaning(
        "it used more memory than kernels.hard_memory_mb, or more than kernels.soft_memory_mb at the end of a cell",
        "raise kernels.soft_memory_mb or kernels.hard_memory_mb",
    ),
    Reason.OOM_KILL: Meaning("the kernel killed it because memory ran out", "lower kernels.hard_memory_mb"),
    Reason.CPU_LIMIT: Meaning("it used more CPU time than its limit", "look for setrlimit in its cells"),
    Reason.READINESS_TIMEOUT: Meaning("it did not answer in time after its start", _LOGS),
    Reason.EARLY_EXIT: Meaning("it ended before it answered", _LOGS),
    Reason.SPAWN_FAILED: Meaning("it could not be started at all", "pxctl kernel start --explain {name}"),
    Reason.SHUTDOWN: Meaning("the daemon stopped", _KERNEL_START),
    Reason.INTERRUPTED: Meaning("the keeper or the machine went down under it", _KERNEL_START),
    Reason.CANCELLED: Meaning("a cancelled cell would not end otherwise", _KERNEL_START),
    Reason.TIMEOUT: Meaning("a cell that was over its time would not end otherwise", "give it longer: --timeout"),
    Reason.REPLACED: Meaning("it was reset or restarted, and a new instance took its place", "nothing to do"),
}
"""Where a kernel's end means something else than a tool's."""


def meaning_of(reason: Reason, unit: str) -> Meaning:
    """Return what a reason means for a unit of that kind."""
    own = KERNEL_MEANINGS.get(reason) if unit.startswith("kernel:") else None
    return own or MEANINGS[reason]
