"""Failures in words: the right reason, the right hint, and never a limit that nobody enforced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tool_folders
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import (
    PxError,
    ReadinessTimeoutError,
    ResourceLimitError,
    StartFailedError,
)
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict
from supervisord_py.process.pool import Refusal, Refuse
from supervisord_py.process.supervisor import decode_tail
from supervisord_py.tools import failures
from supervisord_py.tools.failures import refusal_error
from supervisord_py.tools.manifest import ToolSpec
from supervisord_py.tools.readiness import Listening


@pytest.fixture
def spec(tmp_path: Path) -> ToolSpec:
    return tool_folders.plain(tmp_path, "x")


def record(code: int | None = None, signum: int | None = None, verdict: Verdict | None = None) -> ExitRecord:
    who = Identity(1, 2, "boot")
    return ExitRecord("k", "tool:x", who, 1.0, 2.0, code, signum, 0.1, 0.1, 1000, 0, 10, verdict)


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("ModuleNotFoundError: No module named 'numpy'", "`pxctl tools sync x`"),
        ("ImportError: No module named numpy.linalg", "numpy.linalg"),
        ("Error: Cannot find module 'express'", "express"),
        ("OSError: [Errno 98] Address already in use", '"listen": "port"'),
        ('  File "/t/main.py", line 7\n    def f(:\n          ^\nSyntaxError: invalid syntax', "/t/main.py:7"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate", "memory (suspected)"),
    ],
)
def test_stderr_suggests_the_next_step(spec: ToolSpec, stderr: str, words: str) -> None:
    assert words in str(failures.hint_for(spec, stderr))


@pytest.mark.parametrize(
    ("ended", "kind", "words"),
    [
        (End(Reason.EARLY_EXIT, record(code=1), "a\nboom\n"), StartFailedError, "before it was ready: boom"),
        (End(Reason.EARLY_EXIT, record(code=1), ""), StartFailedError, "wrote nothing to stderr"),
        (End(Reason.EARLY_EXIT, record(code=0), ""), StartFailedError, "under __main__"),
        (End(Reason.OOM_KILL, record(signum=9), ""), ResourceLimitError, "ResourceLimitExceeded: memory"),
    ],
)
def test_an_early_exit_is_explained(spec: ToolSpec, ended: End, kind: type[PxError], words: str) -> None:
    error = failures.early_exit(spec, ended)
    assert isinstance(error, kind)
    assert words in error.detail
    assert error.hint


@pytest.mark.parametrize(
    ("ports", "answer", "status", "words"),
    [
        ([], None, "", "it listens on no port"),
        ([9], None, "", "listens on 127.0.0.1:9 instead of 127.0.0.1:80"),
        ([80], 500, "", "/healthz answered 500"),
        ([80], None, "loading", "nobody answers there. Its last STATUS was"),
    ],
)
def test_what_was_not_ready_is_told_by_what_it_did_instead(
    spec: ToolSpec, ports: list[int], answer: int | None, status: str, words: str
) -> None:
    error = failures.not_ready(spec, 80, [Listening("127.0.0.1", port) for port in ports], answer, status, "")
    assert isinstance(error, ReadinessTimeoutError)
    assert words in error.detail
    assert error.hint


@given(st.text(max_size=30), st.integers(1, 20))
def test_a_tail_of_text_is_the_end_of_it(text: str, limit: int) -> None:
    assert text.endswith(decode_tail(text.encode(), limit))


@pytest.mark.parametrize("refusal", list(Refusal))
@pytest.mark.parametrize("last", [None, {"detail": "it broke", "hint": "mend it", "stderr_tail": "t", "exit_code": 1}])
def test_every_refusal_has_words_a_next_step_and_a_problem_document(refusal: Refusal, last: Any) -> None:
    error = refusal_error(Refuse(1, "x", refusal, 1.2), ToolsSettings(), last)
    problem = error.problem()
    assert problem["unit"] == "tool:x"
    assert error.detail.endswith((".", "broke"))
    assert error.hint or refusal is Refusal.REMOVED
    if problem["status"] == 429:
        assert problem["retry_after_seconds"] == 2
