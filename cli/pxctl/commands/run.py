"""`pxctl run`: run a tool and print its answer."""

from __future__ import annotations

import contextlib
import json

import click

from pxctl import output, terminal
from pxctl.answers import print_answer, print_items, save_answer
from pxctl.app import SECONDS, declare
from pxctl.client import Client, bare_name, query, route
from pxctl.coerce import CannotRead, build_input, read_json
from pxctl.completion import assignments, tool_names
from pxctl.failure import USAGE, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.client import Exchange
    from pxctl.terminal import Spinner


_SLACK_SECONDS = 15.0
"""How much longer than the run's own limit the daemon may take to say that it passed."""
_ASK_SECONDS = 0.5
_COLD = {"cold", "starting", "failed"}
_STREAMS = "text/event-stream, application/x-ndjson;q=0.9, */*;q=0.1"


@declare(
    "run",
    effect="modifying: starts the tool when it is cold, and the daemon when it is not there",
    examples=[
        "pxctl run compound-interest principal=1000 annual_rate=0.05 years=10",
        "pxctl run lorenz-ode-solver rho=28 --stream",
        "pxctl run lorenz-ode-solver plot=true -o lorenz.png",
        "pxctl run my-tool 'xs:=[1, 2, 3]' options.depth=2",
        "pxctl run my-tool --input @request.json --timeout 30",
        "echo '{\"rho\": 28}' | pxctl run lorenz-ode-solver --input -",
    ],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=assignments)
@click.option("--input", "given", metavar="JSON|@FILE|-", help="The input; KEY=VALUE is put over it.")
@click.option("--stream", is_flag=True, help="Print the items as they come, one a line.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up after S seconds (exit 7).")
@click.option(
    "--keep-alive", type=float, metavar="S", help="Keep it warm for S seconds after; 0 not at all, -1 for ever."
)
@click.option("--no-autostart", is_flag=True, help="Do not start the daemon when it is not there.")
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Save the answer, or the image in it.",
)
def command(
    invocation: Invocation,
    tool: str,
    values: tuple[str, ...],
    given: str | None,
    stream: bool,
    timeout: float | None,
    keep_alive: float | None,
    no_autostart: bool,
    file: str | None,
) -> None:
    """Run a tool and print its JSON answer as it came (indented on a terminal).

    Values are coerced by the tool's input schema: n=5, xs=1,2,3, a.b=1; KEY:=JSON takes JSON as it stands.
    KEY=@FILE gives a file. Ctrl-C cancels the run.
    """
    name = bare_name("tool", tool)
    invocation.action = f"run tool:{name}"
    client = invocation.waking_client(autostart=not no_autostart)
    try:
        body, state = _body(client, name, values, given)
        target = query(
            route("tool", name, "stream" if stream else "run"), [("timeout", timeout), ("keep_alive", keep_alive)]
        )
        fields = {"Content-Type": "application/json", "Accept": _STREAMS if stream else "*/*"}
        limit = None if timeout is None else timeout + _SLACK_SECONDS
        with (
            _spinner(invocation, name, state) as spinner,
            client.open("POST", target, body=body, fields=fields, timeout=limit) as exchange,
        ):
            _deliver(invocation, exchange, spinner, file, stream=stream)
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=f"tool:{name}") from None
    except CannotRead as error:
        raise Failure(str(error), kind="usage", hint="pxctl run --help", exit_code=USAGE) from error


def _body(client: Client, name: str, values: tuple[str, ...], given: str | None) -> tuple[bytes, str | None]:
    """Return the body of the request, and the tool's state where it was asked for anyway.

    The schema is fetched only when there is something to coerce; an input alone goes out byte for byte.
    """
    raw = _read_input(given)
    base = {} if raw is None else read_json(raw, "--input")
    if not values:
        return raw or b"{}", None
    document = client.get(route("tool", name)).document
    content = build_input(values, base, document.get("input_schema"))
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape"), str(document.get("state"))


def _read_input(given: str | None) -> bytes | None:
    if given is None:
        return None
    if given == "-":
        return terminal.read_input()
    if not given.startswith("@"):
        return given.encode("utf-8", "surrogateescape")
    try:
        with open(given[1:], "rb") as file:
            return file.read()
    except OSError as error:
        raise CannotRead(f"cannot read {given[1:]}: {error.strerror}") from error


def _spinner(invocation: Invocation, name: str, state: str | None) -> Spinner:
    return invocation.spinner(f"tool:{name}", _phase(invocation.socket_path, name, state))


def _phase(socket_path: str, name: str, first: str | None) -> Callable[[], str]:
    """Return what says "starting (cold)…" until the tool is up, then "running…"; it asks no more once it is up."""
    known: list[Any] = [first]

    def phase() -> str:
        if known[0] is None or known[0] in _COLD:
            with contextlib.suppress(Failure):
                known[0] = Client(socket_path).get(route("tool", name), timeout=_ASK_SECONDS).document.get("state")
        return "starting (cold)…" if known[0] in _COLD else "running…"

    return phase


def _deliver(invocation: Invocation, exchange: Exchange, spinner: Spinner, file: str | None, *, stream: bool) -> None:
    if file is None:
        (print_items if stream else print_answer)(invocation, exchange, spinner.stop)
        return
    saved = save_answer(exchange, file)
    spinner.stop()
    if invocation.json:
        invocation.document(
            {
                "schema": "px.saved/1",
                "path": saved.path,
                "size_bytes": saved.size,
                "content_type": saved.content_type,
                "pointer": saved.pointer,
            }
        )
        return
    origin = f", from {saved.pointer}" if saved.pointer is not None else ""
    invocation.notice(f"saved {saved.path} ({output.size(saved.size)}, {saved.content_type or 'no type'}{origin})")
