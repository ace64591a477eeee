"""The command line: how commands are declared and loaded, what one call is given, how a failure is told (CONTRACT §3).

`pxctl X` imports the module of X and of no other command. A command gets everything from its `Invocation`: none reads
the environment or the command line on its own. Whatever a command raises ends in an exit code of the contract, with at
most one error on stderr, or one problem document on stdout under `--json`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from importlib import import_module

import click

from pxctl import paths, terminal
from pxctl.client import Answer, Client
from pxctl.failure import FAILED, OK, USAGE, Failure, Silent, usage
from pxctl.output import Paint, wants_colour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from click.shell_completion import CompletionItem

READS = "read-only"
UNKNOWN_VERSION = "0+unknown"
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_OFF = {"0", "false", "no", "off"}
_STDERR_LINES = 20
_STDERR_COLUMNS = 400
"""A daemon's log line, or a tool's, may be a document of its own."""


class Invocation:
    """What was asked for, beside the command's own arguments: global options, the daemon that is meant, the streams.

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
        if not autostart or self.env.get("PX_AUTOSTART", "1").strip().lower() in _OFF:
            return self.client()

        def wake() -> None:
            from pxctl.daemon_process import ensure_daemon

            ensure_daemon(self)

        return self.client(wake)

    def spinner(self, label: str, phase: Callable[[], str]) -> terminal.Spinner:
        """Return a spinner, which draws where a person sees it and wants it."""
        on = self.err_is_terminal and not self.quiet and self.env.get("TERM") != "dumb"
        return terminal.Spinner(label, phase, on=on)

    def say(self, line: str) -> None:
        """Write a line of the result."""
        terminal.write(line + "\n")

    def say_all(self, lines: Iterable[object]) -> None:
        """Write lines of the result."""
        for line in lines:
            self.say(str(line))

    def told(self, result: Answer | dict[str, Any], ids: Iterable[object]) -> bool:
        """Write the result as `--json` or `-q` want it; False where neither was given."""
        if self.json:
            self.document(result)
        elif self.quiet:
            self.say_all(ids)
        return self.json or self.quiet

    def write(self, piece: str | bytes) -> None:
        """Write a piece of the result as it is."""
        terminal.write(piece)

    def notice(self, line: str) -> None:
        """Write a line of progress or warning to stderr; `-q` silences it."""
        if not self.quiet:
            terminal.notice(line)

    def notices(self, lines: Iterable[object] | None, before: str = "warning: ") -> None:
        """Write such lines, each behind the same words."""
        for line in lines or ():
            self.notice(f"{before}{line}")

    def warn(self, line: str) -> None:
        """Write a line to stderr that not even `-q` may silence."""
        terminal.notice(line)

    def confirm_removal(self, unit: str, hint: str) -> None:
        """Return when a person says that a unit and its folder may go; `hint` is the command that does not ask.

        Raises:
            Failure: Nobody can be asked.
            Silent: The answer is no.
        """
        if not self.in_is_terminal or not self.err_is_terminal:
            raise Failure("nobody is there to be asked", kind="unconfirmed", hint=hint, exit_code=USAGE, unit=unit)
        terminal.write_error(f"Remove {unit} and its folder? [y/N] ")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            self.warn("not removed")
            raise Silent(FAILED)

    def document(self, value: Answer | dict[str, Any]) -> None:
        """Write one JSON document; the daemon's own bytes as they came, ended by a newline."""
        if isinstance(value, Answer):
            terminal.write(value.raw if value.raw.endswith(b"\n") else value.raw + b"\n")
        else:
            terminal.write(json_text(value, indent=2 if self.out_is_terminal else None) + "\n")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return JSON as people like to read it: UTF-8, keys in their own order."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


# -- one command line -------------------------------------------------------------------------------------------------


def call(arguments: list[str], invocation: Invocation) -> int:
    """Run one command line and return its exit code."""
    try:
        code: Any = command.main(args=list(arguments), prog_name="pxctl", standalone_mode=False, obj=invocation)
    except Silent as end:
        return end.exit_code
    except (click.ClickException, click.Abort, KeyboardInterrupt, Failure, OSError) as error:
        invocation.json = invocation.json or (isinstance(error, click.UsageError) and "--json" in arguments)
        return report(invocation, _failure_of(error))
    return code if isinstance(code, int) else OK


