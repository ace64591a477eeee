"""How the end of a cell is judged, and that all that is said of it is true; the names of the original."""

from __future__ import annotations

from typing import Any

import pytest

from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.config import legacy_settings
from supervisord_py.kernels.messages import CellOutcome, CellPlace, judge, sentence
from supervisord_py.kernels.session import CellError, CellStatus, Step, Variables
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict

KEPT, LOST = Variables.KEPT, Variables.LOST
INT, KILL = Step("sigint", 0.0), Step("sigkill", 4.0)
OK, TIMED_OUT, CANCELLED, ERROR = CellStatus.OK, CellStatus.TIMED_OUT, CellStatus.CANCELLED, CellStatus.ERROR
GONE = KernelGoneError("gone")


def record(code: int | None = None, signum: int | None = None, verdict: Verdict | None = None) -> ExitRecord:
    return ExitRecord("k", "kernel:x", Identity(1, 1, "b"), 1.0, 2.0, code, signum, 0.0, 0.0, 0, 0, 0, verdict)


SEGV, STOP = End(Reason.SIGNAL, record(None, 11)), End(Reason.STOPPED, record(None, 15))
OVER = Verdict(Reason.MEMORY_LIMIT, "watchdog", 1.0, 9, 300 << 20, 200 << 20)
MEMORY = End(Reason.MEMORY_LIMIT, record(None, 9, OVER))


INTERRUPTED = {"reply": Reply(ERROR, CellError("KeyboardInterrupt", "")), "steps": (INT,)}
CASES: list[Any] = [
    # the outcome's members, kernel's end -> status, variables, name of the error, part of the sentence
    ({"reply": Reply(OK)}, None, (OK, KEPT, None, None)),
    ({"reply": Reply(OK, ask_exit=True)}, None, (OK, LOST, None, "exit()")),
    ({"reply": Reply(ERROR, CellError("E", "no"))}, None, (ERROR, KEPT, "E", "failed (E). Cell 3 was not run.")),
    ({"reply": Reply(ERROR), "is_stateless": True}, None, (ERROR, KEPT, None, "failed. Cell 3 was not run.")),
    ({"reply": Reply(ERROR, CellError("StdinNotImplementedError", ""))}, None,
     (ERROR, KEPT, "StdinNotImplementedError", "asked for input")),
    ({**INTERRUPTED, "cut": TIMED_OUT}, None,
     (TIMED_OUT, KEPT, "KeyboardInterrupt", "ran out of time: interrupted after 30 s, by sigint; variables are kept.")),
    ({"reply": Reply(OK), "cut": TIMED_OUT, "steps": (INT,)}, None, (TIMED_OUT, KEPT, "TimedOut", "ran out of time")),
    ({"reply": Reply(OK), "cut": TIMED_OUT, "variables": LOST, "steps": (INT, KILL)}, None,
     (TIMED_OUT, LOST, "TimedOut", "the kernel was killed after 30 s, by sigkill; all variables are lost.")),
    ({"reply": Reply(OK), "cut": CANCELLED, "steps": (INT,)}, None, (OK, KEPT, None, None)),
    ({"gone": GONE, "cut": CANCELLED, "variables": LOST, "steps": (INT,)}, None,
     (CANCELLED, LOST, "Cancelled", "was cancelled: the kernel was killed")),
    ({"gone": GONE, "variables": LOST}, SEGV, (ERROR, LOST, "KernelDied", "cut off. The kernel was killed by SIGSEGV")),
    ({"gone": GONE, "variables": LOST}, MEMORY, (ERROR, LOST, "ResourceLimitExceeded", "over its memory limit")),
    ({"gone": GONE, "variables": LOST}, STOP, (CANCELLED, LOST, "KernelStopped", "stopped on request")),
    ({"reply": Reply(OK)}, STOP, (CANCELLED, LOST, "KernelStopped", "stopped on request")),
    ({"reply": Reply(OK)}, SEGV, (OK, LOST, None, None)),
    ({"reply": Reply(ERROR, CellError("E", ""))}, SEGV, (ERROR, LOST, "E", "The kernel is gone")),
    ({"reply": Reply(OK), "is_stateless": True}, STOP, (CANCELLED, KEPT, "KernelStopped", "stopped on request")),
    ({"gone": GONE, "cut": TIMED_OUT, "is_stateless": True}, None, (TIMED_OUT, KEPT, "TimedOut", "ended after 30 s.")),
]  # fmt: skip


@pytest.mark.parametrize(("told", "kernel_end", "expected"), CASES)
def test_a_cell_is_judged_by_what_happened_to_it(told: dict[str, Any], kernel_end: End | None, expected: Any) -> None:
    judged = judge(CellOutcome(**told), kernel_end)
    status, variables, name, part = expected
    assert (judged.status, judged.variables, judged.error and judged.error.name) == (status, variables, name)
    said = sentence(CellPlace(1, 3, "load  the\ndata"), judged, 30.04)
    assert (said is None, (part or "") in (said or "")) == (part is None, True), said
    assert said is None or said.startswith("Cell 2 of 3 (load the data) "), said


def test_of_a_session_of_its_own_nothing_is_said_to_be_kept() -> None:
    own = CellPlace(1, 5, is_own=True)
    for told in ({"reply": Reply(ERROR)}, {**INTERRUPTED, "cut": TIMED_OUT}):
        said = str(sentence(own, judge(CellOutcome(**told), None), 1.0))  # type: ignore[arg-type]
        assert "Cells 3 to 5 were not run." in said
        assert ("kept" in said, said.endswith("gone with it.")) == (False, True)
    assert sentence(CellPlace(0, 1), CellOutcome(status=ERROR), 0.0) == "The cell failed."


def test_a_death_in_a_cell_brings_the_last_words_and_of_a_crash_report_the_beginning() -> None:
    report = "noise\nFatal Python error: Segmentation fault\n" + "\n".join(f"frame {n}" for n in range(50))
    judged = judge(CellOutcome(gone=GONE, variables=LOST), End(Reason.SIGNAL, record(None, 11), report))
    assert judged.error is not None
    assert "not run again" in judged.error.value
    assert "Last words of the kernel:\nFatal Python error: Segmentation fault\nframe 0" in judged.error.value


def test_our_names_win_and_a_word_that_is_not_known_is_ignored_with_a_warning() -> None:
    bash, url = {"PI_PY": "bash"}, {"PI_PYTHON_GATEWAY_URL": "http://h"}
    assert legacy_settings({"PX_PY": "py", **bash}) == ({"kernels.expose": ("python", "PX_PY")}, ())
    assert legacy_settings({"PX_KERNELS__EXPOSE": "both", "PX_PY": "py", **bash}) == ({}, ())
    told = legacy_settings({"PX_KERNELS__BACKEND": "direct", **url})
    assert told == ({"kernels.gateway_url": ("http://h", "PI_PYTHON_GATEWAY_URL")}, ())
    environ = {"PX_PY": "snake", "PI_PY": "mix", "PI_DEBUG_STARTUP": "", "PI_PYTHON_GATEWAY_TOKEN": " "}
    warning = "PX_PY='snake' is ignored: it knows 0, bash, 1, py, mix, both"
    assert legacy_settings(environ) == ({"kernels.expose": ("both", "PI_PY")}, (warning,))
