"""`pxctl exec`: run cells in a session's kernel and show what comes of them.

What was given is sent as it stands; the daemon splits scripts and reads notebooks. No byte of output is left out and
none is given twice, whatever happens to the connection. Ctrl-C reaches the cell of this call only: while no cell of
ours runs it closes the connection, which takes the call out of line.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pxctl import output
from pxctl.app import declare, kernel_names, no_autostart_option, root, waking_client
from pxctl.cells import CellScreen
from pxctl.client import Client, Document, Exit, Failure, bare_name, query, route, usage
from pxctl.coerce import read_argument
from pxctl.commands.kernel import callers_environment, choice_options
from pxctl.invocation import Invocation
from pxctl.streams import STREAMS, Patience, bytes_of, pages, stream

_PAUSE_SECONDS = 0.1
_LEAVE_AT = 4  # the Ctrl-C at which the client goes away: the interrupt ladder has four rungs, and goes on by itself
_EXAMPLE = "pxctl exec 'print(1 + 1)', or pxctl exec -f FILE, or … | pxctl exec"


def _read_source(invocation: Invocation, code: str | None, file: str | None, bash: bool) -> tuple[str, str, bool]:
    """Return what is to be run: the member of the request (code, script, notebook), its text, whether bash runs it."""
    if code is not None and file is not None:
        raise usage("CODE and -f exclude each other", "pxctl exec -f FILE")
    if file is None and code not in {None, "-"}:
        return "code", str(code), bash
    is_stdin, ending = file in {None, "-"}, Path(file or "-").suffix.lower()
    if is_stdin and code is None and invocation.in_is_terminal:
        raise usage("there is nothing to run", _EXAMPLE)
    where = "stdin" if is_stdin else str(file)
    try:
        text = (read_argument("-") if is_stdin else Path(where).read_bytes()).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise usage(f"cannot read {where}: {why}", f"ls -l {where}") from error
    if is_stdin and not text.strip():
        raise usage("there is nothing to run: stdin is empty", _EXAMPLE)
    if bash or ending in {".sh", ".bash"}:
        return "code", text, True
    members = {".ipynb": "notebook", ".py": "script", "": "code" if file is None else "script"}
    return members.get(ending, "code"), text, False


class CellCall:
    """A call on its way, to which Ctrl-C belongs from now on."""

    def __init__(self, client: Client, name: str, body: Document) -> None:
        self._client, self._name, self._body = client, name, body
        self._asking = Client(client.path)  # without a spinner, which would draw into the output
        self._cell: str | None = None
        self._counts = dict.fromkeys(STREAMS, 0)  # of bytes that the cell printed
        self._done: list[Document] = []
        self.presses, self.kernel = 0, name
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            # A shell has its background jobs ignore the Ctrl-C that is meant for others.
            signal.signal(signal.SIGINT, self._interrupt)

    def events(self) -> Iterator[Document]:
        """Yield what happens up to `done`. Raises Failure: the call never ran, or was cut off before its first cell."""
        target = route("kernel", self._name, "execute")
        try:
            for _, event in stream(self._client, "POST", target, content=self._body, timeout=None):
                yield from self._noted(event)
        except Failure as failure:
            if self._cell is None:
                raise
            yield from self._resumed(self._cell, failure)

    def _noted(self, event: Document) -> Iterator[Document]:
        """Yield the event, and before the end of a cell what the stream left out of it."""
        self.kernel = str(event.get("kernel") or (event.get("result") or {}).get("kernel") or self.kernel)
        match event.get("event"):
            case "cell_started":
                self._cell, self._counts = str(event.get("id")), dict.fromkeys(STREAMS, 0)
            case "output":
                self._counts["stderr" if event.get("stream") == "stderr" else "stdout"] += len(bytes_of(event))
            case "cell_done":
                cell = event.get("cell") or {}
                if sum(self._counts.values()) < int(cell.get("total_bytes") or 0):
                    yield from self._rest(str(cell.get("id")))
                self._done.append(cell)
                self._cell = None
        yield event

    def _rest(self, cell_id: str) -> Iterator[Document]:
        target = route("kernel", self.kernel, f"cells/{cell_id}/output")
        for name in STREAMS:
            for page in pages(self._client, target, name, self._counts[name]):
                self._counts[name] = page.end
                if page.content:
                    yield {"event": "output", "id": cell_id, "stream": name, "bytes": page.content}

    def _resumed(self, cell_id: str, failure: Failure) -> Iterator[Document]:
        """Yield the rest of a cell that goes on while its stream broke off, then what is known of the call."""
        patience, row = Patience(met=True), dict[str, Any]()
        patience.bear(failure)
        yield {"event": "notice", "text": "the daemon's control plane was replaced; the cell goes on"}
        while row.get("status", "running") == "running":
            try:
                cells = self._asking.get(route("kernel", self.kernel, "cells")).get("cells", [])
                row = next((cell for cell in cells if cell.get("id") == cell_id), {"status": "lost"})
                patience.met()
                yield from self._rest(cell_id)
                time.sleep(_PAUSE_SECONDS)
            except Failure as another:
                patience.bear(another)
        self._cell = None
        self._done.append(row)
        yield {"event": "cell_done", "cell": row}
        status, message = str(row.get("status")), None
        if status != "ok" or "code" not in self._body:  # what was sent may have had more cells
            message = f"The cell ended ({status}) while the control plane was replaced; later ones were not run."
            status = "aborted" if status == "ok" else status
        facts = {"variables": row.get("variables") or "kept", "status": status, "message": message}
        yield {"event": "done", "result": {"kernel": self.kernel, "cells": self._done, **facts}}

    def _interrupt(self, *_: object) -> None:
        """Interrupt the cell that runs; again: the next rung. Runs between two instructions of the main thread."""
        self.presses += 1
        if self._cell is None or self.presses >= _LEAVE_AT:
            raise KeyboardInterrupt
        with contextlib.suppress(Failure):  # the stream tells what became of the cell; the next Ctrl-C asks again
            self._asking.ask("POST", query(route("kernel", self.kernel, "interrupt"), [("cell", self._cell)]))


@declare(root, "exec")
@click.argument("code", metavar="[CODE|-]", required=False)
@click.option("-f", "--file", metavar="FILE", type=click.Path(dir_okay=False), help="Run x.py, x.ipynb or x.sh.")
@click.option("--kernel", default="default", metavar="NAME", shell_complete=kernel_names, help="The session (default).")
@click.option("--timeout", type=float, metavar="S", help="Limit of the whole call, 1 to 600 (exit 7); else 30.")
@click.option("--reset", is_flag=True, help="Replace the kernel first: no variables.")
@click.option("--per-call", is_flag=True, help="A kernel of its own, gone afterwards.")
@click.option("--bash", is_flag=True, help="Shell instead of Python; exits with the shell's code.")
@choice_options
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(dir_okay=False), help="Save the notebook.")
@no_autostart_option
def run_cells(
    invocation: Invocation, code: str | None, file: str | None, kernel: str, cwd: str | None, bash: bool, **asked: Any
) -> int:
    """Run code in a kernel that keeps its variables for the next call.

    The session is named by --kernel and the folder. Without CODE, or with -, the code comes from stdin. On a pipe,
    stdout gets exactly what the cells print, and results as lines. Ctrl-C interrupts the cell; again, harder. Exits 1
    when a cell fails, 7 when the time is over.

    $ pxctl exec 'x = 6 * 7; print(x)'
    $ pxctl exec 'x + 1'                          # the same session: 43
    $ pxctl exec -f analysis.py --kernel work     # cells begin at # %%
    """
    name, target = bare_name("kernel", kernel), asked.pop("target")
    invocation.action = f"run kernel:{name}"
    member, text, is_shell = _read_source(invocation, code, file, bash)
    if target and member != "notebook":
        hint = "pxctl exec -f x.ipynb -o done.ipynb; the notebook of a session: pxctl kernel export"
        raise usage("--output saves an executed notebook, and none is run", hint)
    if is_shell and (asked["interpreter"] or asked["kernelspec"]):
        raise usage("--interpreter and --kernelspec name what runs Python cells, and shell cells run in bash")
    client = waking_client(invocation)
    body = {member: text, "cwd": str(Path(cwd or ".").absolute()), "environ": callers_environment(invocation), **asked}
    body["language"] = "bash" if is_shell else None

    result: Document = {}
    screen = CellScreen(invocation, f"kernel:{name}")
    call = CellCall(client, name, body)
    with screen:
        try:
            for event in call.events():
                if not invocation.json:
                    screen.show(event)
                result = event.get("result") or result
        except KeyboardInterrupt:
            variables = "" if is_shell else ", and variables are kept if it yields to an interrupt"
            detail, hint = f"cancelled; what runs of it is being ended{variables}", f"pxctl kernel show {name}"
            raise Failure(detail, kind="cancelled", unit=f"kernel:{name}", hint=hint) from None
    if invocation.json:
        invocation.print_json(result)
    else:
        screen.conclude(result)
    if target and isinstance(result.get("notebook"), str):
        output.write_whole(target, [result["notebook"].encode("utf-8", "surrogatepass")])
        invocation.notice(f"pxctl: saved {target}")
    elif member == "notebook":
        invocation.notice(f"pxctl: not saved; to keep the outputs: pxctl exec -f {file} -o FILE")
    failure = _failure_of(result, f"kernel:{name}", cancelled=call.presses > 0)
    if failure is None and result.get("message"):  # `exit()` ends the session, for one
        invocation.notice(f"pxctl: {result['message']}")
    if failure is None or invocation.json:
        return Exit.OK if failure is None else failure.exit_code
    if screen.has_shown_error and screen.count <= 1 and re.fullmatch(r"The cell failed \(\w+\)\.", failure.detail):
        return failure.exit_code  # the traceback said it
    raise failure


def _failure_of(result: Document, unit: str, *, cancelled: bool) -> Failure | None:
    status = str(result.get("status"))
    if status == "ok":
        return None
    cell: Document = next((each for each in result.get("cells") or [] if each.get("status") != "ok"), {})
    error = cell.get("error") or {}
    code, hint, value = Exit.TIMED_OUT if status == "timed_out" else Exit.FAILED, None, str(error.get("value"))
    if error.get("name") in {"ResourceLimitExceeded", "KernelDied"}:
        code = Exit.LIMIT_EXCEEDED if error["name"] == "ResourceLimitExceeded" else code
        hint = f"pxctl why kernel:{result.get('kernel')}"
    elif error.get("name") == "ExitCode" and value.isdecimal() and 0 < int(value) < 256:
        code = int(value)  # as ssh and docker exec do
    elif status == "timed_out":
        hint = "give it longer: pxctl exec --timeout S"
    message = str(result.get("message") or f"the cell ended with status {status}")
    kind = "cancelled" if cancelled and status == "cancelled" else f"cell_{status}"
    failure = Failure(message, kind=kind, exit_code=code, unit=unit, hint=hint)
    failure.action = ""  # it ran
    return failure
