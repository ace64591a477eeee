"""The reason of an end, and the sentence about a limit."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from msgspec.structs import replace

from supervisord_py.process.instance import describe, outcome
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict

RECORD = ExitRecord("k", "tool:x", Identity(1, 2, "b"), 10.0, 12.5, 0, None, 0.5, 0.25, 100, 0, 0)
KILLED = replace(RECORD, code=None, signal=9)
VERDICT = Verdict(Reason.MEMORY_LIMIT, "watchdog", 12.0, 9, 600 << 20, 512 << 20)
OVER = replace(RECORD, code=None, signal=signal.SIGXCPU, user_seconds=1.5, system_seconds=0.5)


@pytest.mark.parametrize(
    ("record", "wanted", "ready", "limit", "reason"),
    [
        (replace(KILLED, verdict=VERDICT), Reason.STOPPED, True, None, Reason.MEMORY_LIMIT),
        (replace(KILLED, verdict=VERDICT), None, False, None, Reason.MEMORY_LIMIT),
        (KILLED, Reason.EVICTED_TTL, False, None, Reason.EVICTED_TTL),
        (KILLED, None, False, None, Reason.EARLY_EXIT),
        (RECORD, None, False, None, Reason.EARLY_EXIT),
        (KILLED, None, True, None, Reason.SIGNAL),
        (replace(RECORD, code=137), None, True, None, Reason.EXIT),
        # A CPU limit needs the measured seconds as evidence.
        (OVER, None, True, 2.0, Reason.CPU_LIMIT),
        (replace(OVER, signal=9), None, True, 2.0, Reason.CPU_LIMIT),
        (OVER, None, True, None, Reason.SIGNAL),
        (OVER, None, True, 60.0, Reason.SIGNAL),
        (replace(OVER, signal=15), None, True, 2.0, Reason.SIGNAL),
    ],
)
def test_the_verdict_comes_first_then_the_wish_then_readiness_then_how_it_ended(
    record: ExitRecord, wanted: Reason | None, ready: bool, limit: float | None, reason: Reason
) -> None:
    assert outcome(record, wanted, ready, limit) is reason


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"verdict": VERDICT}, Reason.MEMORY_LIMIT,
         "killed by SIGKILL by pxd's memory watchdog (over its memory limit: 600 MiB resident, limit 512 MiB)"),
        ({"verdict": Verdict(Reason.OOM_KILL, "cgroup", 1.0, limit_bytes=512 << 20)}, Reason.OOM_KILL,
         "killed by SIGKILL by the kernel (out of memory: limit 512 MiB)"),
        ({"signal": 200, "verdict": Verdict(Reason.CPU_LIMIT, "rlimit", 1.0)}, Reason.CPU_LIMIT,
         "killed by signal 200 by rlimit (CPU limit reached)"),
        ({"signal": 24}, Reason.CPU_LIMIT, "killed by SIGXCPU by the kernel (CPU limit reached, 0.8 s used)"),
        ({"signal": None, "code": 0}, Reason.STOPPED, "exited with code 0 (stopped)"),
    ],
)  # fmt: skip
def test_describe_says_how_by_whom_and_why(changes: dict[str, Any], reason: Reason, words: str) -> None:
    assert describe(replace(KILLED, **changes), reason) == f"{words}, after 2.5 s"
