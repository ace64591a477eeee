"""Why a program could not be executed: what execve(2) tells by a number, in words, with the next
step.

"No such file or directory" has four meanings: the program is not there, it is not on PATH, the
interpreter that its `#!` line names is not there, or the loader of a binary is not. `look` looks at
the files, `explain` decides.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_FIRST_LINE_BYTES = 256  # what the kernel reads of it: BINPRM_BUF_SIZE


class Seen(NamedTuple):
    """What was found where a program should be."""

    path: str | None = None  # of the file; None: there is none
    first_line: bytes = b""
    is_there: bool = False  # the interpreter that the first line names
    is_executable: bool = False  # that interpreter


class Explanation(NamedTuple):
    """`detail` goes after "program NAME "; `interpreter` is what a `#!` line names, where that
    is the fault.
    """

    detail: str
    hint: str
    interpreter: str = ""


def look(program: str, folder: str, env: Mapping[str, str]) -> Seen:
    """Look at a program as the child saw it: its working directory and its PATH.

    Blocking, but short.
    """
    if "/" in program:
        path = os.path.join(folder, program)
        found = path if os.path.exists(path) else None
    else:
        found = shutil.which(program, mode=os.F_OK, path=env.get("PATH", os.defpath))
    if found is None or not os.path.isfile(found):
        return Seen(found)
    try:
        with open(found, "rb") as file:
            first_line = file.read(_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return Seen(found)
    interpreter = os.path.join(folder, interpreter_of(first_line))
    return Seen(found, first_line, os.path.exists(interpreter), os.access(interpreter, os.X_OK))


def interpreter_of(first_line: bytes) -> str:
    """Return the program that a `#!` line names, "" where it is no such line."""
    if not first_line.startswith(b"#!"):
        return ""
    # Only blanks and tabs end the word: a carriage return is a part of it.
    words = re.split("[ \t]+", first_line[2:].decode("utf-8", "surrogateescape").strip(" \t"))
    return words[0]


def explain(program: str, number: int, seen: Seen, path: str) -> Explanation | None:
    """Say why a program was not executed; None where the number says it all.

    `number` is an errno of execve(2), `path` the PATH that was searched.
    """
    if number not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
        return None
    if seen.path is None and "/" not in program:
        hint = (
            f"install {program}, or write its whole path; `command -v {program}` in your shell "
            "prints it"
        )
        return Explanation(f"is not on its PATH ({path})", hint)
    if seen.path is None:
        return Explanation("is not there", "install it, or correct the path")
    interpreter = interpreter_of(seen.first_line)
    if not interpreter:
        if number == errno.EACCES:
            return None
        return Explanation(
            "is there, but not the loader or the library that it was linked with",
            f"install the build for this system; `file {seen.path}` shows which one it is",
        )
    if interpreter.endswith("\r"):
        return Explanation(
            "has line endings of Windows: its `#!` line ends with a carriage return",
            f"sed -i 's/\\r$//' {seen.path}",
        )
    if not seen.is_there:
        return Explanation(
            f"is there, but its `#!` line names {interpreter}, which is not there",
            f"install {Path(interpreter).name}, or correct the first line of {seen.path}",
            interpreter,
        )
    if number == errno.EACCES and not seen.is_executable:
        return Explanation(
            f"cannot be executed: its `#!` line names {interpreter}, which is not executable",
            f"correct the first line of {seen.path}",
            interpreter,
        )
    return None
