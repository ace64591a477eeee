"""`pxctl kernel start`: start a session's kernel, or explain which interpreter it would get."""

from __future__ import annotations

import json
import os

import click

from pxctl.calling import NDJSON, parsed_event
from pxctl.cell_view import View
from pxctl.commanding import declare
from pxctl.commands.exec import BACKENDS, CALLER_VARIABLES
from pxctl.completing import kernel_names
from pxctl.explaining import explanation_lines
from pxctl.failure import FAILED, Failure, Silent
from pxctl.naming import kernel_name
from pxctl.seconds import SECONDS
from pxctl.spinner import Spinner
from pxctl.streams import split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from pxctl.client import Answer, Client
    from pxctl.invocation import Invocation

    Event = dict[str, Any]


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
def command(
    invocation: Invocation,
    name: str,
    cwd: str | None,
    interpreter: str | None,
    kernelspec: str | None,
    backend: str | None,
    explain: bool,
    timeout: float | None,
    no_autostart: bool,
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
    if explain:
        _explain(invocation, client.ask("POST", "/api/kernels", content=content, timeout=None))
        return
    progress = Progress(invocation, f"kernel:{name}")
    try:
        with progress:
            kernel = _started(client, content, progress)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: detached; kernel:{name} goes on starting")
        raise Silent(FAILED) from None
    if invocation.json:
        invocation.document(kernel)
    else:
        _tell(invocation, kernel, progress)


def _explain(invocation: Invocation, answer: Answer) -> None:
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    for line in explanation_lines(answer.document, invocation.paint):
        invocation.say(line)


def _started(client: Client, content: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Start it and show what is waited for; return the session."""
    fields = {"Content-Type": "application/json", "Accept": NDJSON}
    body = json.dumps(content).encode()
    with client.open("POST", "/api/kernels", body=body, fields=fields, timeout=None) as exchange:
        for line in split_lines(exchange.chunks()):
            event = parsed_event(line) if line.strip() else {}
            if event.get("event") == "done":
                return dict(event.get("result") or {})
            if event.get("schema") == "px.kernel/1":
                return event  # a daemon of an earlier version answers with the session alone
            progress.show(event)
    raise Failure("the daemon's answer ended before the kernel was ready", kind="bad_answer", hint="pxctl doctor")


class Progress(View):
    """What is waited for: a spinner on a terminal, and the lines of builds wherever stderr goes."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        super().__init__(invocation, has_headers=False)
        self._unit = unit
        self._phase = "starting…"
        self._spinner: Spinner | None = None

    def __enter__(self) -> Self:
        self.waiting(self._phase)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_line()

    def show(self, event: Event) -> None:
        """Show one event; the spinner goes on below what was said."""
        super().show(event)
        self.waiting(self._phase)

    def waiting(self, phase: str) -> None:
        """Say what is waited for, where it takes a while."""
        self._phase = phase
        invocation = self.invocation
        if self._spinner is None and invocation.err_is_terminal and not invocation.quiet:
            self._spinner = Spinner(self._unit, lambda: self._phase, on=invocation.env.get("TERM") != "dumb")
            self._spinner.__enter__()

    def close_line(self) -> None:
        """Erase the spinner."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def _tell(invocation: Invocation, document: dict[str, Any], progress: Progress) -> None:
    if invocation.quiet:
        invocation.say(str(document.get("id")))
        return
    pid = f" (pid {document['pid']})" if document.get("pid") else ""
    invocation.say(f"{document.get('unit')} {document.get('state')}{pid}")
    progress.conclude(document)
