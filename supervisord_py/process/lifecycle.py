"""Why an instance ended, and the sentence that says so. Pure.

Law: every end has one reason of CONTRACT §7: what the killer wrote down before it signalled, else what was wanted, else
*early_exit* when it never was ready, else how it ended. An exit code alone never names a limit.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.process.model import ExitRecord, Verdict

_CPU_SLACK_SECONDS = 1.0  # RLIMIT_CPU is whole seconds, and the kernel rounds: getrlimit(2)


def outcome(
    record: ExitRecord,
    wanted: Reason | None,
    ready: bool,  # a fact beside two others; every caller has it under this very name
    cpu_limit_seconds: float | None = None,
) -> Reason:
    """Decide why an instance ended.

    Args:
        record: How its leader ended.
        wanted: Why it was to end, or None.
        ready: Whether it ever was ready.
        cpu_limit_seconds: The CPU limit it ran under, or None. The kernel enforces it and writes no verdict: the
            measured seconds are the evidence.
    """
    if record.verdict is not None:
        return record.verdict.reason
    if _over_cpu(record, cpu_limit_seconds):
        return Reason.CPU_LIMIT
    if wanted is not None:
        return wanted
    if not ready:
        return Reason.EARLY_EXIT
    return Reason.EXIT if record.signal is None else Reason.SIGNAL


def _over_cpu(record: ExitRecord, limit: float | None) -> bool:
    if limit is None or record.signal not in {signal.SIGXCPU, signal.SIGKILL}:
        return False
    return record.user_seconds + record.system_seconds >= limit - _CPU_SLACK_SECONDS


def describe(record: ExitRecord, reason: Reason) -> str:
    """Return one sentence for people: how it ended, by whom, and what is known about why."""
    how = f"exited with code {record.code}" if record.signal is None else f"killed by {_name(record.signal)}"
    return f"{how}{_cause(record, reason)}, after {_span(record.ended_at - record.started_at)}"


def _cause(record: ExitRecord, reason: Reason) -> str:
    if record.verdict is not None:
        return _by(record.verdict)
    match reason:
        case Reason.CPU_LIMIT:
            used = record.user_seconds + record.system_seconds
            return f" by the kernel: CPU limit reached ({used:.1f} s used)"
        case Reason.EARLY_EXIT:
            return " before it was ready" + _suspicion(record)
        case Reason.EXIT | Reason.SIGNAL:
            return _suspicion(record)
        case _:
            return f" ({_WORDS.get(reason, reason.value)})"


_WORDS = {
    Reason.STOPPED: "stopped on request",
    Reason.EVICTED_LRU: "evicted: room was needed for another tool",
    Reason.EVICTED_TTL: "evicted: not used for its keep-warm time",
    Reason.MEMORY_LIMIT: "over its memory limit",
    Reason.OOM_KILL: "out of memory",
    Reason.CPU_LIMIT: "CPU limit reached",
    Reason.READINESS_TIMEOUT: "stopped: it did not become ready in time",
    Reason.RUNTIME_LIMIT: "stopped: a run took longer than its limit",
    Reason.SHUTDOWN: "stopped: the daemon was shutting down",
    Reason.CANCELLED: "stopped: its run was cancelled",
    Reason.TIMEOUT: "stopped: the caller's time was over",
    Reason.REPLACED: "stopped: replaced by a newer instance",
    Reason.WATCHDOG: "stopped: it gave no sign of life",
}


_KILLERS = {"control": "", "keeper": "", "watchdog": " by pxd's memory watchdog", "cgroup": " by the kernel"}
"""Who wrote a verdict down; the daemon itself need not be named where the reason tells that it was the daemon."""


def _by(verdict: Verdict) -> str:
    figures = ""
    if verdict.rss_bytes is not None and verdict.limit_bytes is not None:
        figures = f": {_mib(verdict.rss_bytes)} resident, limit {_mib(verdict.limit_bytes)}"
    elif verdict.limit_bytes is not None:
        figures = f": limit {_mib(verdict.limit_bytes)}"
    killer = _KILLERS.get(verdict.by, f" by {verdict.by}")
    return f"{killer} ({_WORDS.get(verdict.reason, verdict.reason.value)}{figures})"


def _suspicion(record: ExitRecord) -> str:
    if record.signal == signal.SIGKILL:
        return ", not sent by pxd; possibly the kernel's OOM killer"
    return "" if record.signal is None else ", not sent by pxd"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _mib(size: int) -> str:
    return f"{size / 1048576:.0f} MiB"


def _span(seconds: float) -> str:
    return f"{max(0.0, seconds):.1f} s"