def _failure_of(error: BaseException) -> Failure:
    match error:
        case Failure():
            return error
        case click.UsageError():
            path = error.ctx.command_path if error.ctx is not None else "pxctl"
            return usage(error.format_message(), f"{path} --help")
        case click.ClickException():
            return Failure(error.format_message())
        case OSError():
            where = f" ({error.filename})" if error.filename else ""
            return Failure(f"{error.strerror or error}{where}", kind="os_error", errno=error.errno)
        case _:
            return Failure("interrupted from the keyboard", kind="cancelled")


def report(invocation: Invocation, failure: Failure) -> int:
    """Say how it failed: a problem document on stdout with `--json`, else words on stderr. Returns the exit code."""
    if invocation.json:
        terminal.write(json_text(failure.document()) + "\n")
        return failure.exit_code or FAILED
    action = failure.action or invocation.action
    what = f"cannot {action}: {failure.detail}" if action and failure.kind != "usage" else failure.detail
    invocation.warn(invocation.err_paint("pxctl:", "red") + f" {what}".replace("\n", "\n  "))
    for line in _particulars(failure.document()):
        invocation.warn(f"  {line}")
    if failure.hint:
        invocation.warn(invocation.err_paint("hint:", "bold") + f" {failure.hint}")
    return failure.exit_code or FAILED


def _particulars(document: dict[str, Any]) -> list[str]:
    """Return the lines under an error: what did not fit, what is meant perhaps, what survived, what was printed."""
    lines = []
    for error in _listed(document.get("errors")):
        message = str(error.get("message") or error.get("detail") or "")
        if error.get("file") and message and message in str(document.get("detail")):
            continue
        where = error.get("pointer") or error.get("file") or ""
        lines.append(f"{where or '(the whole input)'}: {message}")
    candidates = document.get("candidates")
    if isinstance(candidates, list):
        lines += [f"candidate: {candidate}" for candidate in candidates]
    for survivor in _listed(document.get("survivors")):
        lines.append(f"survived: pid {survivor.get('pid')} ({survivor.get('name', '?')})")
    tail = document.get("stderr_tail") or document.get("stderr")
    if isinstance(tail, str) and tail.strip():
        last = tail.rstrip().splitlines()[-_STDERR_LINES:]
        lines += [
            f"stderr: {line if len(line) <= _STDERR_COLUMNS else line[: _STDERR_COLUMNS - 1] + '…'}" for line in last
        ]
    return lines


def _listed(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# -- how commands are declared ----------------------------------------------------------------------------------------


class Seconds(click.FloatRange):
    """Takes a finite number of seconds; `nan` and `inf` are numbers for Python, but nothing to wait for."""

    name = "seconds"

    def __init__(self, lowest: float | None = 0) -> None:
        super().__init__(min=lowest)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error where it is none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number of seconds.", param, ctx)
        return number


SECONDS = Seconds()


def _store(attribute: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that puts a given value into the invocation; values that were not given leave it alone."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        invocation: Invocation | None = context.find_root().obj
        if invocation is not None and value is not None and value is not False:
            setattr(invocation, attribute, value)

    return keep


def _show_version(context: click.Context, _: click.Parameter, value: Any) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"pxctl {own_version()}")
        context.exit(OK)


def own_version() -> str:
    """Return the version of the distribution, or a placeholder in a bare source tree."""
    from importlib import metadata

    try:
        return metadata.version("supervisord-py")
    except metadata.PackageNotFoundError:
        return UNKNOWN_VERSION


def _global(*names: str, attribute: str, **settings: Any) -> click.Option:
    return click.Option([*names, f"px_{attribute}"], expose_value=False, callback=_store(attribute), **settings)


_GLOBAL_OPTIONS = (
    _global("--socket", attribute="socket", metavar="PATH", help="Socket of the daemon."),
    _global("--system", attribute="system", is_flag=True, help="The machine's daemon, not the user's."),
    _global("--json", attribute="json", is_flag=True, help="One JSON document on stdout (streams: NDJSON)."),
    _global(
        "--color", attribute="colour", type=click.Choice(["auto", "always", "never"]), help="Colour; also NO_COLOR."
    ),
    _global("-q", "--quiet", attribute="quiet", is_flag=True, help="Ids only, no notices."),
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_version,
        help="Show the version.",
    ),
)


