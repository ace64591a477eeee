"""`pxctl pipe config`: change keys of a pipe's front matter."""

from __future__ import annotations

import click

from pxctl.coerce import CannotRead, read_json
from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.failure import USAGE, Failure
from pxctl.pipes import exact_name, pipe_name, pipe_route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation


@declare(
    "config",
    effect="modifying: rewrites the named keys in pipe.md; the prompt and all other keys stay as they are",
    examples=[
        "pxctl pipe config disk-digest schedule='every 2h'",
        "pxctl pipe config disk-digest timeout=600 retries=0",
        'pxctl pipe config triage preset=\'["fast", "*"]\' timezone=     # an empty value removes the key',
    ],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
def command(invocation: Invocation, pipe: str, values: tuple[str, ...]) -> None:
    """Change keys of a pipe's front matter. VALUE is JSON where it reads as such, else text; empty removes the key.

    A change that would break the pipe is refused, and the file is left as it is.
    """
    invocation.action = f"change pipe:{pipe_name(pipe)}"
    changes = dict(_change(value, pipe) for value in values)
    client = invocation.client()
    name = exact_name(client, pipe)
    answer = client.ask("POST", pipe_route(name, "config"), content={"config": changes}, timeout=60.0)
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(name)
    else:
        invocation.say(f"pipe:{name}: {', '.join(_words(*change) for change in changes.items())}")
        for warning in answer.document.get("warnings") or []:
            invocation.notice(f"warning: {warning}")


def _change(text: str, name: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Failure(
            f"{text!r} is not KEY=VALUE", kind="usage", hint=f"pxctl pipe config {name} timeout=600", exit_code=USAGE
        )
    if not value:
        return key, None
    try:
        found = read_json(value, key)
    except CannotRead:
        return key, value
    # 1e999 reads as a number that JSON has no word for.
    return key, value if isinstance(found, float) and abs(found) == float("inf") else found


def _words(key: str, value: Any) -> str:
    return f"{key} removed" if value is None else f"{key} set"
