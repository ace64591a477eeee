"""`pxctl tools …`: the catalog."""

from __future__ import annotations

import json
import os

import click

from pxctl.app import READS, declare
from pxctl.client import bare_name, query, route, split_lines
from pxctl.completion import tool_names
from pxctl.failure import FAILED, OK, Failure, Interrupted, Problem, Silent
from pxctl.output import BY_STATE, Cell, Column, clean, print_facts, print_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.app import Invocation


_COLUMNS = [
    Column("NAME", minimum=10),
    Column("STATE", rank=1),
    Column("VERSION", rank=4),
    Column("DIALECT", rank=5),
    Column("PIN", rank=3),
    Column("DESCRIPTION", rank=2, minimum=16),
]


@declare("list", effect=READS, examples=["pxctl tools list", "pxctl tools list --json", "pxctl tools list -q"])
def list_tools(invocation: Invocation) -> None:
    """List the tools; a broken tool.json is listed with its error and harms no other."""
    invocation.action = "list the tools"
    answer = invocation.client().get("/api/tools")
    tools = answer.document.get("tools", [])
    if invocation.told(answer, (tool.get("name") for tool in tools)):
        return
    if tools:
        print_table(invocation, _COLUMNS, [_row(tool) for tool in tools])
        for tool in tools:
            for warning in tool.get("warnings") or []:
                invocation.notice(f"warning: {tool.get('name')}: {warning}")
    else:
        invocation.notice("no tools yet; add one: pxctl tools add example:compound-interest")


def _row(tool: dict[str, Any]) -> list[Cell]:
    error = tool.get("config_error")
    state = "broken" if error else str(tool.get("state") or "?")
    title = tool.get("title") if tool.get("title") != tool.get("name") else None
    words = ": ".join(str(part) for part in (title, tool.get("description")) if part)
    return [
        Cell(str(tool.get("name"))),
        Cell(state, "red" if error else BY_STATE.get(state)),
        Cell(str(tool.get("version") or "")),
        Cell(str(tool.get("dialect") or "")),
        Cell("pinned" if tool.get("pinned") else ""),
        Cell(str(error or words), "red" if error else None),
    ]


_INPUT_COLUMNS = [
    Column("INPUT"),
    Column("TYPE", rank=1),
    Column("DEFAULT", rank=2),
    Column("MEANING", rank=3, minimum=16),
]


