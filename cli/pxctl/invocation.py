"""One call of `pxctl`: its global options, the daemon it means, the streams it writes to.

Law: a command gets everything from here; none reads the environment or the command line on its own.
"""

from __future__ import annotations

import json
import time

from pxctl import paths, terminal
from pxctl.client import Client
from pxctl.style import Paint, wants_colour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_OFF = {"0", "false", "no", "off"}


class Invocation:
    """What was asked for, beside the command's own arguments.

    Attributes:
        env: The environment.
        socket: `--socket`, or None.
        system: `--system`.
        json: `--json`.
        colour: `--color`.
        quiet: `-q`.
        action: What is being done, in the words of "pxctl: cannot …"; set by the command.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.socket: str | None = None
        self.system = False
        self.json = False
        self.colour = "auto"
        self.quiet = False
        self.action: str | None = None

    @property
    def socket_path(self) -> str:
        """The daemon's socket."""
        return paths.find_socket(self.env, explicit=self.socket, system=self.system)

    @property
    def places(self) -> paths.Places:
        """All places of the daemon."""
        return paths.find_places(self.env, explicit_socket=self.socket, system=self.system)

    @property
    def may_autostart(self) -> bool:
        """False when PX_AUTOSTART turns it off."""
        return self.env.get("PX_AUTOSTART", "1").strip().lower() not in _OFF

    @property
    def in_is_terminal(self) -> bool:
        """Whether a person types."""
        return terminal.is_terminal(_STDIN)

    @property
    def out_is_terminal(self) -> bool:
        """Whether a person reads the result."""
        return terminal.is_terminal(_STDOUT)

    @property
    def err_is_terminal(self) -> bool:
        """Whether a person sees progress."""
        return terminal.is_terminal(_STDERR)

    @property
    def width(self) -> int | None:
        """Columns to lay a table out in; None when nobody's terminal limits it."""
        return terminal.width(self.env) if self.out_is_terminal else None

    @property
    def paint(self) -> Paint:
        """The paint for stdout."""
        return Paint(on=wants_colour(self.colour, self.env, terminal=self.out_is_terminal))

    @property
    def err_paint(self) -> Paint:
        """The paint for stderr."""
        return Paint(on=wants_colour(self.colour, self.env, terminal=self.err_is_terminal))

    def now(self) -> float:
        """Return the wall clock, for "12s ago"."""
        return time.time()

    def client(self, wake: Callable[[], None] | None = None) -> Client:
        """Return a client of the daemon; `wake` is called when nobody answers."""
        return Client(self.socket_path, wake)

    def waking_client(self, *, autostart: bool = True) -> Client:
        """Return a client that starts the daemon where nobody answers, unless that is turned off."""
        if not autostart or not self.may_autostart:
            return self.client()

        def wake() -> None:
            from pxctl.starting import ensure_daemon  # noqa: PLC0415 - subprocess is dear, and seldom needed

            ensure_daemon(self)

        return self.client(wake)

    def say(self, line: str) -> None:
        """Write a line of the result."""
        terminal.write(line + "\n")

    def write(self, piece: str | bytes) -> None:
        """Write a piece of the result as it is."""
        terminal.write(piece)

    def notice(self, line: str) -> None:
        """Write a line of progress or warning to stderr; `-q` silences it."""
        if not self.quiet:
            terminal.notice(line)

    def warn(self, line: str) -> None:
        """Write a line to stderr that not even `-q` may silence."""
        terminal.notice(line)

    def document(self, value: Any) -> None:
        """Write one JSON document."""
        terminal.write(json_text(value, indent=2 if self.out_is_terminal else None) + "\n")

    def document_as_it_came(self, raw: bytes) -> None:
        """Write the daemon's own bytes, ended by a newline."""
        terminal.write(raw if raw.endswith(b"\n") else raw + b"\n")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return JSON as people like to read it: UTF-8, keys in their own order."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
