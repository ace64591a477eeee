"""Failures in words: the right reason, the right hint, and never a limit that nobody enforced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tool_folders
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.process.pool import Refusal, Refuse
from supervisord_py.tools import failures
from supervisord_py.tools.failures import refusal_error
from supervisord_py.tools.manifest import ToolSpec


@pytest.fixture
def spec(tmp_path: Path) -> ToolSpec:
    return tool_folders.plain(tmp_path, "x")


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


def test_a_traceback_names_the_line_of_the_tool_that_is_to_be_mended(spec: ToolSpec) -> None:
    frames = f'  File "{spec.folder}/main.py", line 7, in f\n    import json\n  File "/usr/lib/x.py", line 3\n'
    raised = f"started\nTraceback (most recent call last):\n{frames}json.Odd: boom\n"
    assert failures.hint_for(spec, raised) == f"Mend {spec.folder}/main.py:7, which raised json.Odd."
    assert failures.hint_for(spec, f"{raised}it went on: \n all the same\n") is None
    assert failures.hint_for(spec, raised.replace(str(spec.folder), "/elsewhere")) is None


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
