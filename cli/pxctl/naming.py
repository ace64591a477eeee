"""Names of units, as users write them: `x`, `tool:x`, quoted globs. The daemon expands and judges them."""

from __future__ import annotations

from pxctl.client import query, quote
from pxctl.failure import UNKNOWN_UNIT, USAGE, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from pxctl.client import Client

ROUTES = {"tool": "/api/tools/", "kernel": "/api/kernels/"}
"""Where each kind of unit is steered."""


def tool_name(text: str) -> str:
    """Return the bare name of a tool out of `x` or `tool:x`."""
    kind, colon, rest = text.partition(":")
    if not colon:
        return text
    if kind != "tool" or not rest:
        raise Failure(
            f"{text!r} does not name a tool", kind="usage", hint="pxctl tools list shows the tools", exit_code=USAGE
        )
    return rest


def kernel_name(text: str) -> str:
    """Return the bare name or id of a session out of `x` or `kernel:x`.

    Raises:
        Failure: It names something else, or nothing.
    """
    kind, colon, rest = text.partition(":")
    if text.strip() and not colon:
        return text
    if kind != "kernel" or not rest.strip():
        raise Failure(
            f"{text!r} does not name a kernel", kind="usage", hint="pxctl kernel list shows them", exit_code=USAGE
        )
    return rest


def kernel_route(text: str, verb: str = "", *, cwd: str | None = None) -> str:
    """Return the route of a session named as users do; among several of one name that of `cwd` is meant."""
    route = ROUTES["kernel"] + quote(kernel_name(text)) + (f"/{verb}" if verb else "")
    return query(route, [("cwd", cwd)])


def unit_of(text: str) -> str:
    """Return how a tool is named in messages: always with its kind."""
    return text if ":" in text else f"tool:{text}"


def tool_route(text: str, verb: str = "") -> str:
    """Return the route of a tool named as users do."""
    return ROUTES["tool"] + quote(tool_name(text)) + (f"/{verb}" if verb else "")


def unit_route(unit: str, verb: str) -> str:
    """Return the route that steers a unit, by its kind; raises Failure for a kind that cannot be steered."""
    kind, _, name = unit.partition(":")
    if kind not in ROUTES:
        raise Failure(f"a {kind} cannot be steered by this command", kind="usage", exit_code=USAGE, unit=unit)
    return f"{ROUTES[kind]}{quote(name)}/{verb}"


def expand(client: Client, names: Sequence[str]) -> list[str]:
    """Return the full names that the daemon understands by `names`, each once."""
    answer = client.get(query("/api/units", [("name", name) for name in names]))
    units = [str(unit["unit"]) for unit in answer.document.get("units", [])]
    if not units:
        raise Failure(
            f"nothing is called {', '.join(names)}",
            kind="unknown_unit",
            hint="pxctl status shows all units",
            exit_code=UNKNOWN_UNIT,
        )
    return list(dict.fromkeys(units))
