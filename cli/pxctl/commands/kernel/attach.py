"""`pxctl kernel attach`: join a live session with Jupyter's own console."""

from __future__ import annotations

import os
import shlex
import sys

import click

from pxctl.commanding import declare
from pxctl.completing import kernel_names
from pxctl.failure import Failure
from pxctl.kernels import connection_file, find_kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from pxctl.invocation import Invocation

_CONSOLE = "jupyter-console"


@declare(
    "attach",
    effect="modifying: what is typed into the console runs in the session, as you",
    examples=[
        "pxctl kernel attach default",
        "pxctl kernel attach default --print",
        'eval "$(pxctl kernel attach default --print)"',
    ],
)
@click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
def command(invocation: Invocation, kernel: str, cwd: str | None, only_print: bool) -> None:
    """Join a live session with `jupyter console --existing`; leaving the console leaves the kernel alone.

    Without a terminal, or where jupyter console is not installed, the command is printed.
    """
    invocation.action = f"attach to {kernel}"
    document = find_kernel(invocation.client(), kernel, cwd=cwd).document
    file = connection_file(document)
    program = find_console(invocation.env)
    if invocation.json:
        argv = [program or _CONSOLE, "--existing", file]
        invocation.document(
            {"schema": "px.attach/1", "unit": document.get("unit"), "connection_file": file, "command": argv}
        )
    elif only_print or not invocation.in_is_terminal:
        invocation.say(shlex.join([*([program] if program else ["jupyter", "console"]), "--existing", file]))
    elif program is None:
        invocation.say(shlex.join(["jupyter", "console", "--existing", file]))
        raise Failure("jupyter console is not installed", kind="not_installed", hint="pip install jupyter_console")
    else:
        os.execv(program, [program, "--existing", file])  # noqa: S606 - in our place: the terminal is its own


def find_console(env: Mapping[str, str]) -> str | None:
    """Return the path of jupyter-console: beside this program or its interpreter, else on PATH; None without one."""
    folders = [os.path.dirname(os.path.abspath(beside)) for beside in (sys.argv[0], sys.executable)]
    for folder in [*folders, *env.get("PATH", os.defpath).split(os.pathsep)]:
        candidate = os.path.join(folder, _CONSOLE)
        if folder and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None
