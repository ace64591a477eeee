"""`pxctl exec`: run cells in a session's kernel and show what comes of them.

What was given is sent as it stands; the daemon splits scripts and reads notebooks. No byte of
output is left out and none is given twice, whatever happens to the connection. Ctrl-C reaches the
cell of this call only: while no cell of ours runs it closes the connection, which takes the call
out of line.

stdout gets what the cells print there and the text of results on lines of their own; everything
else goes to stderr. A picture is saved and named, and drawn where the terminal can.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from pxctl import output
from pxctl.app import (
    Invocation,
    declare,
    interpreters,
    kernel_names,
    no_autostart_option,
    root,
    timeout_option,
)
from pxctl.client import Client, Document, Exit, Failure, bare_name, query, route, usage
from pxctl.coerce import read_argument
from pxctl.streams import (
    STREAMS,
    Patience,
    Screen,
    bytes_of,
    harmless,
    pages,
    stream,
    waking_client,
)

_PAUSE_SECONDS = 0.1
# the Ctrl-C at which the client goes away: the interrupt ladder has four rungs, and goes on by
# itself
_LEAVE_AT = 4
_EXAMPLE = "pxctl exec 'print(1 + 1)', or pxctl exec -f FILE, or … | pxctl exec"
_SVG = "image/svg+xml"
_PICTURES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    _SVG: "svg",
    "application/pdf": "pdf",
}
_TAGS = re.compile(r"<(style|script)\b.*?</\1\s*>|<[^<>]*>", re.DOTALL | re.IGNORECASE)
# Errors of which the daemon's sentence says more than their name.
_MORE_TO_TELL = frozenset(
    {"KernelDied", "KernelStopped", "ResourceLimitExceeded", "StdinNotImplementedError"}
)
_KEEP_SECONDS, _OURS = 7 * 86400.0, re.compile(r"[0-9a-f]{16}-\d+\.\w+")


# -- the call --------------------------------------------------------------------------------------


def choice_options(function: Any) -> Any:
    for option in (
        click.option(
            "--backend",
            type=click.Choice(["direct", "gateway-local", "gateway-external"]),
            help="Default: from the settings.",
        ),
        click.option(
            "--kernelspec", metavar="NAME", help="An installed kernelspec, for any language."
        ),
        click.option(
            "--interpreter",
            metavar="PATH",
            shell_complete=interpreters,
            help="Python, environment folder, or 'managed'.",
        ),
        click.option(
            "--cwd",
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="Folder (default: this one).",
        ),
    ):
        function = option(function)
    return function


def callers_environment(invocation: Invocation) -> dict[str, str]:
    """Return what decides between interpreters; nothing else of the caller's environment is
    sent.
    """
    return {
        key: value
        for key in ("VIRTUAL_ENV", "CONDA_PREFIX", "PATH")
        if (value := invocation.env.get(key))
    }


def _read_source(
    invocation: Invocation, code: str | None, file: str | None, bash: bool
) -> tuple[str, str, bool]:
    """Return what is to be run: the member of the request (code, script, notebook), its text,
    whether bash runs it.
    """
    if code is not None and file is not None:
        raise usage("CODE and -f exclude each other", "pxctl exec -f FILE")
    if file is None and code not in {None, "-"}:
        return "code", str(code), bash
    is_stdin = file in {None, "-"}
    if is_stdin and code is None and invocation.in_is_terminal:
        raise usage("there is nothing to run", _EXAMPLE)
    try:
        text = read_argument("-" if is_stdin else f"@{file}").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage(f"cannot read {'stdin' if is_stdin else file}: it is no UTF-8 text") from error
    if is_stdin and not text.strip():
        raise usage("there is nothing to run: stdin is empty", _EXAMPLE)
    ending = Path(file or "").suffix.lower()
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
        """Yield what happens up to `done`.

        Raises Failure: the call never ran, or was cut off before its first cell.
        """
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
        match event["event"]:
            case "cell_started":
                self._cell, self.kernel, self._counts = (
                    event["id"],
                    event["kernel"],
                    dict.fromkeys(STREAMS, 0),
                )
            case "output":
                self._counts[event["stream"]] += len(bytes_of(event))
            case "cell_done":
                if sum(self._counts.values()) < event["cell"].get("total_bytes", 0):
                    yield from self._rest(event["cell"]["id"])
                self._done.append(event["cell"])
                self._cell = None
        yield event

    def _rest(self, cell_id: str) -> Iterator[Document]:
        target = route("kernel", self.kernel, f"cells/{cell_id}/output")
        for name in STREAMS:
            for content, end, _ in pages(self._client, target, name, self._counts[name]):
                self._counts[name] = end
                if content:
                    yield {"event": "output", "id": cell_id, "stream": name, "bytes": content}

    def _resumed(self, cell_id: str, failure: Failure) -> Iterator[Document]:
        """Yield the rest of a cell that goes on while its stream broke off, then what is known
        of the call.
        """
        patience, row = Patience(), dict[str, Any]()
        patience.bear(failure)
        yield {
            "event": "notice",
            "text": "the daemon's control plane was replaced; the cell goes on",
        }
        while row.get("status", "running") == "running":
            try:
                cells = self._asking.get(route("kernel", self.kernel, "cells"))["cells"]
                row = next((cell for cell in cells if cell["id"] == cell_id), {"status": "lost"})
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
            message = (
                f"The cell ended ({status}) while the control plane was replaced; later ones were "
                "not run."
            )
            status = "aborted" if status == "ok" else status
        facts = {"variables": row.get("variables") or "kept", "status": status, "message": message}
        yield {"event": "done", "result": {"kernel": self.kernel, "cells": self._done, **facts}}

    def _interrupt(self, *_: object) -> None:
        """Interrupt the cell that runs; again: the next rung.

        Runs between two instructions of the main thread.
        """
        self.presses += 1
        if self._cell is None or self.presses >= _LEAVE_AT:
            raise KeyboardInterrupt
        # the stream tells what became of the cell; the next Ctrl-C asks again
        with contextlib.suppress(Failure):
            self._asking.ask(
                "POST", query(route("kernel", self.kernel, "interrupt"), [("cell", self._cell)])
            )


@declare(root, "exec")
@click.argument("code", metavar="[CODE|-]", required=False)
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Run x.py, x.ipynb or x.sh.",
)
@click.option(
    "--kernel",
    default="default",
    metavar="NAME",
    shell_complete=kernel_names,
    help="The session (default).",
)
@timeout_option("Limit of the whole call, 1 to 600 (exit 7; default 30).")
@click.option("--reset", is_flag=True, help="Replace the kernel first: no variables.")
@click.option("--per-call", is_flag=True, help="A kernel of its own, gone afterwards.")
@click.option("--bash", is_flag=True, help="Shell instead of Python; exits with the shell's code.")
@choice_options
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Save the notebook.",
)
@no_autostart_option
def run_cells(
    invocation: Invocation,
    code: str | None,
    file: str | None,
    kernel: str,
    cwd: str | None,
    bash: bool,
    **asked: Any,
) -> int:
    """Run code in a kernel that keeps its variables.

    The session is named by --kernel and the folder. Without CODE, or with -, the code comes from
    stdin. On a pipe, stdout gets exactly what the cells print, and results as lines. Ctrl-C
    interrupts the cell; again, harder. Exits 1 when a cell fails, with N after sys.exit(N), 7 when
    the time is over.

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
        raise usage(
            "--interpreter and --kernelspec name what runs Python cells, and shell cells run in "
            "bash"
        )
    client = waking_client(invocation)
    body = {
        member: text,
        "cwd": str(Path(cwd or ".").absolute()),
        "environ": callers_environment(invocation),
        **asked,
    }
    body["language"] = "bash" if is_shell else None
    if member == "script" and file not in {None, "-"}:
        body["file"] = str(Path(str(file)).absolute())

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
            detail, hint = (
                f"cancelled; what runs of it is being ended{variables}",
                f"pxctl kernel show {name}",
            )
            raise Failure(detail, kind="cancelled", unit=f"kernel:{name}", hint=hint) from None
    if invocation.json:
        invocation.print_json(result)
    else:
        screen.conclude(result)
    if target and isinstance(result.get("notebook"), str):
        output.write_whole(target, [result["notebook"].encode("utf-8", "surrogatepass")])
        invocation.notice(f"pxctl: saved {target}")
    if result.get("status") == "ok":
        if result.get("message"):  # `exit()` ends the session, for one
            invocation.notice(f"pxctl: {result['message']}")
        return Exit.OK
    failure = _failure_of(result, f"kernel:{name}", cancelled=call.presses > 0)
    is_told = screen.has_shown_error and screen.count <= 1 and _is_plain_failure(result)
    if invocation.json or (is_told and not (asked["per_call"] and not is_shell)):
        return failure.exit_code
    raise failure


