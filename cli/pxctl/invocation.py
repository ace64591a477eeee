"""What one call of the command line was given, and how it answers: global options, the daemon, the streams.

A command gets everything from its `Invocation`: none reads the environment or the command line on its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import click

from pxctl import output, paths
from pxctl.client import Client, Document, Exit, Failure

_MOMENTS = {"next_run", "last_run", "last_used", "last_success", "not_before", "context_start", "context_end"}


class Invocation:
    """What was asked for, beside the command's own arguments: global options, the daemon that is meant, the streams.

    `action` is what is being done, in the words of "pxctl: cannot …".
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.socket: str | None = None
        self.system = self.json = self.quiet = self.no_autostart = False
        self.colour = "auto"
        self.action: str | None = None
        self.in_is_terminal, self.out_is_terminal, self.err_is_terminal = map(os.isatty, range(3))

    @property
    def socket_path(self) -> str:
        return paths.find_socket(self.env, explicit=self.socket, system=self.system)

    @property
    def width(self) -> int | None:
        return output.screen(self.env)[0] if self.out_is_terminal else None

    @property
    def has_colour(self) -> bool:
        return output.wants_colour(self.colour, self.env, terminal=self.out_is_terminal)

    @property
    def err_has_colour(self) -> bool:
        return output.wants_colour(self.colour, self.env, terminal=self.err_is_terminal)

    def client(self, wake: Callable[[], None] | None = None) -> Client:
        return Client(self.socket_path, wake, lambda: self.spinner("pxd", "waiting for its answer…"))

    # -- stdout

    def paint(self, text: str, style: str | None) -> str:
        return output.paint(text, style, on=self.has_colour)

    def print(self, *lines: object) -> None:
        output.write("".join(f"{line}\n" for line in lines))

    def print_json(self, value: Document) -> None:
        self.print(json.dumps(value, ensure_ascii=False, indent=2 if self.out_is_terminal else None))

    def print_result(self, result: Document, ids: Iterable[object]) -> bool:
        """Write the result as `--json` or `-q` want it; False where neither was given."""
        if self.json:
            self.print_json(result)
        elif self.quiet:
            self.print(*ids)
        return self.json or self.quiet

    def show(self, result: Document, ids: Iterable[object], *lines: object) -> None:
        if not self.print_result(result, ids):
            self.print(*lines)

    def print_check(self, word: str, text: object, cure: object = None) -> None:
        """Write what a check found: the verdict, in its colour, a sentence, and below it lines of what to do."""
        self.print(f"{self.paint(f'{word:<5}', output.BY_STATE.get(word))}  {output.clean(str(text))}")
        self.print(*(f"       {output.clean(line)}" for line in str(cure or "").splitlines()))

    def table(self, columns: Sequence[output.Column], rows: Sequence[Document]) -> list[str]:
        return output.table(columns, rows, self.width, colour=self.has_colour)

    def print_rows(
        self, result: Document, rows: Sequence[Document], key: str, columns: Sequence[output.Column], none: str
    ) -> None:
        """Write rows as a table, as `--json` the whole result, as `-q` one member of each; `none`: there are none."""
        if self.print_result(result, (row.get(key) for row in rows)):
            return
        if rows:
            self.print(*self.table(columns, rows))
        else:
            self.notice(none)

    def print_members(self, document: Document, **more: object) -> None:
        """Write names and values of a document, and `more`, below each other; what is absent or nested is left out."""
        facts: dict[str, object] = {}
        for name, value in {**document, **more}.items():
            text = value
            if name.endswith("_at") or name in _MOMENTS:
                text = self.moment(value)
            elif name.endswith(("_seconds", "_ms")):
                text = output.duration(value / 1000 if value and name.endswith("_ms") else value)
            elif name.endswith("_bytes"):
                text = output.size(value)
            elif isinstance(value, list) and all(isinstance(one, str) for one in value):
                text = ", ".join(value)
            elif name == "schema" or isinstance(value, list | dict) or "\n" in str(value):
                continue
            if text not in (None, "", 0, output.ABSENT):
                facts[re.sub("_(seconds|ms|bytes)$", "", name)] = text if isinstance(text, str) else json.dumps(text)
        widest = max(map(len, facts), default=0)
        self.print(*(f"{name:{widest}}  {output.clean(str(text))}" for name, text in facts.items()))

    def print_done(self, *lines: str) -> None:
        if not (self.json or self.quiet):
            self.print(*lines)

    def moment(self, text: object) -> str:
        """Return an RFC 3339 time as a person's clock says it on a terminal; elsewhere as it came."""
        at = output.epoch(text)
        if at is None:
            return output.ABSENT
        return time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(at)) if self.out_is_terminal else str(text)

    # -- stderr

    def notice(self, *lines: str) -> None:
        """Write lines of progress or warning to stderr; `-q` silences them."""
        if not self.quiet:
            self.warn(*lines)

    def warn(self, *lines: str) -> None:
        """Write lines to stderr that not even `-q` may silence."""
        for line in lines:
            output.notice(line)

    def print_warnings(self, document: Document) -> None:
        self.notice(*(f"warning: {warning}" for warning in document.get("warnings") or []))

    def spinner(self, label: str, phase: str | Callable[[], str]) -> output.Spinner:
        on = self.err_is_terminal and not self.quiet and self.env.get("TERM") != "dumb"
        return output.Spinner(label, phase if callable(phase) else lambda: phase, on=on)

    @contextlib.contextmanager
    def detaching(self, words: str) -> Iterator[None]:
        """Let Ctrl-C end a wait, and say in `words` what goes on in spite of it."""
        try:
            yield
        except KeyboardInterrupt:
            self.warn(f"\npxctl: {words}")
            raise click.exceptions.Exit(Exit.FAILED) from None

    # -- what is done alike to tools and pipes

    def add(self, kind: str, target: str, content: Document, words: str = "added in {folder}") -> Document | None:
        """Have a unit made or installed and say where; return its document where the next step is to be told."""
        if "source" in content and not re.match(r"example:|[A-Za-z][A-Za-z0-9+.-]*://", content["source"]):
            content["source"] = os.path.abspath(os.path.expanduser(content["source"]))  # the daemon runs elsewhere
        with self.spinner(kind, "adding…"):
            made = self.client().ask("POST", target, content=content, timeout=None)
        if self.print_result(made, [made["name"]]):
            return None
        self.print(f"{kind}:{made['name']} {words.format(folder=made.get('folder'))}")
        self.print_warnings(made)
        return made

    def remove(self, unit: str, command: str, target: str, yes: bool) -> None:
        """Have a unit and its folder removed once a person says so; `command` is the one that does not ask."""
        if not yes and not (self.in_is_terminal and self.err_is_terminal):
            raise Failure("nobody is there to be asked", kind="unconfirmed", hint=command, unit=unit)
        if not yes and not click.confirm(f"Remove {unit} and its folder?", err=True):
            raise click.exceptions.Exit(Exit.FAILED)
        answer = self.client().ask("DELETE", target, timeout=None)
        if not self.print_result(answer, [unit.partition(":")[2]]):
            self.print(f"{unit} removed")
