"""What each reason of the closed list (CONTRACT §7) means to a person, and the next step. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from supervisord_py.process.spec import Reason


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