@declare(
    "show", effect=READS, examples=["pxctl tools show lorenz-ode-solver", "pxctl tools show lorenz-ode-solver --json"]
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
def show_tool(invocation: Invocation, tool: str) -> None:
    """Show one tool: its inputs, limits and settings; with --json its manifest and schemas, too."""
    invocation.action = f"show {_unit_of(tool)}"
    answer = invocation.client().get(route("tool", tool))
    if invocation.told(answer, [answer.document.get("name")]):
        return
    print_facts(invocation, _facts(answer.document))
    rows = _inputs(answer.document.get("input_schema"))
    if rows:
        invocation.say("")
        print_table(invocation, _INPUT_COLUMNS, rows)


def _facts(tool: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (key, str(tool[key]))
        for key in ("name", "title", "version", "description", "dialect", "state", "folder")
        if tool.get(key)
    ]
    if tool.get("pinned"):
        facts.append(("pinned", "yes"))
    limits = tool.get("limits")
    if isinstance(limits, dict):
        facts += [(key, _short(value)) for key, value in limits.items() if value is not None]
    facts += [("warning", str(warning)) for warning in tool.get("warnings") or []]
    if tool.get("config_error"):
        facts.append(("broken", str(tool["config_error"])))
    return facts


def _inputs(schema: Any) -> list[list[Cell]]:
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return []
    required = schema.get("required") or []
    rows = []
    for key, declared in schema["properties"].items():
        one = declared if isinstance(declared, dict) else {}
        default = "required" if key in required and "default" not in one else _short(one.get("default", ""))
        rows.append(
            [
                Cell(key),
                Cell(type_words(one)),
                Cell(default),
                Cell(str(one.get("description") or one.get("title") or "")),
            ]
        )
    return rows


def type_words(schema: dict[str, Any]) -> str:
    """Return the type of a value in a few words: "number", "integer | null", "a | b | c"."""
    if isinstance(schema.get("enum"), list):
        return " | ".join(_short(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(str(one) for one in kind)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {type_words(schema['items'])}"
    if kind:
        return str(kind)
    branches = schema.get("anyOf") or schema.get("oneOf") or []
    return " | ".join(type_words(branch) for branch in branches if isinstance(branch, dict)) or "any"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_CHECK_COLUMNS = [Column("CHECK", minimum=10), Column("RESULT"), Column("MESSAGE", rank=1, minimum=20)]


@declare(
    "validate",
    effect="modifying: starts an instance of the tool for the checks and stops it again",
    examples=["pxctl tools validate lorenz-ode-solver", "pxctl tools validate lorenz-ode-solver --summary"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.option("--summary", is_flag=True, help="Only what did not pass.")
def validate_tool(invocation: Invocation, tool: str, summary: bool) -> int:
    """Run the twelve checks on a tool; exits 0 on pass and warn, 1 on fail."""
    invocation.action = f"validate {_unit_of(tool)}"
    with invocation.spinner(_unit_of(tool), lambda: "checking…"):
        answer = invocation.client().ask("POST", route("tool", tool, "validate"), timeout=None)
    document = answer.document
    if not invocation.told(answer, [document.get("overall")]):
        _tell(invocation, document, summary=summary)
    return FAILED if document.get("overall") == "fail" else OK


def _tell(invocation: Invocation, document: dict[str, Any], *, summary: bool) -> None:
    checks = [
        check for check in document.get("checks") or [] if not summary or check.get("status") not in {"pass", "skip"}
    ]
    if checks:
        print_table(invocation, _CHECK_COLUMNS, [_validate_row(check) for check in checks])
    for check in checks:
        for detail in _details(check):
            invocation.say(f"  {check.get('name')}: {detail}")
    overall = str(document.get("overall"))
    invocation.say(f"{document.get('tool_id')}: " + invocation.paint(overall, BY_STATE.get(overall)))


def _validate_row(check: dict[str, Any]) -> list[Cell]:
    status = str(check.get("status"))
    return [Cell(str(check.get("name"))), Cell(status, BY_STATE.get(status)), Cell(str(check.get("message") or ""))]


def _details(check: dict[str, Any]) -> list[str]:
    """Return the lines that explain what did not pass; what passed needs no explanation."""
    if check.get("status") in {"pass", "skip"}:
        return []
    details = check.get("details")
    if isinstance(details, dict):
        return [f"{key}: {value}" for key, value in details.items()]
    if isinstance(details, list):
        return [str(one) for one in details]
    return str(details).splitlines() if details else []


@declare(
    "debug",
    effect="modifying: may start an instance of the tool for a probe and stop it again",
    examples=["pxctl tools debug lorenz-ode-solver", "pxctl tools debug lorenz-ode-solver --json"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
def debug_tool(invocation: Invocation, tool: str) -> None:
    """Find out why a tool fails: each known case with the evidence found and the one next step."""
    invocation.action = f"debug {_unit_of(tool)}"
    with invocation.spinner(_unit_of(tool), lambda: "looking…"):
        answer = invocation.client().ask("POST", route("tool", tool, "debug"), timeout=None)
    cases = answer.document.get("cases") or []
    if not invocation.told(answer, (case.get("case") for case in cases if case.get("found"))):
        invocation.say_all(_lines(invocation, answer.document))


def _lines(invocation: Invocation, document: dict[str, Any]) -> list[str]:
    paint = invocation.paint
    lines = []
    for case in document.get("cases") or []:
        if not case.get("found"):
            lines.append(paint(clean(f"no     {case.get('case')}"), "dim"))
            continue
        lines.append(paint("FOUND", "red") + clean(f"  {case.get('case')}"))
        lines += [f"       {clean(line)}" for line in _texts(case.get("evidence"))]
        if case.get("next_step"):
            lines.append(f"       next: {clean(str(case['next_step']))}")
    if document.get("verdict"):
        lines += ["", paint("verdict:", "bold") + f" {clean(str(document['verdict']))}"]
    return lines


def _texts(evidence: Any) -> list[str]:
    match evidence:
        case None:
            return []
        case list():
            return [line for one in evidence for line in str(one).splitlines()]
        case dict():
            return [f"{key}: {value}" for key, value in evidence.items()]
        case _:
            return str(evidence).splitlines()


@declare(
    "new",
    effect="modifying: writes a folder into the tools directory",
    examples=["pxctl tools new my-tool", "pxctl tools new my-tool --template stdlib"],
)
@click.argument("name", metavar="NAME")
@click.option("--template", metavar="T", help="Which template to take; without it the standard one.")
def new_tool(invocation: Invocation, name: str, template: str | None) -> None:
    """Write a working tool with its test request, and put it into the catalog."""
    name = bare_name("tool", name)
    invocation.action = f"make tool:{name}"
    content = {"name": name} | ({"template": template} if template else {})
    answer = invocation.client().ask("POST", "/api/tools/new", content=content, timeout=120.0)
    folder = answer.document.get("folder")
    if invocation.told(answer, [answer.document.get("name") or name]):
        return
    invocation.say(f"tool:{answer.document.get('name') or name} written to {folder}")
    invocation.notice(f"try it: pxctl run {name} --input @{folder}/test-request.json")


_EXAMPLE = "example:"


@declare(
    "add",
    effect="modifying: copies a folder into the tools directory",
    examples=[
        "pxctl tools add example:compound-interest",
        "pxctl tools add ./my-tool",
        "pxctl tools add ./my-tool --name other-name",
    ],
)
@click.argument("source", metavar="PATH|example:NAME", type=click.Path())
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_tool(invocation: Invocation, source: str, name: str | None) -> None:
    """Add a tool to the catalog: from a folder, or one of the examples that come along."""
    invocation.action = f"add {source}"
    source = source if source.startswith(_EXAMPLE) else os.path.abspath(os.path.expanduser(source))
    content = {"source": source} | ({"name": name} if name else {})
    with invocation.spinner(source, lambda: "adding…"):
        answer = invocation.client().ask("POST", "/api/tools/add", content=content, timeout=None)
    found = answer.document.get("name")
    if invocation.told(answer, [found]):
        return
    folder = answer.document.get("folder")
    invocation.say(f"tool:{found} added" + (f" in {folder}" if folder else ""))
    if answer.document.get("needs_sync"):
        invocation.notice(f"it asks for packages; build its .venv: pxctl tools sync {found}")
    invocation.notices(answer.document.get("warnings"))


_INTERNAL = 500


@declare(
    "sync",
    effect="modifying: builds or renews the tool's .venv",
    examples=["pxctl tools sync lorenz-ode-solver", "pxctl tools sync lorenz-ode-solver --json"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
def sync_tool(invocation: Invocation, tool: str) -> None:
    """Build the tool's .venv out of requirements.txt, pyproject.toml or the metadata in main.py.

    Progress goes to stderr; with --json every step is a line of NDJSON. Ctrl-C ends the build and clears it away.
    """
    unit = _unit_of(tool)
    invocation.action = f"sync {unit}"
    fields = {"Accept": "application/x-ndjson"}
    try:
        with invocation.client().open("POST", route("tool", tool, "sync"), fields=fields, timeout=None) as exchange:
            last: dict[str, Any] = {}
            for line in split_lines(exchange.chunks()):
                last = _step(invocation, line) or last
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=unit) from None
    _judge(invocation, unit, last)


def _step(invocation: Invocation, line: bytes) -> dict[str, Any]:
    if not line.strip():
        return {}
    if invocation.json:
        invocation.write(line + b"\n")
    try:
        step = json.loads(line)
    except ValueError as error:
        raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
    if not isinstance(step, dict):
        return {}
    if "progress" in step and not invocation.json:
        invocation.notice(clean(str(step["progress"])))
    return step


def _judge(invocation: Invocation, unit: str, last: dict[str, Any]) -> None:
    if last.get("done"):
        if not invocation.json:
            invocation.say(unit if invocation.quiet else f"{unit} synced")
        return
    if "detail" in last or "kind" in last:
        status = last.get("status")
        problem = Problem(status if isinstance(status, int) else _INTERNAL, last)
        if invocation.json:
            # The problem was the last line of the stream already.
            raise Silent(problem.exit_code or FAILED)
        raise problem
    raise Interrupted("it was closed before the build was done")


@declare(
    "remove",
    effect="modifying: deletes the tool's folder",
    examples=["pxctl tools remove my-tool", "pxctl tools remove my-tool --yes --force"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Stop it first when it runs.")
def remove_tool(invocation: Invocation, tool: str, yes: bool, force: bool) -> None:
    """Remove a tool from the catalog, with its folder. Asks on a terminal; elsewhere --yes is needed."""
    name = bare_name("tool", tool)
    invocation.action = f"remove tool:{name}"
    if not yes:
        invocation.confirm_removal(f"tool:{name}", f"pxctl tools remove {name} --yes")
    answer = invocation.client().ask(
        "DELETE", query(route("tool", tool), [("force", True if force else None)]), timeout=120.0
    )
    told = answer.document or {"schema": "px.removed/1", "unit": f"tool:{name}", "removed": True}
    if not invocation.told(told, [name]):
        invocation.say(f"tool:{name} removed")


def _unit_of(text: str) -> str:
    """Return how a tool is named in messages: always with its kind."""
    return text if ":" in text else f"tool:{text}"
