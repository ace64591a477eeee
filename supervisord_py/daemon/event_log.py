"""What of the events is written to the daemon's log as well: every end of a unit, every failure, in
one form.

`journalctl -u pxd` thereby answers "what failed last night" without the daemon.
"""

from __future__ import annotations

import structlog

from supervisord_py.process.events import Event
from supervisord_py.process.model import Reason

_log = structlog.get_logger(__name__)

_FAILURES = frozenset(
    {"died", "start_failed", "run_failed", "execution_failed", "execution_timed_out"}
)
_ENDS = frozenset({"stopped", "execution_completed", "execution_cancelled"})
_FAULTS = frozenset({
    Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.RUNTIME_LIMIT, Reason.CPU_LIMIT, Reason.WATCHDOG,
    Reason.INTERRUPTED,
})  # fmt: skip
_LEFT_OUT = frozenset({"hint", "digest", "event", "level", "time"})


def level_of(event: Event) -> str | None:
    """Return the level at which an event is logged; None for those that are not."""
    if event.unit is None:
        return None
    if event.event in _FAILURES:
        return "warning"
    if event.event not in _ENDS:
        return None
    if event.event == "stopped" and event.unit.startswith("pipe:"):
        return None  # the end of its execution tells more
    return "warning" if event.reason in _FAULTS else "info"


def log_event(event: Event) -> None:
    """Write an event to the log, where it belongs there; a listener of `EventStream`."""
    level = level_of(event)
    if level is None:
        return
    facts = {
        name: value
        for name, value in event.facts.items()
        if value is not None and name not in _LEFT_OUT
    }
    reason = {} if event.reason is None else {"reason": event.reason}
    log = _log.warning if level == "warning" else _log.info
    log(event.event, **{"unit": event.unit, **reason, **facts})
