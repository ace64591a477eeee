"""Why an instance ended, and the sentence about a limit. Pure.

Law: every end has one reason of CONTRACT §7: what the killer wrote down before it signalled, else what was wanted, else
*early_exit* when it never was ready, else how it ended. An exit code alone never names a limit.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.process.model import ExitRecord

_CPU_SLACK_SECONDS = 1.0  # RLIMIT_CPU is whole seconds, and the kernel rounds: getrlimit(2)
_LIMITS = {
    Reason.MEMORY_LIMIT: "over its memory limit",
    Reason.OOM_KILL: "out of memory",
    Reason.CPU_LIMIT: "CPU limit reached",
}
_KILLERS = {"control": "", "keeper": "", "watchdog": " by pxd's memory watchdog", "cgroup": " by the kernel"}
"""Who wrote a verdict down; the daemon itself need not be named where the reason tells that it was the daemon."""


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
    limit = float("inf") if cpu_limit_seconds is None else cpu_limit_seconds - _CPU_SLACK_SECONDS
    killed = record.signal in {signal.SIGXCPU, signal.SIGKILL}
    if killed and record.user_seconds + record.system_seconds >= limit:
        return Reason.CPU_LIMIT
    if wanted is not None:
        return wanted
    if not ready:
        return Reason.EARLY_EXIT
    return Reason.EXIT if record.signal is None else Reason.SIGNAL


def describe(record: ExitRecord, reason: Reason) -> str:
    """Return one sentence for people about an end by a limit: how it ended, by whom, and what is known about why."""
    verdict, why, by = record.verdict, _LIMITS.get(reason, reason.value), ""
    if verdict is not None:
        by = _KILLERS.get(verdict.by, f" by {verdict.by}")
        sizes = [f"{size / 1048576:.0f} MiB {what}" for size, what in ((verdict.rss_bytes, "resident"),) if size]
        sizes += [f"limit {verdict.limit_bytes / 1048576:.0f} MiB"] if verdict.limit_bytes else []
        why += f": {', '.join(sizes)}" if sizes else ""
    elif reason is Reason.CPU_LIMIT:
        by, why = " by the kernel", f"{why}, {record.user_seconds + record.system_seconds:.1f} s used"
    how = f"exited with code {record.code}"
    if record.signal is not None:
        known = record.signal in signal.valid_signals()
        how = f"killed by {signal.Signals(record.signal).name if known else f'signal {record.signal}'}"
    return f"{how}{by} ({why}), after {max(0.0, record.ended_at - record.started_at):.1f} s"