def _failed_cell(result: Document) -> Document:
    for cell in result.get("cells") or []:
        if cell["status"] != "ok" and not cell.get("error_allowed"):
            return dict(cell)
    return {}


def _is_plain_failure(result: Document) -> bool:
    """Say whether a traceback tells all: an exception of the code, after which the session is as
    it was.
    """
    error = _failed_cell(result).get("error") or {}
    if result.get("status") != "error" or error.get("name") in _MORE_TO_TELL:
        return False
    return error.get("name") == "ExitCode" or result.get("variables") != "lost"


def _failure_of(result: Document, unit: str, *, cancelled: bool) -> Failure:
    status, hint = result.get("status"), None
    code = Exit.TIMED_OUT if status == "timed_out" else Exit.FAILED
    cell = _failed_cell(result)
    error: Document = cell.get("error") or {"name": None, "value": ""}
    if error["name"] in {"ResourceLimitExceeded", "KernelDied"}:
        code = Exit.LIMIT_EXCEEDED if error["name"] == "ResourceLimitExceeded" else code
        hint = f"pxctl why kernel:{result['kernel']}"
    elif error["name"] == "KernelUnresponsive":  # a longer time would not help
        hint = f"pxctl kernel restart {result['kernel']}"
    elif cell.get("exit_code"):
        code = cell["exit_code"]  # as ssh and docker exec do
    elif (
        error["name"] == "ExitCode" and error["value"].isdecimal() and 0 < int(error["value"]) < 256
    ):
        code = int(error["value"])
    elif status == "timed_out":
        hint = "give it longer: pxctl exec --timeout S"
    message = result.get("message") or f"the cell ended with status {status}"
    kind = "cancelled" if cancelled and status == "cancelled" else f"cell_{status}"
    failure = Failure(message, kind=kind, exit_code=code, unit=unit, hint=hint)
    failure.action = ""  # it ran
    return failure