class _WithGlobals(click.Command):
    """Takes the global options, which every command shares; keeps them apart on the help page."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._own = len(self.params)
        self.params = [*self.params, *_GLOBAL_OPTIONS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the global ones."""
        help_option = self.get_help_option(ctx)
        everywhere = [*self.params[self._own :], *([help_option] if help_option is not None else [])]
        for title, parameters in (("Options", self.params[: self._own]), ("Global options", everywhere)):
            options = [parameter for parameter in parameters if isinstance(parameter, click.Option)]
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class PxCommand(_WithGlobals):
    """A command with its effect and examples."""

    def __init__(self, *args: Any, effect: str, examples: Sequence[str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.effect = effect
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write effect and examples, unwrapped so that they can be copied."""
        del ctx
        formatter.write(f"\nEffect: {self.effect}.\n\nExamples:\n")
        formatter.write("".join(f"  {line}\n" for line in self.examples))


_declared: dict[tuple[str, str], click.Command] = {}
"""By module and name: the commands whose module was imported."""


def declare(name: str, *, effect: str, examples: Sequence[str]) -> Callable[[Callable[..., int | None]], PxCommand]:
    """Declare a command; the function gets the Invocation first and returns the exit code (None is 0)."""

    def wrap(function: Callable[..., int | None]) -> PxCommand:
        made = click.command(name, cls=PxCommand, effect=effect, examples=examples)(click.pass_obj(function))
        _declared[function.__module__, name] = made
        return made

    return wrap


class Entry:
    """One line of a group's table: where the command is, what it does in a few words, under which heading."""

    __slots__ = ("module", "section", "short")

    def __init__(self, module: str, short: str, section: str) -> None:
        self.module = f"pxctl.commands.{module}"
        self.section = section
        self.short = short


class LazyGroup(_WithGlobals, click.Group):
    """A group whose commands are imported when they are called. A name without an entry's module is a group."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = entries

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; called with nothing at all, show the help on stderr: nothing was asked for, so it is no result."""
        if not args and not ctx.resilient_parsing:
            terminal.notice(self.get_help(ctx))
            raise Silent(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or return a group of them."""
        del ctx
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        if self is command and cmd_name in _GROUPS:
            text, entries = _GROUPS[cmd_name]
            return LazyGroup(name=cmd_name, entries=entries, help=text)
        import_module(entry.module)
        return _declared[entry.module, cmd_name]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, then the options. Imports none of them."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.entries.items():
            sections.setdefault(entry.section, []).append((name, entry.short))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Offer the names of the commands without importing them."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        offered = [(name, entry) for name, entry in self.entries.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=entry.short) for name, entry in offered]


# -- the table of commands --------------------------------------------------------------------------------------------


def _entries(module: str, shorts: Mapping[str, str], section: str = "Commands") -> dict[str, Entry]:
    return {name: Entry(module, short, section) for name, short in shorts.items()}


_UNITS, _KERNELS, _LOOKING = "Tools and other units", "Cells and kernels", "What is and what happened"
_DAEMON = "The daemon and this client"
_OF_UNITS = {
    "status": "Show everything that is held",
    "start": "Warm up units",
    "stop": "Stop units, and say what survived",
    "restart": "Stop and start units",
    "pin": "Exempt tools from eviction",
    "unpin": "Take a pin away",
}
_OF_HISTORY = {
    "logs": "Show a unit's output",
    "events": "Show what happened",
    "why": "Explain a unit's state by what led to it",
}
_OF_CLIENT = {
    "completion": "Print a completion script for a shell",
    "version": "Show the versions of client and daemon",
}
_OF_PIPES = {
    "list": "List the pipes",
    "show": "Show a pipe, its prompt, or one execution",
    "validate": "Check pipes; nothing is run",
    "new": "Write a pipe to start from",
    "add": "Install a pipe: disabled, checked",
    "remove": "Remove a pipe and its folder",
    "config": "Change keys of a pipe's front matter",
    "enable": "Let schedule and events start pipes",
    "disable": "Keep schedule and events from starting pipes",
    "next": "Say when a pipe is due next, and why",
}
_OF_EXECUTIONS = {
    "run": "Run a pipe by hand and follow its output",
    "queue": "Show what runs and what waits in line",
    "runs": "List executions, newest first",
    "output": "Print an execution's output, byte for byte",
    "tail": "Show an execution's output, live with -f",
    "retry": "Queue an execution again",
    "cancel": "Cancel executions, waiting or running",
}
_OF_TOOLS = {
    "list": "List the tools, broken ones with their error",
    "show": "Show one tool: inputs, limits, manifest",
    "validate": "Run the twelve checks",
    "debug": "Walk the failure table and find the cause",
    "new": "Write a working tool to start from",
    "add": "Add a tool from a folder or an example",
    "sync": "Build a tool's .venv",
    "remove": "Remove a tool and its folder",
}
_OF_KERNELS = {
    "list": "List the sessions",
    "show": "Show one session",
    "start": "Start a session's kernel, or explain the choice of its Python",
    "stop": "Stop kernels, and say what survived",
    "restart": "Replace kernels; variables are lost",
    "interrupt": "Interrupt the running cell; again, harder",
    "attach": "Join a live session with jupyter console",
    "cells": "List what a session ran",
    "output": "Print the complete output of a cell",
    "export": "Write a session's history as a notebook",
    "specs": "List the kernelspecs that can be started",
}
_OF_DAEMON = {
    "start": "Start pxd in the background",
    "stop": "Stop pxd and everything it holds",
    "restart": "Replace the control plane and keep every child",
    "reload": "Read settings and tools again",
    "status": "Show the daemon's own state",
    "install": "Write and enable the systemd or launchd unit",
    "uninstall": "Disable and remove that unit",
}
_OF_CONFIG = {"show": "Show every setting, its value and where it comes from", "check": "Check the settings files"}

ENTRIES = {
    **_entries("run", {"run": "Run a tool and print its answer"}, _UNITS),
    **_entries("units", _OF_UNITS, _UNITS),
    **_entries("history", {"wait": "Block until a unit is ready, stopped or done"}, _UNITS),
    **_entries("tools", {"tools": "The catalog of tools"}, _UNITS),
    **_entries("exec", {"exec": "Run code in a kernel that keeps its variables"}, _KERNELS),
    **_entries("kernel", {"kernel": "Sessions: list, start, attach, export and more"}, _KERNELS),
    **_entries("pipe", {"pipe": "Scheduled agents: run, queue, output, retry and more"}, "Pipes"),
    **_entries("history", _OF_HISTORY, _LOOKING),
    **_entries("daemon", {"doctor": "Check everything; name the repair of each fault"}, _LOOKING),
    **_entries("daemon", {"daemon": "Start, stop, restart, reload, install the daemon"}, _DAEMON),
    **_entries("daemon", {"config": "Show and check the settings"}, _DAEMON),
    **_entries("daemon", _OF_CLIENT, _DAEMON),
}
_GROUPS = {
    "tools": ("The catalog of tools.", _entries("tools", _OF_TOOLS)),
    "kernel": ("Sessions and the kernels that keep their variables.", _entries("kernel", _OF_KERNELS)),
    "pipe": (
        "Pipes: agents that run on a schedule, on events or by hand; and their executions.",
        {**_entries("pipe", _OF_PIPES, "Pipes"), **_entries("execution", _OF_EXECUTIONS, "Executions")},
    ),
    "daemon": ("Start, stop, restart, reload, install the daemon.", _entries("daemon", _OF_DAEMON)),
    "config": ("Show and check the settings.", _entries("daemon", _OF_CONFIG)),
}
command = LazyGroup(
    name="pxctl", entries=ENTRIES, help="Ask and steer pxd, the daemon that holds warm tools, kernels and pipes."
)
