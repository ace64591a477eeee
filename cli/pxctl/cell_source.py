"""What `exec` is to run: code from the command line, from stdin, or out of a file; the member of the request for it.

Law: what was given is sent as it stands; the daemon splits scripts and reads notebooks.
"""

from __future__ import annotations

import os

from pxctl import terminal
from pxctl.failure import USAGE, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

NOTEBOOK, SCRIPTS, SHELL = ".ipynb", {".py", ""}, {".sh", ".bash"}
_EXAMPLE = "pxctl exec 'print(1 + 1)', or pxctl exec -f FILE, or … | pxctl exec"


class Source:
    """What is to be run.

    Attributes:
        member: Name of the member of the request: `code`, `script` or `notebook`.
        text: Its value.
        file: Where it was read from; None for code that was typed or piped.
        is_shell: Whether it is for the shell.
    """

    __slots__ = ("file", "is_shell", "member", "text")

    def __init__(self, member: str, text: str, file: str | None = None, *, is_shell: bool = False) -> None:
        self.member = member
        self.text = text
        self.file = file
        self.is_shell = is_shell

    @property
    def is_notebook(self) -> bool:
        """Whether it comes back with outputs in it."""
        return self.member == "notebook"

    def body(self) -> dict[str, Any]:
        """Return its part of the request."""
        return {self.member: self.text}


def read_source(invocation: Invocation, code: str | None, file: str | None, *, bash: bool) -> Source:
    """Return what is to be run.

    Raises:
        Failure: Nothing was given, two things were, or the file cannot be read.
    """
    if code is not None and file is not None:
        raise _usage("CODE and -f exclude each other", "pxctl exec -f FILE")
    if file is not None:
        return _from_file(file, bash=bash)
    if code is not None and code != "-":
        return Source("code", code, is_shell=bash)
    if code is None and invocation.in_is_terminal:
        raise _usage("there is nothing to run", _EXAMPLE)
    text = _text(terminal.read_input(), "stdin")
    if not text.strip():
        raise _usage("there is nothing to run: stdin is empty", _EXAMPLE)
    return Source("code", text, is_shell=bash)


def _from_file(file: str, *, bash: bool) -> Source:
    if file == "-":
        return Source("code" if bash else "script", _text(terminal.read_input(), "stdin"), file, is_shell=bash)
    try:
        with open(file, "rb") as opened:
            text = _text(opened.read(), file)
    except OSError as error:
        raise Failure(
            f"cannot read {file}: {error.strerror}", kind="usage", hint=f"ls -l {file}", exit_code=USAGE
        ) from error
    ending = os.path.splitext(file)[1].lower()
    if ending == NOTEBOOK:
        if bash:
            raise _usage(f"{file} is a notebook, and --bash runs shell scripts", f"pxctl exec -f {file}")
        return Source("notebook", text, file)
    is_shell = bash or ending in SHELL
    return Source("script" if ending in SCRIPTS and not is_shell else "code", text, file, is_shell=is_shell)


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _usage(f"{where} is no UTF-8 text: byte {error.start}", f"iconv -t UTF-8 {where}") from error


def _usage(detail: str, hint: str) -> Failure:
    return Failure(detail, kind="usage", hint=hint, exit_code=USAGE)