# -- what is shown ---------------------------------------------------------------------------------


def words_of(bundle: Mapping[str, Any], *, indent: int | None = None) -> str:
    if "application/json" in bundle:
        return json.dumps(bundle["application/json"], ensure_ascii=False, indent=indent)
    order = ("text/markdown", "text/plain", "text/html", "text/latex")
    mime = next((mime for mime in order if mime in bundle), "")
    text = str(bundle.get(mime, ""))
    if mime == "text/html":
        return "\n".join(filter(None, map(str.strip, _TAGS.sub(" ", text).splitlines())))
    return text


def save_picture(env: Mapping[str, str], name: str, mime: str, content: bytes) -> Path:
    """Write a picture into the private folder under PX_HOME, or the user's cache; what is a week
    old goes.
    """
    if home := env.get("PX_HOME"):
        folder = Path(home).expanduser().absolute() / "pictures"
    else:
        folder = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pxd" / "pictures"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in folder.iterdir():
        if _OURS.fullmatch(other.name) and other.lstat().st_mtime < time.time() - _KEEP_SECONDS:
            other.unlink(missing_ok=True)
    path = folder / f"{name}.{_PICTURES[mime]}"
    output.write_whole(path, [content])
    return path


def drawn(env: Mapping[str, str], mime: str, content: bytes) -> str:
    """Return what draws a picture, by the protocol of iTerm2 or of kitty; empty where the
    terminal knows neither.
    """
    if not content:
        return ""  # kitty would take all that is printed later for the rest of the picture
    encoded = binascii.b2a_base64(content, newline=False).decode()
    if env.get("TERM_PROGRAM") in {"iTerm.app", "WezTerm"}:
        return f"\x1b]1337;File=inline=1;size={len(content)}:{encoded}\x07\n"
    if mime != "image/png" or not ("KITTY_WINDOW_ID" in env or env.get("TERM") == "xterm-ghostty"):
        return ""
    pieces = [encoded[at : at + 4096] for at in range(0, len(encoded), 4096)]
    more = [f"m={int(piece is not pieces[-1])};{piece}\x1b\\" for piece in pieces]
    return "\x1b_Ga=T,f=100," + "\x1b_G".join(more) + "\n"


