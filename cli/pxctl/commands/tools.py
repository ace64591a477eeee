"""`pxctl run` and `pxctl tools …`: a tool is run, and its answer printed, streamed or saved; the
catalog.

On a pipe the bytes of an answer go out as they came, with a newline at the end of JSON; a terminal
never gets binary; a file is there whole or not at all.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any

import click

from pxctl import app, output
from pxctl.app import Invocation, declare, root, tool_names
from pxctl.client import (
    SLACK_SECONDS,
    Client,
    Document,
    Exchange,
    Exit,
    Failure,
    bare_name,
    query,
    route,
    usage,
)
from pxctl.coerce import build_input, read_argument, read_json
from pxctl.output import BY_STATE, Column, clean, state_column, with_broken
from pxctl.streams import NDJSON, harmless, stream, waking_client

tools = app.PxGroup(
    "tools",
    "The catalog of tools: list, show, validate, add and more.",
    examples=(
        "pxctl tools add example:compound-interest",
        "pxctl tools new my-tool",
        "pxctl tools list",
    ),
)
_JSON = "application/json"
_JSON_LINES = {NDJSON, "application/ndjson", "application/jsonl"}
_OTHER_KINDS = {"pipe": "pxctl pipe run {}", "kernel": "pxctl exec --kernel {}"}
_MAGIC = ("iVBORw0KGgo", "/9j/", "R0lGOD", "JVBERi0")  # how PNG, JPEG, GIF and PDF begin in base64


@declare(root, "run")
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=app.assignments)
@click.option(
    "--input",
    "given",
    metavar="JSON|@FILE|-",
    shell_complete=app.file_after_at,
    help="The input; KEY=VALUE is put over it.",
)
@click.option("--stream", "streams", is_flag=True, help="Print the items as they come, one a line.")
@app.timeout_option()
@click.option(
    "--keep-alive",
    type=float,
    metavar="S",
    help="Seconds to keep it warm (0: stop at once, -1: never stop).",
)
@app.no_autostart_option
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Save the answer.",
)
def run_tool(
    invocation: Invocation,
    tool: str,
    values: tuple[str, ...],
    streams: bool,
    file: str | None,
    **asked: Any,
) -> None:
    """Run a tool and print its JSON answer as it came (indented on a terminal).

    Values are coerced by the tool's input schema: n=5, xs=1,2,3, a.b=1; KEY:=JSON takes JSON as it
    stands. KEY=@FILE gives a file. Ctrl-C cancels the run.

    $ pxctl run compound-interest principal=1000 annual_rate=0.05 years=10
    $ pxctl run lorenz-ode-solver plot=true -o lorenz.png
    """
    kind, _, rest = tool.partition(":")
    if kind in _OTHER_KINDS and rest:
        raise usage(f"{tool} is a {kind}, no tool", _OTHER_KINDS[kind].format(rest))
    name = bare_name("tool", tool)
    invocation.action = f"run tool:{name}"
    folder = os.path.dirname(file or "") or "."
    if file is not None and not os.access(folder, os.W_OK):  # else the answer would be lost
        raise Failure(
            f"cannot write {file}: no such folder, or no access",
            kind="os_error",
            hint=f"ls -ld {folder}",
        )
    client, given = waking_client(invocation), asked.pop("given")
    verb, accept = ("stream", NDJSON) if streams else ("run", "*/*")
    place, fields = (
        query(route("tool", name, verb), asked.items()),
        {"Content-Type": _JSON, "Accept": accept},
    )
    limit = None if asked["timeout"] is None else asked["timeout"] + SLACK_SECONDS
    try:
        body = b"{}" if given is None else read_argument(given)
        base = read_json(body, "--input")
        if values:  # the schema is fetched only when there is something to coerce
            schema = client.get(route("tool", name), keep=True).get("input_schema")
            body = json.dumps(build_input(values, base, schema), ensure_ascii=False).encode(
                "utf-8", "surrogateescape"
            )
        with (
            invocation.spinner(
                f"tool:{name}", lambda: _phase(invocation.socket_path, name)
            ) as spinner,
            client.open("POST", place, body=body, fields=fields, timeout=limit) as exchange,
        ):
            notice = exchange.fields.get("x-px-notice")
            if notice:
                spinner.stop()
                invocation.notice(notice)
            pieces = _pieces(
                exchange, is_saved=file is not None, is_terminal=invocation.out_is_terminal
            )
            if file is not None:
                size = output.write_whole(file, pieces)
                spinner.stop()
                invocation.notice(f"saved {file} ({output.size(size)})")
                return
            if streams and exchange.content_type in _JSON_LINES:
                pieces = (line + b"\n" for line in exchange.lines())
            for piece in pieces:
                spinner.stop()
                output.write(piece)
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=f"tool:{name}") from None


def _phase(socket_path: str, name: str) -> str:
    with contextlib.suppress(Failure):
        if Client(socket_path).get(route("tool", name), timeout=0.5)["state"] in {"ready", "busy"}:
            return "running…"
    return "starting (cold)…"


def _pieces(exchange: Exchange, *, is_saved: bool, is_terminal: bool) -> Iterable[bytes]:
    """Return an answer as it is saved or shown: JSON with a newline at its end, indented on a
    terminal.
    """
    if not exchange.has_content or exchange.fields.get("content-length") == "0":
        return []  # its type says nothing: a server may add a usual one
    kind = exchange.content_type
    if kind != _JSON and not kind.endswith("+json"):
        if (
            is_terminal
            and not is_saved
            and not kind.startswith("text/")
            and kind not in _JSON_LINES
        ):
            what = (
                f"the tool answered with {kind or 'bytes of no known type'}, which is not for a "
                "terminal"
            )
            raise Failure(what, kind="binary_answer", hint="run it again with -o FILE")
        return exchange.chunks()
    raw = exchange.read()
    with contextlib.suppress(ValueError, RecursionError):  # else it is none in spite of its type
        if is_saved:
            return [_embedded(json.loads(raw)) or raw]
        if is_terminal:
            raw = json.dumps(json.loads(raw), ensure_ascii=False, indent=2).encode(
                "utf-8", "backslashreplace"
            )
    if is_terminal and not is_saved:
        raw = harmless(raw.decode("utf-8", "replace")).encode()
    return [raw if is_saved or raw.endswith(b"\n") else raw + b"\n"]


def _embedded(value: Any) -> bytes | None:
    """Return the first file that JSON holds as base64: `data:TYPE;base64,…` (RFC 2397), or what
    begins as a picture.
    """
    if isinstance(value, str):
        head, _, rest = value.rpartition(";base64,")
        if head.startswith("data:") or (not head and value.startswith(_MAGIC)):
            with contextlib.suppress(ValueError):
                return binascii.a2b_base64(rest.encode("ascii"), strict_mode=True)
        return None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for one in inner if (found := _embedded(one)) is not None), None)


_tool = click.argument(
    "tool",
    metavar="TOOL",
    shell_complete=tool_names,
    callback=lambda _, __, text: text if not text or ":" in text else f"tool:{text}",
)
_COLUMNS = [
    Column("NAME", "name", minimum=10),
    state_column(),
    Column("VERSION", "version", 4),
    Column("DIALECT", "dialect", 5),
    Column("PIN", lambda tool: "pinned" if tool.get("pinned") else "", 3),
    Column(
        "DESCRIPTION",
        lambda tool: tool.get("config_error") or tool.get("description"),
        2,
        minimum=16,
    ),
]
_INPUT_COLUMNS = [
    Column("INPUT", "key"),
    Column("TYPE", "types", 1),
    Column("DEFAULT", "shown_default", 2),
    Column(
        "MEANING",
        lambda declared: declared.get("description") or declared.get("title"),
        3,
        minimum=16,
    ),
]


@declare(tools, "list", "list the tools")
def list_tools(invocation: Invocation) -> None:
    """List the tools; a broken tool.json is listed with its error and harms no other."""
    answer = invocation.client().get("/api/tools")
    found = with_broken(answer.get("tools", []))
    none = "no tools yet; add one: pxctl tools add example:compound-interest"
    invocation.print_rows(answer, found, "name", _COLUMNS, none)
    for tool in [] if invocation.json else found:
        invocation.notice(
            *(f"warning: {tool.get('name')}: {warning}" for warning in tool.get("warnings") or [])
        )


@declare(tools, "show", "show {tool}")
@_tool
def show_tool(invocation: Invocation, tool: str) -> None:
    """Show one tool: its inputs, limits and settings; with --json its manifest and schemas, too."""
    document = invocation.client().get(route("tool", tool))
    if invocation.print_result(document, [document.get("name")]):
        return
    invocation.print_members(document, **(document.get("limits") or {}))
    schema, rows = document.get("input_schema") or {}, []
    for key, declared in schema.get("properties", {}).items():
        one = declared if isinstance(declared, dict) else {}
        listed = (
            one.get("enum")
            or one.get("type")
            or [each.get("type") for each in one.get("anyOf", ())]
        )
        types = " | ".join(map(str, listed if isinstance(listed, list) else [listed])) or "any"
        is_required = key in schema.get("required", ())
        default = (
            "required" if is_required else json.dumps(one["default"]) if "default" in one else ""
        )
        rows.append({**one, "key": key, "types": types, "shown_default": default})
    if rows:
        invocation.print("", *invocation.table(_INPUT_COLUMNS, rows))


@declare(tools, "validate", "validate {tool}")
@_tool
def validate_tool(invocation: Invocation, tool: str) -> int:
    """Run the twelve checks on a tool; exits 0 on pass and warn, 1 on fail.

    An instance of the tool is started for the checks, and stopped again.
    """
    with invocation.spinner(tool, "checking…"):
        document = invocation.client().ask("POST", route("tool", tool, "validate"), timeout=None)
    overall, checks = str(document.get("overall")), document.get("checks") or []
    if not invocation.print_result(document, [document.get("tool_id")]):
        for check in checks:
            details = None if check["status"] in {"pass", "skip"} else check.get("details")
            invocation.print_check(check["status"], f"{check['name']}: {check['message']}", details)
        invocation.print(
            f"{document.get('tool_id')}: " + invocation.paint(overall, BY_STATE.get(overall))
        )
    return Exit.FAILED if overall == "fail" else Exit.OK


@declare(tools, "debug", "debug {tool}")
@_tool
def debug_tool(invocation: Invocation, tool: str) -> None:
    """Find out why a tool fails: each known case with the evidence found and the one next step.

    An instance of the tool may be started for a probe, and is stopped again.
    """
    with invocation.spinner(tool, "looking…"):
        answer = invocation.client().ask("POST", route("tool", tool, "debug"), timeout=None)
    cases = answer.get("cases") or []
    if invocation.print_result(answer, (case.get("case") for case in cases if case.get("found"))):
        return
    for case in cases:
        step = case.get("next_step") and f"next: {case['next_step']}"
        evidence = "\n".join(filter(None, (case.get("evidence"), step)))
        invocation.print_check("FOUND" if case.get("found") else "no", case.get("case"), evidence)
    if answer.get("verdict"):
        invocation.print(
            "", invocation.paint("verdict:", "bold") + f" {clean(str(answer['verdict']))}"
        )


@declare(tools, "new", "make tool:{name}")
@click.argument("name", metavar="NAME")
def new_tool(invocation: Invocation, name: str) -> None:
    """Write a working tool to start from.

    Its test request comes along, and it is in the catalog at once.

    $ pxctl tools new my-tool
    """
    name = bare_name("tool", name)
    if made := invocation.add("tool", "/api/tools/new", {"name": name}, "written to {folder}"):
        invocation.notice(
            f"try it: pxctl run {name} --input @{made.get('folder')}/test-request.json"
        )


@declare(tools, "add", "add {source}")
@click.argument("source", metavar="PATH|example:NAME", shell_complete=app.example_tools)
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_tool(invocation: Invocation, source: str, name: str | None) -> None:
    """Add a tool to the catalog: from a folder, or one of the examples that come along.

    $ pxctl tools add example:compound-interest
    """
    added = invocation.add("tool", "/api/tools/add", {"source": source, "name": name})
    if added and added.get("needs_sync"):
        invocation.notice(
            f"it asks for packages; build its .venv: pxctl tools sync {added['name']}"
        )


@declare(tools, "sync", "sync {tool}")
@_tool
def sync_tool(invocation: Invocation, tool: str) -> None:
    """Build a tool's virtual environment: .venv of its folder, out of requirements.txt or
    pyproject.toml.

    Progress goes to stderr; with --json every step is a line of NDJSON. Ctrl-C ends the build and
    clears it away.
    """
    last: Document = {}
    spinner = invocation.spinner(tool, "building its environment…")
    try:
        spinner.start()
        for line, last in stream(
            invocation.client(), "POST", route("tool", tool, "sync"), timeout=None
        ):
            if invocation.json:
                output.write(line + b"\n")
            elif "progress" in last:
                spinner.stop()
                invocation.notice(clean(str(last["progress"])))
                spinner.start()  # pip may be silent for minutes
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=tool) from None
    finally:
        spinner.stop()
    if not last.get("done"):
        raise Failure(
            "the connection was lost before the build was done",
            kind="interrupted",
            hint="run it again",
        )
    if not invocation.json:
        words = "synced" if last.get("built", True) else "has nothing to build"
        invocation.print(tool.removeprefix("tool:") if invocation.quiet else f"{tool} {words}")


@declare(tools, "remove", "remove {tool}")
@_tool
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Stop it first when it runs.")
def remove_tool(invocation: Invocation, tool: str, yes: bool, force: bool) -> None:
    """Remove a tool from the catalog, with its folder. Asks on a terminal; elsewhere --yes is
    needed.

    Its pin and all that is remembered of it go as well.

    $ pxctl tools remove my-tool --force
    """
    # Look first: nobody is asked about a tool that does not exist, and of a glob the one tool is
    # named.
    name = str(invocation.client().get(route("tool", tool))["name"])
    command = f"pxctl tools remove {name} --yes"
    if force:
        command += " --force"
    target = query(route("tool", f"tool:{name}"), [("force", force or None)])
    invocation.remove(f"tool:{name}", command, target, yes)
