"""The reason of an end, and the sentence about it."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisord_py.process.lifecycle import describe, outcome
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict

RECORD = ExitRecord("k", "tool:x", Identity(1, 2, "b"), 10.0, 12.5, 0, None, 0.5, 0.25, 100, 0, 0)
KILLED = replace(RECORD, code=None, signal=9)
VERDICT = Verdict(Reason.MEMORY_LIMIT, "watchdog", 12.0, 9, 600 << 20, 512 << 20)

REASONS = st.sampled_from(list(Reason))
RECORDS = st.one_of(
    st.integers(0, 255).map(lambda code: replace(RECORD, code=code)),
    st.integers(1, 64).map(lambda number: replace(RECORD, code=None, signal=number)),
    REASONS.map(lambda reason: replace(KILLED, verdict=replace(VERDICT, reason=reason))),
)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("wanted", [None, Reason.STOPPED])
def test_the_verdict_of_the_killer_comes_first(ready: bool, wanted: Reason | None) -> None:  # cases
    assert outcome(replace(KILLED, verdict=VERDICT), wanted, ready) is Reason.MEMORY_LIMIT


def test_then_what_was_wanted_then_readiness_then_how_it_ended() -> None:
    assert outcome(KILLED, Reason.EVICTED_TTL, ready=False) is Reason.EVICTED_TTL
    assert outcome(KILLED, None, ready=False) is Reason.EARLY_EXIT
    assert outcome(RECORD, None, ready=False) is Reason.EARLY_EXIT
    assert outcome(KILLED, None, ready=True) is Reason.SIGNAL
    assert outcome(replace(RECORD, code=137), None, ready=True) is Reason.EXIT


def test_a_cpu_limit_needs_the_measured_seconds_as_evidence() -> None:
    over = replace(RECORD, code=None, signal=signal.SIGXCPU, user_seconds=1.5, system_seconds=0.5)
    assert outcome(over, None, ready=True, cpu_limit_seconds=2.0) is Reason.CPU_LIMIT
    assert outcome(replace(over, signal=9), None, ready=True, cpu_limit_seconds=2.0) is Reason.CPU_LIMIT
    assert outcome(over, None, ready=True) is Reason.SIGNAL
    assert outcome(over, None, ready=True, cpu_limit_seconds=60.0) is Reason.SIGNAL
    assert outcome(replace(over, signal=15), None, ready=True, cpu_limit_seconds=2.0) is Reason.SIGNAL


def test_describe_says_how_by_whom_and_why() -> None:
    assert describe(RECORD, Reason.EXIT) == "exited with code 0, after 2.5 s"
    assert describe(RECORD, Reason.EARLY_EXIT) == "exited with code 0 before it was ready, after 2.5 s"
    assert describe(KILLED, Reason.SIGNAL) == (
        "killed by SIGKILL, not sent by pxd; possibly the kernel's OOM killer, after 2.5 s"
    )
    assert describe(replace(KILLED, signal=11), Reason.SIGNAL) == "killed by SIGSEGV, not sent by pxd, after 2.5 s"
    assert "killed by signal 200" in describe(replace(KILLED, signal=200), Reason.SIGNAL)
    assert describe(KILLED, Reason.EVICTED_LRU) == (
        "killed by SIGKILL (evicted: room was needed for another tool), after 2.5 s"
    )
    assert describe(replace(KILLED, verdict=VERDICT), Reason.MEMORY_LIMIT) == (
        "killed by SIGKILL by pxd's memory watchdog "
        "(over its memory limit: 600 MiB resident, limit 512 MiB), after 2.5 s"
    )
    stopped = replace(RECORD, verdict=Verdict(Reason.STOPPED, "control", 1.0))
    assert describe(stopped, Reason.STOPPED) == "exited with code 0 (stopped on request), after 2.5 s"
    grouped = replace(KILLED, verdict=Verdict(Reason.OOM_KILL, "cgroup", 1.0, limit_bytes=512 << 20))
    assert "killed by SIGKILL by the kernel (out of memory: limit 512 MiB)" in describe(grouped, Reason.OOM_KILL)
    other = replace(KILLED, verdict=Verdict(Reason.CPU_LIMIT, "rlimit", 1.0))
    assert "by rlimit (CPU limit reached)" in describe(other, Reason.CPU_LIMIT)
    assert "CPU limit reached (0.8 s used)" in describe(replace(KILLED, signal=24), Reason.CPU_LIMIT)


@given(RECORDS, st.none() | REASONS, st.booleans())
def test_every_end_has_a_reason_and_a_sentence(
    record: ExitRecord,
    wanted: Reason | None,
    ready: bool,  # drawn
) -> None:
    reason = outcome(record, wanted, ready)
    assert isinstance(reason, Reason)
    assert describe(record, reason).endswith(" s")
