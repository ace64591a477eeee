"""A program that cannot be executed is told apart from its interpreter, its loader and its place
on PATH.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from supervisord_py.process.exec_failure import explain, interpreter_of, look

PATH = "/usr/bin:/bin"


@pytest.mark.parametrize(
    ("content", "number", "detail", "hint"),
    [
        (
            "#!/old/venv/bin/python\n",
            errno.ENOENT,
            "its `#!` line names /old/venv/bin/python, which is not",
            "first line",
        ),
        ("#! /old/py -s\n", errno.ENOENT, "names /old/py, which is not there", "install py"),
        ("#!/bin/sh\r\n", errno.ENOENT, "line endings of Windows", "sed -i 's/\\r$//' "),
        (
            "#!/etc/passwd\n",
            errno.EACCES,
            "names /etc/passwd, which is not executable",
            "first line",
        ),
        ("\x7fELF", errno.ENOENT, "the loader or the library", "`file "),
    ],
)
def test_a_file_that_is_there(
    tmp_path: Path, content: str, number: int, detail: str, hint: str
) -> None:
    (tmp_path / "run").write_bytes(content.encode())
    (tmp_path / "run").chmod(0o755)
    for program, path in (("./run", PATH), ("run", str(tmp_path)), (str(tmp_path / "run"), PATH)):
        why = explain(program, number, look(program, str(tmp_path), {"PATH": path}), path)
        assert why is not None
        assert (detail in why.detail, hint in why.hint) == (True, True), why


def test_what_is_nowhere(tmp_path: Path) -> None:
    seen = look("no-such-program", str(tmp_path), {"PATH": PATH})
    why = explain("no-such-program", errno.ENOENT, seen, PATH)
    assert why is not None
    assert (why.detail, "install no-such-program" in why.hint) == (
        f"is not on its PATH ({PATH})",
        True,
    )
    why = explain("./gone", errno.ENOENT, look("./gone", str(tmp_path), {}), PATH)
    assert why is not None
    assert why.detail == "is not there"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOEXEC])
def test_what_the_number_says_by_itself_is_not_explained(tmp_path: Path, number: int) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    os.chmod(tmp_path / "run", 0o644)
    assert explain("./run", number, look("./run", str(tmp_path), {}), PATH) is None


def test_only_blanks_end_the_interpreter() -> None:
    assert interpreter_of(b"#!\t/bin/env  bash") == "/bin/env"
    assert interpreter_of(b"#!/bin/sh\r") == "/bin/sh\r"
    assert interpreter_of(b"\x7fELF") == interpreter_of(b"#!") == ""
