"""`pxctl kernel start`: start a session's kernel, or explain which interpreter it would get."""

from __future__ import annotations

import os

import click

from pxctl.commanding import declare
from pxctl.commands.exec import BACKENDS, CALLER_VARIABLES
from pxctl.completing import kernel_names
from pxctl.explaining import explanation_lines
from pxctl.failure import FAILED, Silent
from pxctl.naming import kernel_name
from pxctl.seconds import SECONDS
from pxctl.spinner import Spinner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation


@declare(
    "start",
    effect="modifying: starts the kernel, and the daemon when it is not there; with --explain nothing",
    examples=[
        "pxctl kernel start",
        "pxctl kernel start work --interpreter .venv",
        "pxctl kernel start --explain",
        "pxctl kernel start r --kernelspec ir",
    ],
)
@click.argument("name", metavar="[NAME]", default="default", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", type=click.Path(file_okay=False), help="Where it runs; else here.")
@click.option("--interpreter", metavar="PATH", help="Python, environment folder, or 'managed'.")
@click.option("--kernelspec", metavar="NAME", help="An installed kernelspec; see pxctl kernel specs.")
@click.option("--backend", type=click.Choice(BACKENDS), help="How the kernel is held; else as set.")
@click.option("--explain", is_flag=True, help="Start nothing; say which Python is taken, and why not the others.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
@click.option("--no-autostart", is_flag=True, help="Do not start the daemon when it is not there.")
def command(  # noqa: PLR0917 - click gives every option its own parameter
    invocation: Invocation,
    name: str,
    cwd: str | None,
    interpreter: str | None,
    kernelspec: str | None,
    backend: str | None,
    explain: bool,  # noqa: FBT001 - click
    timeout: float | None,
    no_autostart: bool,  # noqa: FBT001 - click
) -> None:
    """Start the kernel of a session; returns when it is ready.

    A session is a name, a folder, an interpreter and a backend. One that runs already is left as it is.
    """
    name = kernel_name(name)
    invocation.action = f"explain kernel:{name}" if explain else f"start kernel:{name}"
    asked = {
        "name": name,
        "cwd": os.path.abspath(cwd or "."),
        "interpreter": interpreter,
        "kernelspec": kernelspec,
        "backend": backend,
        "environ": {key: value for key in CALLER_VARIABLES if (value := invocation.env.get(key))},
        "timeout": timeout,
        "explain": explain or None,
    }
    content = {key: value for key, value in asked.items() if value is not None}
    client = invocation.waking_client(autostart=not no_autostart)
    shows = invocation.err_is_terminal and not invocation.quiet and invocation.env.get("TERM") != "dumb"
    try:
        with Spinner(f"kernel:{name}", lambda: "starting…", on=shows):
            answer = client.ask("POST", "/api/kernels", content=content, timeout=None)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: detached; kernel:{name} goes on starting")
        raise Silent(FAILED) from None
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif explain:
        for line in explanation_lines(answer.document, invocation.paint):
            invocation.say(line)
    else:
        _tell(invocation, answer.document)


def _tell(invocation: Invocation, document: dict[str, Any]) -> None:
    if invocation.quiet:
        invocation.say(str(document.get("id")))
        return
    pid = f" (pid {document['pid']})" if document.get("pid") else ""
    invocation.say(f"{document.get('unit')} {document.get('state')}{pid}")
    for notice in document.get("notices") or []:
        invocation.notice(f"pxctl: {notice}")
