"""`pxctl kernel …`: sessions and their kernels."""

from __future__ import annotations

import json
import os
import shlex
import sys

import click

from pxctl import output
from pxctl.app import READS, SECONDS, declare
from pxctl.batch import one_by_one, steer, tell
from pxctl.client import bare_name, is_glob, quote, route
from pxctl.completion import kernel_names
from pxctl.failure import FAILED, INACTIVE, UNKNOWN_UNIT, Failure, Silent
from pxctl.kernels import (
    BACKENDS,
    CALLER_VARIABLES,
    connection_file,
    failure_words,
    find_kernel,
    kernel_id,
    kernel_units,
)
from pxctl.output import BY_STATE, Cell, Column, clean, cut, print_facts, print_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.batch import Outcome
    from pxctl.client import Client
    from pxctl.output import Paint

    Event = dict[str, Any]


_STOPPED_SHOWN = 5
_name = click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
_names = click.argument("kernels", nargs=-1, required=True, metavar="NAME...", shell_complete=kernel_names)
_which = click.option(
    "--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder."
)
_COLUMNS = [
    Column("ID", minimum=12),
    Column("STATE", rank=1),
    Column("PID", rank=5, right=True),
    Column("QUEUED", rank=4, right=True),
    Column("MEMORY", rank=3, right=True),
    Column("LAST USED", rank=2),
    Column("CWD", rank=6, minimum=12),
    Column("INTERPRETER", rank=7, minimum=16),
    Column("BACKEND", rank=9),
    Column("REASON", rank=8, minimum=10),
]


@declare(
    "list",
    effect=READS,
    examples=["pxctl kernel list", "pxctl kernel list --all", "pxctl kernel list --json", "pxctl kernel list -q"],
)
@click.option("--all", "everything", is_flag=True, help="All stopped sessions, too, not only the latest ones.")
def list_kernels(invocation: Invocation, everything: bool) -> None:
    """List the sessions: those with a kernel first, then those that are remembered."""
    invocation.action = "list the kernels"
    answer = invocation.client().get("/api/kernels")
    if invocation.json:
        invocation.document(answer)
        return
    kernels = _in_order(answer.document.get("kernels", []))
    if invocation.quiet:
        for kernel in kernels:
            invocation.say(str(kernel.get("id")))
        return
    shown = kernels if everything else _latest(kernels)
    if shown:
        print_table(invocation, _COLUMNS, [_row(kernel, invocation.now()) for kernel in shown])
    else:
        invocation.notice("no sessions yet; make one: pxctl exec 'x = 1'")
    if left_out := len(kernels) - len(shown):
        invocation.notice(f"… {output.counted(left_out, 'stopped session')} more: pxctl kernel list --all")


