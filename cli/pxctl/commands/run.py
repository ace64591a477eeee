"""`pxctl run`: run a tool; its answer is printed, made pretty, streamed item by item, or saved.

On a pipe the bytes go out as they came, with a newline at the end of JSON; a terminal never gets binary; a file is
there whole or not at all.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from pxctl import output
from pxctl.app import assignments, declare, no_autostart_option, root, timeout_option, tool_names, waking_client
from pxctl.client import SLACK_SECONDS, Client, Exchange, bare_name, query, route, split_lines
from pxctl.coerce import build_input, read_argument, read_json
from pxctl.failures import PROBLEM_PREFIX, Failure, raise_problem, usage
from pxctl.invocation import Invocation
from pxctl.streams import NDJSON

_COLD = {"cold", "starting", "failed"}
_JSON_LINES = {NDJSON, "application/ndjson", "application/jsonl"}
_OTHER_KINDS = {"pipe": "pxctl pipe run {}", "kernel": "pxctl exec --kernel {}"}


@declare(root, "run")
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=assignments)
@click.option("--input", "given", metavar="JSON|@FILE|-", help="The input; KEY=VALUE is put over it.")
@click.option("--stream", is_flag=True, help="Print the items as they come, one a line.")
@timeout_option("Give up after S seconds (exit 7).")
@click.option("--keep-alive", type=float, metavar="S", help="Keep it warm so long; 0 not at all, -1 for ever.")
@no_autostart_option
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(dir_okay=False), help="Save the answer.")
def run_tool(
    invocation: Invocation,
    tool: str,
    values: tuple[str, ...],
    given: str | None,
    stream: bool,
    timeout: float | None,
    keep_alive: float | None,
    no_autostart: bool,
    target: str | None,
) -> None:
    """Run a tool and print its JSON answer as it came (indented on a terminal).

    Values are coerced by the tool's input schema: n=5, xs=1,2,3, a.b=1; KEY:=JSON takes JSON as it stands.
    KEY=@FILE gives a file. Ctrl-C cancels the run.

    $ pxctl run compound-interest principal=1000 annual_rate=0.05 years=10
    $ pxctl run lorenz-ode-solver rho=28 --stream
    $ pxctl run lorenz-ode-solver plot=true -o lorenz.png
    """
    kind, _, rest = tool.partition(":")
    if kind in _OTHER_KINDS and rest:
        raise usage(f"{tool} is a {kind}, no tool", _OTHER_KINDS[kind].format(rest))
    name = bare_name("tool", tool)
    invocation.action = f"run tool:{name}"
    file = None if target is None else Path(target)
    if file is not None and not os.access(file.parent, os.W_OK):  # found out before the run: its answer would be lost
        detail, hint = f"cannot write {file}: no such folder, or no access", f"ls -ld {file.parent}"
        raise Failure(detail, kind="os_error", hint=hint)
    client = waking_client(invocation, no_autostart)
    verb, accept = ("stream", NDJSON) if stream else ("run", "*/*")
    place = query(route("tool", name, verb), [("timeout", timeout), ("keep_alive", keep_alive)])
    fields = {"Content-Type": "application/json", "Accept": accept}
    limit = None if timeout is None else timeout + SLACK_SECONDS
    try:
        body = _body(client, name, values, given)
        with (
            invocation.spinner(f"tool:{name}", _phase(invocation.socket_path, name)) as spinner,
            client.open("POST", place, body=body, fields=fields, timeout=limit) as exchange,
        ):
            if file is not None:
                _save(invocation, exchange, file, spinner)
            elif stream:
                _print_items(invocation, exchange, spinner)
            else:
                _print_answer(invocation, exchange, spinner)
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=f"tool:{name}") from None


def _body(client: Client, name: str, values: tuple[str, ...], given: str | None) -> bytes:
    """Return the body of the request. The schema is fetched only when there is something to coerce."""
    raw = b"{}" if given is None else read_argument(given)
    base = read_json(raw, "--input")
    if not values:
        return raw
    document = client.get(route("tool", name), keep=True)
    content = build_input(values, base, document.get("input_schema"))
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _phase(socket_path: str, name: str) -> Callable[[], str]:
    """Return what says "starting (cold)…" until the tool is up, then "running…"; it asks no more once it is up."""
    state: Any = None

    def phase() -> str:
        nonlocal state
        if state is None or state in _COLD:
            with contextlib.suppress(Failure):
                state = Client(socket_path).get(route("tool", name), timeout=0.5).get("state")
        return "starting (cold)…" if state in _COLD else "running…"

    return phase


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _print_answer(invocation: Invocation, exchange: Exchange, spinner: output.Spinner) -> None:
    """Print JSON once it is complete (a long one as it comes), indented on a terminal; anything else as it comes."""
    content_type = exchange.content_type
    is_text = content_type.startswith("text/") or content_type in {*_JSON_LINES, "application/xml"}
    if invocation.out_is_terminal and not (is_text or _is_json(content_type)):
        what = f"the tool answered with {content_type or 'bytes of no known type'}, which is not for a terminal"
        raise Failure(what, kind="binary_answer", hint="run it again with -o FILE")
    is_json, last = _is_json(content_type), b""
    pieces = [_pretty(exchange.read())] if is_json and invocation.out_is_terminal else exchange.chunks()
    for last in pieces:
        spinner.stop()
        output.write(last)
    if is_json and last and not last.endswith(b"\n"):
        output.write("\n")


def _pretty(raw: bytes) -> bytes:
    """Return JSON indented for people; what is not JSON in spite of its type stays as it is, without control codes."""
    try:
        text = json.dumps(json.loads(raw), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        text = "\n".join(output.clean(line) for line in raw.decode("utf-8", "replace").splitlines())
    return (text + "\n").encode("utf-8", "backslashreplace")


def _print_items(invocation: Invocation, exchange: Exchange, spinner: output.Spinner) -> None:
    """Print the items of a stream, one a line, each as it comes. An item that is a problem ends the run with it."""
    if exchange.content_type not in _JSON_LINES:
        _print_answer(invocation, exchange, spinner)
        return
    for line in filter(bytes.strip, split_lines(exchange.chunks())):
        if PROBLEM_PREFIX.encode() in line[:200]:
            with contextlib.suppress(ValueError):
                members = json.loads(line)
                raise_problem(members if isinstance(members, dict) else {})
        spinner.stop()
        output.write(line + b"\n")


# -- saved ------------------------------------------------------------------------------------------------------------

_MAGIC = ("iVBORw0KGgo", "/9j/", "R0lGOD", "JVBERi0")
"""How PNG, JPEG, GIF and PDF begin in base64."""


def _save(invocation: Invocation, exchange: Exchange, file: Path, spinner: output.Spinner) -> None:
    chunks: Iterable[bytes] = exchange.chunks()
    if _is_json(exchange.content_type):
        chunks = [raw := exchange.read()]
        with contextlib.suppress(ValueError, RecursionError):
            if (found := _embedded(json.loads(raw))) is not None:
                chunks = [found]
    size = output.write_whole(file, chunks)
    spinner.stop()
    invocation.notice(f"saved {file} ({output.size(size)})")


def _embedded(value: Any) -> bytes | None:
    """Return the first file that JSON holds as base64: `data:TYPE;base64,…` (RFC 2397), or what begins as a picture."""
    if isinstance(value, str):
        head, _, rest = value.rpartition(";base64,")
        if head.startswith("data:") or (not head and value.startswith(_MAGIC)):
            with contextlib.suppress(ValueError):
                return binascii.a2b_base64(rest.encode("ascii"), strict_mode=True)
        return None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for one in inner if (found := _embedded(one)) is not None), None)
