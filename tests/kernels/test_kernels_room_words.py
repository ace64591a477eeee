"""What the room says of ends, and the notes that it leaves with the keeper: values in, words out."""

from __future__ import annotations

import signal

import msgspec
import pytest

from supervisord_py.kernels import messages
from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.call_rules import CellOutcome, Stopped, judge, sentence
from supervisord_py.kernels.cell import CellError, CellStatus, Step, Variables
from supervisord_py.kernels.live_session import KernelNote, own_of
from supervisord_py.ledger.kernels import KernelSessionRow
from supervisord_py.process.instance import NOTE_VERSION, End, Note
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict

WHERE = Stopped(1, 3, "load")
STEP = (Step("sigint", 0.0),)
OK = Reply(CellStatus.OK)
GONE = KernelGoneError("gone")


def record(code: int | None = None, signum: int | None = None, verdict: Verdict | None = None) -> ExitRecord:
    return ExitRecord("k", "kernel:x", Identity(1, 1, "b"), 1.0, 2.0, code, signum, 0.0, 0.0, 0, 0, 0, verdict)


def memory(reason: Reason, rss: int | None, limit: int | None) -> End:
    verdict = Verdict(reason, "watchdog", 1.0, signal.SIGKILL, rss, limit)
    return End(reason, record(None, signal.SIGKILL, verdict))


# -- ends of kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (End(Reason.EXIT, record(3)), "exited with code 3"),
        (End(Reason.SIGNAL, record(None, signal.SIGSEGV)), "was killed by SIGSEGV"),
        (End(Reason.SIGNAL, record(None, signal.SIGKILL)), "possibly the kernel's OOM killer"),
        (End(Reason.SIGNAL, record(None, 222)), "was killed by signal 222"),
        (End(Reason.EXIT), "ended at its server"),
        (End(Reason.STOPPED, record(None, 15)), "was ended: it was stopped on request"),
        (End(Reason.TIMEOUT, record(None, 15)), "did not yield"),
        (End(Reason.CPU_LIMIT, record(None, 24)), "CPU seconds"),
        (memory(Reason.MEMORY_LIMIT, 300 << 20, 200 << 20), "over its memory limit (300 MiB resident, limit 200 MiB)"),
        (memory(Reason.MEMORY_LIMIT, None, 200 << 20), "over its memory limit (limit 200 MiB)"),
        (memory(Reason.OOM_KILL, None, None), "out of memory"),
        (End(Reason.MEMORY_LIMIT), "was killed: it was over its memory limit"),
    ],
)
def test_an_end_is_said_with_what_is_known_of_it(end: End, words: str) -> None:
    assert words in messages.how_it_ended(end)


def test_a_death_in_a_cell_brings_the_last_words_and_says_what_is_lost() -> None:
    error = messages.death_in_cell(End(Reason.SIGNAL, record(None, 11), "one\ntwo\n"))
    assert error.value.endswith("Last words of the kernel:\none\ntwo")
    assert "not run again" in error.value
    assert "Last words" not in messages.death_in_cell(End(Reason.SIGNAL, record(None, 11))).value


def test_of_a_crash_report_the_beginning_is_told_and_of_other_words_the_end() -> None:
    report = "noise\nFatal Python error: Segmentation fault\n" + "\n".join(f"frame {n}" for n in range(50))
    assert messages.last_lines(report, 3) == "Fatal Python error: Segmentation fault\nframe 0\nframe 1"
    assert messages.last_lines("a\nb\nc\n", 2) == "b\nc"


def test_the_facts_of_an_end_name_the_verdict_where_there_is_one() -> None:
    facts = memory(Reason.MEMORY_LIMIT, 5, 4).facts()
    assert facts["verdict"]["limit_bytes"] == 4
    assert "verdict" not in End(Reason.EXIT, record(1)).facts()
    assert End(Reason.EXIT).facts() == {"reason": "exit", "code": None, "signal": None, "stderr_tail": ""}


# -- ends of cells -----------------------------------------------------------------------------------------------------