def _in_order(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    latest_first = sorted(kernels, key=lambda kernel: str(kernel.get("last_used") or ""), reverse=True)
    return sorted(latest_first, key=_is_off)


def _is_off(kernel: dict[str, Any]) -> bool:
    return kernel.get("state") == "stopped"


def _latest(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    on = [kernel for kernel in kernels if not _is_off(kernel)]
    return on + [kernel for kernel in kernels if _is_off(kernel)][:_STOPPED_SHOWN]


def _row(kernel: dict[str, Any], now: float) -> list[Cell]:
    state = str(kernel.get("state") or "?")
    failed = state == "failed"
    return [
        Cell(str(kernel.get("id"))),
        Cell(state, BY_STATE.get(state)),
        Cell(_text(kernel.get("pid"))),
        Cell(_text(kernel.get("queued"))),
        Cell("" if kernel.get("rss_bytes") is None else output.size(kernel["rss_bytes"])),
        Cell("" if kernel.get("last_used") is None else output.ago(kernel["last_used"], now)),
        Cell(_text(kernel.get("cwd"))),
        Cell(_text(kernel.get("interpreter"))),
        Cell(_text(kernel.get("backend"))),
        Cell(failure_words(kernel) if failed else _text(kernel.get("reason")), "red" if failed else None),
    ]


def _text(value: object) -> str:
    return str(value) if value else ""


_FACTS = (
    "state", "reason", "pid", "running", "queued", "cwd", "interpreter", "kernelspec", "language", "backend",
    "owner", "restarts", "start_method", "cold_start_ms", "connection_file", "jupyter_id",
)  # fmt: skip


@declare("show", effect=READS, examples=["pxctl kernel show default", "pxctl kernel show default-3fa9c1 --json"])
@_name
@_which
def show_kernel(invocation: Invocation, kernel: str, cwd: str | None) -> None:
    """Show one session: state, process, folder, interpreter, what runs in it."""
    invocation.action = f"show {kernel}"
    answer = find_kernel(invocation.client(), kernel, cwd=cwd)
    document = answer.document
    if invocation.told(answer, [document.get("id")]):
        return
    facts = [("unit", str(document.get("unit")))]
    facts += [(name.replace("_", " "), str(document[name])) for name in _FACTS if document.get(name)]
    if failed := failure_words(document):
        facts.append(("failure", failed))
    for name in ("started_at", "last_used"):
        if document.get(name):
            facts.append((name.replace("_", " "), output.ago(document[name], invocation.now())))
    if document.get("rss_bytes"):
        facts.append(("memory", output.size(document["rss_bytes"])))
    facts += [("notice", str(notice)) for notice in document.get("notices") or []]
    print_facts(invocation, facts)


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
def start_session(
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
    name = bare_name("kernel", name)
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
        answer = client.ask("POST", "/api/kernels", content=content, timeout=None)
        if invocation.json:
            invocation.document(answer)
        else:
            invocation.say_all(_explanation(answer.document, invocation.paint))
        return

    from pxctl.cells import Progress, start_kernel

    progress = Progress(invocation, f"kernel:{name}")
    try:
        with progress:
            kernel = start_kernel(client, content, progress)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: detached; kernel:{name} goes on starting")
        raise Silent(FAILED) from None
    if not invocation.told(kernel, [kernel.get("id")]):
        pid = f" (pid {kernel['pid']})" if kernel.get("pid") else ""
        invocation.say(f"{kernel.get('unit')} {kernel.get('state')}{pid}")
        progress.conclude(kernel)


def _explanation(document: dict[str, Any], paint: Paint) -> Iterator[str]:
    """Yield the lines of a px.kernel-explanation/1 document."""
    yield f"in {clean(str(document.get('cwd')))}"
    if document.get("kernelspec"):
        yield f"by the kernelspec {clean(str(document['kernelspec']))}"
    for candidate in document.get("candidates") or []:
        yield from _candidate(candidate, paint)
    if document.get("failure"):
        yield paint("none can be taken:", "red") + f" {clean(str(document['failure']))}"
    if document.get("overlay"):
        yield f"with ipykernel from {clean(str(document['overlay']))}"
    yield from _environment(document.get("environment") or {})
    if modules := document.get("modules"):
        yield f"modules: {', '.join(_module_name(module) for module in modules)}"


def _candidate(candidate: dict[str, Any], paint: Paint) -> Iterator[str]:
    taken = candidate.get("taken")
    mark = paint("✓ taken", "green") if taken else paint("  not taken", "dim")
    version = f" ({candidate['version']})" if candidate.get("version") else ""
    path = clean(str(candidate.get("path")))
    detail = clean(str(candidate.get("detail") or candidate.get("reason")))
    yield f"{mark}  {candidate.get('source')}: {path}{version} {detail}"
    if candidate.get("remedy"):
        yield f"      remedy: {clean(str(candidate['remedy']))}"


def _environment(environment: dict[str, Any]) -> Iterator[str]:
    if passed := environment.get("passed"):
        yield f"environment passed: {', '.join(clean(str(name)) for name in passed)}"
    by_reason: dict[str, list[str]] = {}
    for dropped in environment.get("dropped") or []:
        by_reason.setdefault(str(dropped.get("why")), []).append(clean(str(dropped.get("name"))))
    for why, names in by_reason.items():
        yield f"environment dropped, {clean(why)}: {', '.join(names)}"


def _module_name(module: Any) -> str:
    return clean(str(module.get("path") or module.get("name")) if isinstance(module, dict) else str(module))


@declare(
    "stop",
    effect="modifying: ends the kernel's whole process tree; its variables are lost",
    examples=["pxctl kernel stop default", "pxctl kernel stop 'work*'", "pxctl kernel stop default --cwd ~/other"],
)
@_names
@_which
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the stop is under way.")
def stop_kernels(
    invocation: Invocation,
    kernels: tuple[str, ...],
    cwd: str | None,
    timeout: float | None,
    no_wait: bool,
) -> int:
    """Stop the kernels of sessions; returns when nothing of them is left.

    The session stays in the list, and its history can be exported; the next call starts a fresh kernel.
    """
    return _steer(invocation, "stop", kernels, cwd, timeout, wait=not no_wait)


@declare(
    "restart",
    effect="modifying: replaces the kernel by a new one; its variables are lost",
    examples=["pxctl kernel restart default", "pxctl kernel restart 'work*'"],
)
@_names
@_which
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
def restart_kernels(invocation: Invocation, kernels: tuple[str, ...], cwd: str | None, timeout: float | None) -> int:
    """Replace the kernels of sessions; returns when the new ones are ready. Forgets a hard failure.

    A running cell is cut off; calls that wait in line are run by the new kernel.
    """
    return _steer(invocation, "restart", kernels, cwd, timeout, wait=True)


def _steer(
    invocation: Invocation, verb: str, kernels: tuple[str, ...], cwd: str | None, timeout: float | None, *, wait: bool
) -> int:
    invocation.action = f"{verb} {', '.join(kernels)}"
    client = invocation.client()
    return steer(invocation, client, verb, kernel_units(client, kernels, cwd=cwd), timeout, wait=wait)


_WITHOUT_PROCESS = {"stopped", "failed"}


@declare(
    "interrupt",
    effect="modifying: interrupts the running cell; asked again, its kernel may be killed",
    examples=[
        "pxctl kernel interrupt default",
        "pxctl kernel interrupt default   # again: the next, harder step",
        "pxctl kernel interrupt 'work*'",
    ],
)
@_names
@_which
def interrupt_kernels(invocation: Invocation, kernels: tuple[str, ...], cwd: str | None) -> int:
    """Interrupt the running cells of sessions, as Ctrl-C does. Exits 3 where there is no process to interrupt.

    Where it does not yield, the next steps follow by themselves, or at once when asked again: a second interrupt,
    then the kernel is terminated, then killed, and its variables are lost.
    """
    invocation.action = f"interrupt {', '.join(kernels)}"
    client = invocation.client()
    units = kernel_units(client, kernels, cwd=cwd)
    outcomes = one_by_one(invocation, "interrupt", units, lambda unit: _interrupt(client, unit))
    if any(map(is_glob, kernels)):
        # A pattern means what runs of it; only where nothing does, that is said.
        running = [one for one in outcomes if one.failure is None or one.failure.kind != "inactive"]
        outcomes = running or outcomes

    def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
        return documents[0] if len(outcomes) == 1 else {"schema": "px.interrupts/1", "interrupts": documents}

    def say(_: Outcome, document: dict[str, Any]) -> None:
        if line := _line(document, quiet=invocation.quiet):
            invocation.say(line)

    return tell(invocation, outcomes, merged, say)


def _interrupt(client: Client, unit: str) -> dict[str, Any]:
    document: dict[str, Any] = client.ask("POST", route("kernel", unit, "interrupt")).document
    is_idle = not document.get("running") and not document.get("steps")
    if is_idle and document.get("state") in _WITHOUT_PROCESS:
        raise Failure(
            f"it is {document['state']}: there is no process to interrupt",
            kind="inactive",
            unit=unit,
            hint=f"pxctl kernel start {unit.partition(':')[2]}",
            exit_code=INACTIVE,
        )
    return document


def _line(document: dict[str, Any], *, quiet: bool) -> str:
    """Return what came of one interrupt; of a quiet one only the cell, if one ran."""
    running, taken = document.get("running"), document.get("steps") or []
    if quiet:
        return str(running or "")
    steps = ", ".join(str(step.get("action")) for step in taken)
    told = "".join(f": {step['detail']}" for step in taken if step.get("detail"))
    what = f"cell {running}: {steps or 'asked to end'}" if running else f"no cell is running{told}"
    return f"kernel:{document.get('kernel')} {what}"


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
@_name
@_which
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
def attach_kernel(invocation: Invocation, kernel: str, cwd: str | None, only_print: bool) -> None:
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


_CODE_CELLS = 200
"""What is shown of a cell's code at most; the notebook of the session has all of it."""
_cells_COLUMNS = [
    Column("CELL"),
    Column("N", rank=5, right=True),
    Column("STATUS", rank=1),
    Column("TOOK", rank=4, right=True),
    Column("OUTPUT", rank=3, right=True),
    Column("WHEN", rank=6),
    Column("CODE", rank=2, minimum=16),
]


@declare("cells", effect=READS, examples=["pxctl kernel cells default", "pxctl kernel cells default -n 5 --json"])
@_name
@click.option("-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help="The latest N only.")
@_which
def list_cells(invocation: Invocation, kernel: str, limit: int | None, cwd: str | None) -> None:
    """List what a session ran, oldest first: status, duration, bytes printed, code."""
    invocation.action = f"list the cells of {kernel}"
    client = invocation.client()
    answer = client.get(route("kernel", kernel_id(client, kernel, cwd=cwd), "cells"))
    cells = answer.document.get("cells", [])
    shown = cells if limit is None else cells[-limit:]
    if invocation.json:
        invocation.write(json.dumps({**answer.document, "cells": shown}, ensure_ascii=False) + "\n")
    elif invocation.quiet:
        for cell in shown:
            invocation.say(str(cell.get("id")))
    elif shown:
        print_table(invocation, _cells_COLUMNS, [_cells_row(cell, invocation.now()) for cell in shown])
    else:
        invocation.notice("it ran nothing yet")


def _cells_row(cell: dict[str, Any], now: float) -> list[Cell]:
    status = str(cell.get("status"))
    code = cut(" ".join(str(cell.get("code") or "").split()), _CODE_CELLS)
    title = f"{cell['title']}: " if cell.get("title") else ""
    count = cell.get("execution_count")
    return [
        Cell(str(cell.get("id"))),
        Cell("" if count is None else str(count)),
        Cell(status, BY_STATE.get(status)),
        Cell("" if cell.get("duration_seconds") is None else output.duration(cell["duration_seconds"])),
        Cell(output.size(cell.get("total_bytes"))),
        Cell(output.ago(cell.get("started_at"), now)),
        Cell(title + code),
    ]


_LAST = "last"


@declare(
    "output",
    effect=READS,
    examples=[
        "pxctl kernel output default last",
        "pxctl kernel output default 78482cbaa9dada8c --stream stderr",
        "pxctl kernel output default last --offset 65536 --limit 4096",
    ],
)
@_name
@click.argument("cell", metavar="CELL|last")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only one of the two; else both, as they came.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N bytes; else all there are.")
@_which
def print_output(
    invocation: Invocation,
    kernel: str,
    cell: str,
    stream: str | None,
    offset: int,
    limit: int | None,
    cwd: str | None,
) -> None:
    """Print what a cell printed: all of it, also what an answer had cut; byte for byte on a pipe."""
    from pxctl.follow import pages, print_pages

    invocation.action = f"read the output of {kernel}"
    client = invocation.client()
    found = kernel_id(client, kernel, cwd=cwd)
    cell = _last_cell(client, found) if cell == _LAST else cell
    target = route("kernel", found, f"cells/{quote(cell)}/output")
    found_pages = pages(client, target, [("stream", stream)], offset, limit)
    place = {"schema": "px.cell-output/1", "kernel": found, "cell": cell}
    print_pages(invocation, found_pages, offset, place)


def _last_cell(client: Client, kernel: str) -> str:
    cells = client.get(route("kernel", kernel, "cells")).document.get("cells", [])
    if not cells:
        raise Failure("it ran nothing yet", kind="unknown_unit", exit_code=UNKNOWN_UNIT, unit=f"kernel:{kernel}")
    return str(cells[-1].get("id"))


_EXPORT_SECONDS = 300.0


@declare(
    "export",
    effect="modifying: writes the file that -o names, and nothing else",
    examples=["pxctl kernel export default -o session.ipynb", "pxctl kernel export default > session.ipynb"],
)
@_name
@click.option(
    "-o", "--output", "target", metavar="FILE", type=click.Path(dir_okay=False), help="Where to; else to stdout."
)
@_which
def export_kernel(invocation: Invocation, kernel: str, target: str | None, cwd: str | None) -> None:
    """Write what a session ran, with its outputs, as a notebook (nbformat 4.5). A stopped session has one, too."""
    from pxctl.answers import write_whole

    invocation.action = f"export {kernel}"
    client = invocation.client()
    found = kernel_id(client, kernel, cwd=cwd)
    with client.open(
        "GET", route("kernel", found, "notebook"), fields={"Accept": "*/*"}, timeout=_EXPORT_SECONDS
    ) as exchange:
        if target is None:
            for chunk in exchange.chunks():
                invocation.write(chunk)
            invocation.write("\n")
            return
        size = write_whole(target, exchange.chunks())
    if invocation.json:
        invocation.document(
            {"schema": "px.saved/1", "path": target, "size_bytes": size, "content_type": "application/x-ipynb+json"}
        )
    else:
        invocation.notice(f"saved {target} ({output.size(size)})")


_specs_COLUMNS = [
    Column("NAME", minimum=10),
    Column("LANGUAGE", rank=1),
    Column("DISPLAY NAME", rank=2, minimum=12),
    Column("COMMAND", rank=3, minimum=16),
]


@declare("specs", effect=READS, examples=["pxctl kernel specs", "pxctl kernel specs --json"])
def list_specs(invocation: Invocation) -> None:
    """List the kernelspecs that the daemon finds; --json is Jupyter's own document."""
    invocation.action = "list the kernelspecs"
    answer = invocation.client().get("/api/kernelspecs")
    found = answer.document.get("kernelspecs") or {}
    if invocation.told(answer, (name for name in found)):
        return
    rows = []
    for name, entry in found.items():
        spec = entry.get("spec") or {}
        is_default = " (default)" if name == answer.document.get("default") else ""
        command_line = " ".join(map(str, spec.get("argv") or []))
        rows.append(
            [
                Cell(f"{name}{is_default}"),
                Cell(str(spec.get("language") or "")),
                Cell(str(spec.get("display_name") or "")),
                Cell(command_line),
            ]
        )
    print_table(invocation, _specs_COLUMNS, rows)
