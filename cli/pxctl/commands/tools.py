"""`pxctl tools …`: the catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from pxctl.app import declare, declare_group, example_tools, source_of, tool_names
from pxctl.client import bare_name, query, route
from pxctl.failures import Document, Exit, Failure, Interrupted
from pxctl.invocation import Invocation
from pxctl.output import BY_STATE, Column, clean, state_column, with_broken
from pxctl.streams import stream

tools = declare_group("tools", "The catalog of tools: list, show, validate, add and more.")
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
    Column("DESCRIPTION", lambda tool: tool.get("config_error") or tool.get("description"), 2, minimum=16),
]


@declare(tools, "list", "list the tools")
def list_tools(invocation: Invocation) -> None:
    """List the tools; a broken tool.json is listed with its error and harms no other.

    $ pxctl tools list
    """
    answer = invocation.client().get("/api/tools")
    found = with_broken(answer.get("tools", []))
    none = "no tools yet; add one: pxctl tools add example:compound-interest"
    invocation.print_rows(answer, found, "name", _COLUMNS, none)
    for tool in [] if invocation.json else found:
        invocation.notice(*(f"warning: {tool.get('name')}: {warning}" for warning in tool.get("warnings") or []))


def _type_words(schema: Document) -> str:
    listed = schema.get("enum") or schema.get("type") or [one.get("type") for one in schema.get("anyOf") or []]
    return " | ".join(map(str, listed if isinstance(listed, list) else [listed])) or "any"


_INPUT_COLUMNS = [
    Column("INPUT", "key"),
    Column("TYPE", _type_words, 1),
    Column("DEFAULT", "shown_default", 2),
    Column("MEANING", lambda declared: declared.get("description") or declared.get("title"), 3, minimum=16),
]


@declare(tools, "show", "show {tool}")
@_tool
def show_tool(invocation: Invocation, tool: str) -> None:
    """Show one tool: its inputs, limits and settings; with --json its manifest and schemas, too.

    $ pxctl tools show lorenz-ode-solver
    """
    document = invocation.client().get(route("tool", tool))
    if invocation.print_result(document, [document.get("name")]):
        return
    invocation.print_members(document, **(document.get("limits") or {}))
    if rows := list(_inputs(document.get("input_schema") or {})):
        invocation.print("", *invocation.table(_INPUT_COLUMNS, rows))


def _inputs(schema: Document) -> Iterator[Document]:
    for key, declared in (schema.get("properties") or {}).items():
        one = declared if isinstance(declared, dict) else {}
        default = json.dumps(one["default"], ensure_ascii=False) if "default" in one else ""
        yield {**one, "key": key, "shown_default": "required" if key in schema.get("required", []) else default}


_CHECK_COLUMNS = [
    Column("CHECK", "name", minimum=10),
    state_column("status", "RESULT", 0),
    Column("MESSAGE", "message", 1, minimum=20),
]


@declare(tools, "validate", "validate {tool}")
@_tool
def validate_tool(invocation: Invocation, tool: str) -> int:
    """Run the twelve checks on a tool; exits 0 on pass and warn, 1 on fail.

    An instance of the tool is started for the checks, and stopped again.

    $ pxctl tools validate lorenz-ode-solver
    """
    with invocation.spinner(tool, "checking…"):
        document = invocation.client().ask("POST", route("tool", tool, "validate"), timeout=None)
    overall, checks = str(document.get("overall")), document.get("checks") or []
    if not invocation.print_result(document, [document.get("tool_id")]):
        invocation.print(*invocation.table(_CHECK_COLUMNS, checks))
        for check in checks:
            if check.get("status") not in {"pass", "skip"}:
                details = str(check.get("details") or "").splitlines()
                invocation.print(*(clean(f"  {check.get('name')}: {line}") for line in details))
        invocation.print(f"{document.get('tool_id')}: " + invocation.paint(overall, BY_STATE.get(overall)))
    return Exit.FAILED if overall == "fail" else Exit.OK


@declare(tools, "debug", "debug {tool}")
@_tool
def debug_tool(invocation: Invocation, tool: str) -> None:
    """Find out why a tool fails: each known case with the evidence found and the one next step.

    An instance of the tool may be started for a probe, and is stopped again.

    $ pxctl tools debug lorenz-ode-solver
    """
    with invocation.spinner(tool, "looking…"):
        answer = invocation.client().ask("POST", route("tool", tool, "debug"), timeout=None)
    cases = answer.get("cases") or []
    if invocation.print_result(answer, (case.get("case") for case in cases if case.get("found"))):
        return
    for case in cases:
        if not case.get("found"):
            invocation.print(invocation.paint(f"no     {case.get('case')}", "dim"))
            continue
        invocation.print(invocation.paint("FOUND", "red") + f"  {case.get('case')}")
        invocation.print(*(f"       {clean(line)}" for line in str(case.get("evidence")).splitlines()))
        if case.get("next_step"):
            invocation.print(f"       next: {clean(str(case['next_step']))}")
    if answer.get("verdict"):
        invocation.print("", invocation.paint("verdict:", "bold") + f" {clean(str(answer['verdict']))}")


@declare(tools, "new", "make tool:{name}")
@click.argument("name", metavar="NAME")
def new_tool(invocation: Invocation, name: str) -> None:
    """Write a working tool to start from, with its test request, and put it into the catalog.

    $ pxctl tools new my-tool
    """
    name = bare_name("tool", name)
    if made := invocation.add("tool", "/api/tools/new", {"name": name}, "written to {folder}"):
        invocation.notice(f"try it: pxctl run {name} --input @{made.get('folder')}/test-request.json")


@declare(tools, "add", "add {source}")
@click.argument("source", metavar="PATH|example:NAME", shell_complete=example_tools)
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_tool(invocation: Invocation, source: str, name: str | None) -> None:
    """Add a tool to the catalog: from a folder, or one of the examples that come along.

    $ pxctl tools add example:compound-interest
    $ pxctl tools add ./my-tool --name other-name
    """
    content = {"source": source_of(source), "name": name}
    added = invocation.add("tool", "/api/tools/add", content)
    if added and added.get("needs_sync"):
        invocation.notice(f"it asks for packages; build its .venv: pxctl tools sync {added['name']}")


@declare(tools, "sync", "sync {tool}")
@_tool
def sync_tool(invocation: Invocation, tool: str) -> None:
    """Build a tool's virtual environment.

    It becomes .venv of its folder, out of requirements.txt or pyproject.toml.
    Progress goes to stderr; with --json every step is a line of NDJSON. Ctrl-C ends the build and clears it away.

    $ pxctl tools sync lorenz-ode-solver
    """
    last: Document = {}
    try:
        for line, last in stream(invocation.client(), "POST", route("tool", tool, "sync"), timeout=None):
            if invocation.json:
                invocation.print(line.decode("utf-8", "replace"))
            elif "progress" in last:
                invocation.notice(clean(str(last["progress"])))
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=tool) from None
    if not last.get("done"):
        raise Interrupted("it was closed before the build was done")
    if not invocation.json:
        invocation.print(tool.removeprefix("tool:") if invocation.quiet else f"{tool} synced")


@declare(tools, "remove", "remove {tool}")
@_tool
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Stop it first when it runs.")
def remove_tool(invocation: Invocation, tool: str, yes: bool, force: bool) -> None:
    """Remove a tool from the catalog, with its folder. Asks on a terminal; elsewhere --yes is needed.

    $ pxctl tools remove my-tool
    $ pxctl tools remove my-tool --yes --force
    """
    target = query(route("tool", tool), [("force", force or None)])
    invocation.remove(tool, f"pxctl tools remove {bare_name('tool', tool)} --yes", target, yes)