KEPT, LOST = Variables.KEPT, Variables.LOST
CASES = [
    # reply, gone, cut, variables, steps, kernel's end -> status, variables, name of the error, part of the sentence
    ((OK, None, None, KEPT, ()), None, (CellStatus.OK, KEPT, None, None)),
    ((Reply(CellStatus.OK, ask_exit=True), None, None, KEPT, ()), None, (CellStatus.OK, LOST, None, "exit()")),
    (
        (Reply(CellStatus.ERROR, CellError("ValueError", "no")), None, None, KEPT, ()),
        None,
        (CellStatus.ERROR, KEPT, "ValueError", "failed (ValueError)"),
    ),
    ((Reply(CellStatus.ERROR), None, None, KEPT, ()), None, (CellStatus.ERROR, KEPT, None, "failed.")),
    (
        (Reply(CellStatus.ERROR, CellError("StdinNotImplementedError", "")), None, None, KEPT, ()),
        None,
        (CellStatus.ERROR, KEPT, "StdinNotImplementedError", "asked for input"),
    ),
    (
        (Reply(CellStatus.ERROR, CellError("KeyboardInterrupt", "")), None, CellStatus.TIMED_OUT, KEPT, STEP),
        None,
        (CellStatus.TIMED_OUT, KEPT, "KeyboardInterrupt", "variables are kept"),
    ),
    ((OK, None, CellStatus.TIMED_OUT, KEPT, STEP), None, (CellStatus.TIMED_OUT, KEPT, "TimedOut", "ran out of time")),
    ((OK, None, CellStatus.TIMED_OUT, LOST, STEP), None, (CellStatus.TIMED_OUT, LOST, "TimedOut", "was killed")),
    ((OK, None, CellStatus.CANCELLED, KEPT, STEP), None, (CellStatus.OK, KEPT, None, None)),
    ((OK, None, CellStatus.CANCELLED, KEPT, ()), None, (CellStatus.OK, KEPT, None, None)),
    ((OK, None, CellStatus.CANCELLED, LOST, STEP), None, (CellStatus.CANCELLED, LOST, "Cancelled", "was cancelled")),
    ((None, GONE, CellStatus.TIMED_OUT, LOST, STEP), None, (CellStatus.TIMED_OUT, LOST, "TimedOut", "all variables")),
    ((None, GONE, None, LOST, ()), None, (CellStatus.ERROR, LOST, "KernelDied", "cut off")),
    (
        (None, GONE, None, LOST, ()),
        End(Reason.SIGNAL, record(None, 11)),
        (CellStatus.ERROR, LOST, "KernelDied", "the process was killed by SIGSEGV"),
    ),
    (
        (None, GONE, None, LOST, ()),
        memory(Reason.MEMORY_LIMIT, 5 << 20, 4 << 20),
        (CellStatus.ERROR, LOST, "ResourceLimitExceeded", "over its memory limit"),
    ),
    (
        (None, GONE, None, LOST, ()),
        End(Reason.STOPPED, record(None, 15)),
        (CellStatus.CANCELLED, LOST, "KernelStopped", "stopped on request"),
    ),
    (
        (OK, None, None, KEPT, ()),
        End(Reason.STOPPED, record(None, 15)),
        (CellStatus.CANCELLED, LOST, "KernelStopped", "stopped on request"),
    ),
    ((OK, None, None, KEPT, ()), End(Reason.SIGNAL, record(None, 11)), (CellStatus.OK, LOST, None, None)),
]


@pytest.mark.parametrize(("told", "kernel_end", "expected"), CASES)
def test_a_cell_is_judged_by_what_happened_to_it(told: tuple, kernel_end: End | None, expected: tuple) -> None:
    end = CellOutcome(*told)
    judged = judge(end, kernel_end)
    status, variables, name, part = expected
    assert (judged.status, judged.variables) == (status, variables)
    assert (judged.error.name if judged.error else None) == name
    said = sentence(WHERE, judged, kernel_end, 1.5)
    if part is None:
        assert said is None
    else:
        assert said is not None
        assert part in said
        assert "Cell 2 of 3 (load)" in said


def test_a_shell_cell_that_was_stopped_has_no_variables_to_lose() -> None:
    end = CellOutcome(OK, None, None, KEPT, (), is_stateless=True)
    assert judge(end, End(Reason.STOPPED, record(None, 15))).variables is KEPT


@pytest.mark.parametrize("variables", [KEPT, LOST])
def test_of_a_shell_cell_that_was_ended_nothing_is_said_of_variables(variables: Variables) -> None:
    for told in ((OK, None), (None, GONE)):
        judged = judge(CellOutcome(*told, CellStatus.TIMED_OUT, variables, STEP, is_stateless=True), None)
        assert judged.error == CellError("TimedOut", "The cell was ended.")


def test_what_the_backend_has_to_say_is_passed_on() -> None:
    reply = Reply(CellStatus.OK, notice="some output is missing", lossy=True)
    assert judge(CellOutcome(reply, None, None, KEPT), None).notices == ("some output is missing",)
    cancelled = judge(CellOutcome(reply, None, CellStatus.CANCELLED, KEPT, STEP), None)
    assert cancelled.notices[0] == "some output is missing"
    assert "ended well all the same" in cancelled.notices[1]


# -- notes -------------------------------------------------------------------------------------------------------------

ROW = KernelSessionRow("n-1", "n", "/w", "/p", "direct", "python", "session", 1.0, "idle")


def test_a_note_names_its_session_and_words_of_another_version_are_not_understood() -> None:
    own = msgspec.to_builtins(KernelNote(ROW, "signal"))
    assert own_of(Note(NOTE_VERSION, own=own)) == KernelNote(ROW, "signal")
    for change in ({"session": {**own["session"], "cwd": None}}, {"interrupt_mode": 5}, {"method": "magic"}):
        assert own_of(Note(NOTE_VERSION, own={**own, **change})) is None
    assert own_of(None) is None
