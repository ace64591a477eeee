"""`pxctl kernel …`: sessions and their kernels.

Users name a session by `x`, an id, `kernel:x` or a glob; among several of one name, that of the
folder is meant.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pxctl import output
from pxctl.app import (
    Invocation,
    PxGroup,
    declare,
    kernel_names,
    no_autostart_option,
    timeout_option,
)
from pxctl.client import Client, Document, Failure, bare_name, query, route, units_of
from pxctl.commands.exec import CellScreen, callers_environment, choice_options
from pxctl.commands.units import change_each, steer, steering
from pxctl.output import BY_STATE, Column, ago, size, state_column
from pxctl.streams import stream, waking_client

kernel = PxGroup(
    "kernel",
    "Sessions and their kernels: list, start, attach and more.",
    "default",
    examples=(
        "pxctl exec 'x = 1'",
        "pxctl kernel list",
        "pxctl kernel attach default",
        "pxctl kernel stop default",
    ),
)

_EXPORT_SECONDS = 300.0
_name = click.argument("name", metavar="NAME", shell_complete=kernel_names)


def _find(client: Client, name: str) -> Document:
    """Return the session (px.kernel/1) that a name means; where it means several, that of the
    present folder.
    """
    target = route("kernel", name)
    try:
        return client.get(query(target, [("cwd", os.getcwd())]))
    except Failure as failure:
        if failure.kind != "unknown_unit":
            raise
    # perhaps there are several, none of them here: the problem lists them
    return client.get(target)


def _units(client: Client, names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        is_glob = any(sign in name for sign in "*?[")
        found += units_of(client, "kernel", [name]) if is_glob else [_find(client, name)["unit"]]
    return list(dict.fromkeys(found))


def _reason(document: Document) -> str:
    """Return why a session is as it is; of one that failed a sentence: its document has a whole
    problem.
    """
    failure = document.get("failure") or {}
    activity = document.get("preparing") or document.get("silent")
    return str(activity or failure.get("detail") or document.get("reason") or "")


_COLUMNS = [
    Column("ID", "id", minimum=12),
    state_column(),
    Column("PID", "pid", 5, right=True),
    Column("QUEUED", "queued", 4, right=True, is_count=True),
    Column("MEMORY", output.memory, 3, right=True),
    Column("LAST USED", lambda one: ago(one.get("last_used")), 2),
    Column("CWD", "cwd", 6, minimum=12),
    Column("INTERPRETER", "interpreter", 7, minimum=16),
    Column("BACKEND", "backend", 9),
    Column(
        "REASON", lambda one: (_reason(one), BY_STATE.get(str(one.get("state")))), 8, minimum=10
    ),
]


@declare(kernel, "list", "list the kernels")
def list_kernels(invocation: Invocation) -> None:
    """List the sessions: those with a kernel first, then those that are remembered."""
    answer = invocation.client().get("/api/kernels")
    kernels = sorted(
        answer.get("kernels", []), key=lambda one: str(one.get("last_used") or ""), reverse=True
    )
    kernels.sort(key=lambda one: one.get("state") == "stopped")
    invocation.print_rows(
        answer, kernels, "id", _COLUMNS, "no sessions yet; make one: pxctl exec 'x = 1'"
    )


@declare(kernel, "show", "show {name}")
@_name
def show_kernel(invocation: Invocation, name: str) -> None:
    """Show one session: state, process, folder, interpreter, what runs in it."""
    document = _find(invocation.client(), name)
    if not invocation.print_result(document, [document.get("id")]):
        invocation.print_members(document, reason=_reason(document))


@declare(kernel, "start")
@click.argument("name", metavar="[NAME]", default="default", shell_complete=kernel_names)
@choice_options
@click.option(
    "--explain",
    is_flag=True,
    help="Start nothing; say which Python is taken, and why not the others.",
)
@timeout_option()
@no_autostart_option
def start_kernel(
    invocation: Invocation, name: str, cwd: str | None, explain: bool, **asked: Any
) -> None:
    """Start a session's kernel, or explain which Python it gets; returns when it is ready.

    A session is a name, a folder, an interpreter and a backend. One that runs already is left as it
    is.

    $ pxctl kernel start work --interpreter .venv
    """
    name = bare_name("kernel", name)
    invocation.action = f"{'explain' if explain else 'start'} kernel:{name}"
    place = {"cwd": str(Path(cwd or ".").absolute()), "environ": callers_environment(invocation)}
    content = {"name": name, "explain": explain, **place, **asked}
    client = waking_client(invocation)
    if explain:
        answer = client.ask("POST", "/api/kernels", content=content, timeout=None)
        if invocation.print_result(answer, ()):
            return
        for one in answer["candidates"]:
            version = f" ({one['version']})" if one["version"] else ""
            words = f"{one['source']}: {one['path']}{version} {one['detail']}"
            remedy = one["remedy"] and f"remedy: {one['remedy']}"
            invocation.print_check("taken" if one["taken"] else "no", words, remedy)
        dropped = [f"{one['name']} ({one['why']})" for one in answer["environment"]["dropped"]]
        invocation.print_members(answer, passed=answer["environment"]["passed"], dropped=dropped)
        return
    found: Document = {}
    screen = CellScreen(invocation, f"kernel:{name}")
    with invocation.detaching(f"detached; kernel:{name} goes on starting"), screen:
        screen.wait("starting…")
        for _, event in stream(client, "POST", "/api/kernels", content=content, timeout=None):
            screen.show(event)
            screen.wait(screen.phase)  # goes on below what was said
            found = event.get("result") or found
    if not found:
        raise Failure(
            "the daemon's answer ended before the kernel was ready",
            kind="bad_answer",
            hint="pxctl doctor",
        )
    if not invocation.print_result(found, [found.get("id")]):
        pid = f" (pid {found['pid']})" if found.get("pid") else ""
        invocation.print(f"{found.get('unit')} {found.get('state')}{pid}")
        screen.conclude(found)


@declare(kernel, "stop", "stop {units}")
@steering("NAME", kernel_names)
def stop_kernels(invocation: Invocation, units: tuple[str, ...], **waiting: Any) -> int:
    """Stop the kernels of sessions; returns when nothing of them is left. Their variables are lost.

    The session stays in the list, and its history can be exported; the next call starts a fresh
    kernel.

    $ pxctl kernel stop 'work*'
    """
    return steer(invocation, "stop", _units(invocation.client(), units), **waiting)


@declare(kernel, "restart", "restart {units}")
@steering("NAME", kernel_names)
def restart_kernels(invocation: Invocation, units: tuple[str, ...], **waiting: Any) -> int:
    """Replace the kernels of sessions; returns when the new ones are ready. Forgets a hard failure.

    A running cell is cut off and variables are lost; calls that wait in line are run by the new
    kernel.
    """
    return steer(invocation, "restart", _units(invocation.client(), units), **waiting)


@declare(kernel, "interrupt", "interrupt {units}")
@click.argument("units", nargs=-1, required=True, metavar="NAME...", shell_complete=kernel_names)
def interrupt_kernels(invocation: Invocation, units: tuple[str, ...]) -> int:
    """Interrupt the running cells of sessions, as Ctrl-C does. Exits 3 where there is no process to
    interrupt.

    Where one does not yield, or when asked again: a second interrupt, then the kernel is
    terminated, then killed.
    """
    client = invocation.client()

    def interrupt(unit: str) -> Document:
        document = client.ask("POST", route("kernel", unit, "interrupt"))
        is_idle = not document.get("running") and not document.get("steps")
        if is_idle and document.get("state") in {"stopped", "failed"}:
            detail, hint = (
                f"it is {document['state']}: there is no process to interrupt",
                "pxctl kernel start",
            )
            raise Failure(detail, kind="inactive", hint=f"{hint} {unit.removeprefix('kernel:')}")
        return document

    def words(unit: str, document: Document) -> str:
        if not document["running"]:
            details = [one["detail"] for one in document["steps"] if one["detail"]]
            return ": ".join([f"{unit} no cell is running", *details])
        steps = ", ".join(step["action"] for step in document["steps"])
        return f"{unit} cell {document['running']}: {steps or 'asked to end'}"

    return change_each(invocation, "interrupt", _units(client, units), interrupt, words)


@declare(kernel, "attach", "attach to {name}")
@_name
@click.option(
    "--print", "only_print", is_flag=True, help="Print the command instead of running it."
)
def attach_kernel(invocation: Invocation, name: str, only_print: bool) -> None:
    """Join a live session with `jupyter console --existing`; leaving the console leaves the kernel
    alone.

    Without a terminal, or where jupyter console is not installed, the command is printed.

    $ pxctl kernel attach default --print
    """
    from pxctl.service import find_program

    document = _find(invocation.client(), name)
    file, unit = document.get("connection_file"), str(document.get("unit"))
    if not file:
        held = ", ".join(str(document.get(key)) for key in ("language", "backend", "state"))
        detail, hint = (
            f"there is no kernel to join: {held}",
            f"pxctl kernel start {document.get('id')}",
        )
        raise Failure(detail, kind="inactive", unit=unit, hint=hint)
    program = find_program("jupyter-console", invocation.env)
    argv = [program, "--existing", file] if program else ["jupyter", "console", "--existing", file]
    opens = invocation.in_is_terminal and not only_print
    if program and opens:
        os.execv(program, argv)  # noqa: S606 - in our place: the terminal is its own
    invocation.print(shlex.join(argv))
    if opens:
        # beside pxctl it is found first
        hint = f"{shlex.quote(sys.executable)} -m pip install jupyter-console"
        raise Failure("jupyter console is not installed", kind="not_installed", hint=hint)


@declare(kernel, "export", "export {name}")
@_name
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Default: stdout.",
)
def export_kernel(invocation: Invocation, name: str, target: str | None) -> None:
    """Write a session's history, with its outputs, as a notebook (nbformat 4.5). A stopped session
    has one, too.

    $ pxctl kernel export default -o session.ipynb
    """
    client = invocation.client()
    place, fields = route("kernel", _find(client, name)["id"], "notebook"), {"Accept": "*/*"}
    with client.open("GET", place, fields=fields, timeout=_EXPORT_SECONDS) as exchange:
        if target is None:
            for chunk in exchange.chunks():
                output.write(chunk)
            output.write("\n")
        else:
            count = output.write_whole(Path(target), exchange.chunks())
            invocation.notice(f"saved {target} ({size(count)})")
        cut = int(exchange.fields.get("x-cut-cells", 0))
    if cut:
        invocation.notice(
            f"pxctl: the notebook does not have all of what {cut} of its cells gave: it would be "
            "too large"
        )