class CellScreen(Screen):
    """Shows the events of a call for cells, and those of a kernel's start."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        super().__init__(invocation, unit)
        self._updates: dict[str, Document] = {}  # the last one of each display
        self._pictures = self.count = 0
        self.has_shown_error = False

    def show(self, event: Document) -> None:
        match event["event"]:
            case "cell_started":
                self.count, self.has_shown_error, self._pictures, self._updates = (
                    event["count"],
                    False,
                    0,
                    {},
                )
                if self.count > 1:
                    self.say(f"[{event['index'] + 1}/{self.count}] {event['title'] or ''}", "bold")
                self.wait("running…")
            case "output":
                self.put(event["stream"], bytes_of(event))
            case "display" | "result" if event.get("update") and event.get("display_id"):
                self._updates[event["display_id"]] = event
            case "display" | "result":
                self._show_bundle(event["id"], event["data"])
            case "error":
                self._show_error(event["traceback"])
            case "cell_done":
                self._end(event["cell"])
            case "rung":
                self.say(f"pxctl: ending the cell: {event['action']}", "yellow")
            case "notice":
                self.say_once(event["text"])
                self.wait(self.phase)  # goes on below what was said
            case "preparing":
                self.wait(f"{event['text']}…")
            case "queued":
                self.wait(f"waiting in line ({event['position']})…")
            case "starting":
                self.wait("starting the kernel…")

    def conclude(self, result: Document) -> None:
        for document in [*(result.get("cells") or []), result]:
            for text in document.get("notices") or []:
                self.say_once(text)

    def _end(self, cell: Document) -> None:
        for event in self._updates.values():
            self._show_bundle(event["id"], event["data"])
        status, error = cell["status"], cell.get("error")
        if (
            error
            and not self.has_shown_error
            and status == "error"
            and cell.get("exit_code") is None
        ):
            # no traceback: a shell's code, a death
            self._show_error([f"{error['name']}: {error['value']}"])
        self.close_lines()
        if self.count > 1:
            word = "✓" if status == "ok" else f"✗ {status.replace('_', ' ')}"
            self.say(
                f"{word} {output.duration(cell.get('duration_seconds'))}",
                output.BY_STATE.get(status),
            )

    def _show_bundle(self, cell_id: str, bundle: Document) -> None:
        if text := words_of(bundle, indent=2 if self.out.is_terminal else None):
            self.put("stdout", b"")
            self.out.put_lines(text)
        for mime in [mime for mime in _PICTURES if mime in bundle][:1]:
            content = str(bundle[mime]).encode("utf-8", "surrogatepass")
            self._pictures += 1
            try:
                content = content if mime == _SVG else binascii.a2b_base64(content)
                path = save_picture(
                    self.invocation.env, f"{cell_id}-{self._pictures}", mime, content
                )
                self.say(f"pxctl: {mime} ({output.size(len(content))}) saved: {path}")
                output.write(
                    drawn(self.invocation.env, mime, content) if self.out.is_terminal else b""
                )
            except (OSError, ValueError) as error:  # a full disk, or what is no base64
                self.say(f"pxctl: {mime} not saved: {error}")

    def _show_error(self, lines: list[str]) -> None:
        if lines:
            self.has_shown_error = True
            self.close_lines()
            self.err.put_lines(harmless("\n".join(lines), colour=self.invocation.err_has_colour))
