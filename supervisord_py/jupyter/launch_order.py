"""What the daemon is asked for when a front end wants a kernel. Pure: values in, the body of a request out.

Laws: the same kernel id, folder and kernelspec give the same name, so that a restart comes back as the same session, on
the same sockets. A spec that only means "some Python with ipykernel" is left to the daemon's choice; one that names its
interpreter gets that, by our launcher; any other is run as it is written. What the front end's own environment has goes
as the caller's, through the daemon's filter; what it adds for this kernel goes as that.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.kernelspecs import Kernelspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end's wish for one kernel.

    Attributes:
        kernel_id: Jupyter's id of it: mostly a UUID, but any text is allowed.
        spec: Name of the kernelspec.
        argv: Its command, as written.
        language: Its language.
        cwd: Absolute folder.
        env: Environment that Jupyter made for the kernel.
        environ: The front end's own environment.
        interpreter: Python to take in the place of the kernelspec's; "" for none.
        arguments: What the front end wants behind the command.
    """

    kernel_id: str
    spec: str
    argv: Sequence[str]
    language: str
    cwd: str
    env: Mapping[str, str]
    environ: Mapping[str, str]
    interpreter: str = ""
    arguments: Sequence[str] = ()


def order_of(wish: FrontEnd) -> dict[str, Any]:
    """Return the body of `POST /api/kernels`."""
    added = {name: value for name, value in wish.env.items() if wish.environ.get(name) != value}
    return {
        "name": session_name(wish.kernel_id),
        "cwd": wish.cwd,
        "owner": "jupyter",
        "backend": "direct",  # the only one whose channels a front end of this machine can join
        "arguments": list(wish.arguments),
        "env": _sendable(added),
        "environ": _sendable(wish.environ),
        **_program(wish),
    }


def session_name(kernel_id: str) -> str:
    """Return the name of a kernel's session: the beginning of a UUID, by which people know it, else a digest."""
    if _UUID.fullmatch(kernel_id.lower()):
        return f"jupyter-{kernel_id[:_SHOWN].lower()}"
    return f"jupyter-{hashlib.sha256(kernel_id.encode(errors='surrogateescape')).hexdigest()[:_SHOWN]}"


def _program(wish: FrontEnd) -> dict[str, str]:
    spec = Kernelspec(wish.spec, tuple(wish.argv), wish.language)
    named = spec.python or ""
    if not spec.native and not named.startswith("/"):
        return {"kernelspec": wish.spec}
    interpreter = wish.interpreter or named
    return {"interpreter": interpreter} if interpreter else {}


def _sendable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those that are text: bytes of no encoding cannot be told in JSON."""
    return {name: value for name, value in variables.items() if _is_text(name) and _is_text(value)}


def _is_text(value: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in value)
