"""The command line: how commands are declared, loaded and completed, and how a failure is reported.

`pxctl X` imports the module of X and of no other command. Whatever a command raises ends in an exit code of CONTRACT
§3, with at most one error on stderr, or one problem document on stdout under `--json`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from pxctl import output
from pxctl.client import Client, Exit, Failure, query, route, usage
from pxctl.invocation import Invocation

_STDERR_LINES, _STDERR_COLUMNS = 20, 400
_LONGEST_SECONDS = 1e9  # a socket takes no longer timeout
_SAMPLE = "lorenz-ode-solver"
Decorator = Callable[[Any], Any]


# -- one command line -------------------------------------------------------------------------------------------------


def run(arguments: list[str]) -> int:
    invocation = Invocation(os.environ)
    try:
        code: Any = root.main(args=list(arguments), prog_name="pxctl", standalone_mode=False, obj=invocation)
    except click.exceptions.NoArgsIsHelpError as error:  # nothing was asked for, so it is no result
        output.notice(error.format_message())
        return Exit.USAGE
    except (click.ClickException, click.Abort, KeyboardInterrupt, Failure, OSError) as error:
        failure = _failure_of(error)
        # A line that was not parsed to its end may have asked for JSON behind the mistake.
        invocation.json = invocation.json or (failure.kind == "usage" and "--json" in arguments)
        return report(invocation, failure)
    return code if isinstance(code, int) else Exit.OK


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
            where, hint = (f" ({error.filename})", f"ls -ld {error.filename}") if error.filename else ("", None)
            return Failure(f"{error.strerror or error}{where}", kind="os_error", hint=hint, errno=error.errno)
        case _:
            return Failure("interrupted from the keyboard", kind="cancelled")


def report(invocation: Invocation, failure: Failure) -> int:
    """Say how it failed: a problem document on stdout with `--json`, else words on stderr. Returns the exit code."""
    document, on = failure.document(), invocation.err_has_colour
    if invocation.json:
        output.write(json.dumps(document, ensure_ascii=False) + "\n")
        return failure.exit_code or Exit.FAILED
    lines = [
        f"{error.get('pointer') or error.get('file') or '(the whole input)'}: {error.get('message')}"
        for error in document.get("errors") or []
        if not (error.get("file") and str(error.get("message")) in failure.detail)
    ]
    lines += [f"candidate: {candidate}" for candidate in document.get("candidates") or []]
    lines += [f"survived: pid {one.get('pid')} ({one.get('name', '?')})" for one in document.get("survivors") or []]
    tail = str(document.get("stderr_tail") or document.get("stderr") or "").rstrip().splitlines()
    lines += [f"stderr: {output.cut(line, _STDERR_COLUMNS)}" for line in tail[-_STDERR_LINES:]]
    action = invocation.action if failure.action is None else failure.action
    what = f"cannot {action}: {failure.detail}" if action and failure.kind != "usage" else failure.detail
    invocation.warn(output.paint("pxctl:", "red", on=on) + f" {what}".replace("\n", "\n  "))
    invocation.warn(*(f"  {line}" for line in lines))
    if failure.hint:
        invocation.warn(output.paint("hint:", "bold", on=on) + f" {failure.hint}")
    return failure.exit_code or Exit.FAILED


# -- how commands are declared ----------------------------------------------------------------------------------------


class _Seconds(click.FloatRange):
    """A time to wait: what is no number (`nan`) or never over (`inf`) is refused."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return seconds if seconds < _LONGEST_SECONDS else self.fail(f"{value} is no time to wait", param, ctx)


def timeout_option(about: str = "Give up after S seconds (exit 7).", default: float | None = None) -> Decorator:
    return click.option("--timeout", type=_Seconds(), default=default, show_default=True, metavar="S", help=about)


no_wait_option = click.option("--no-wait", is_flag=True, help="Return once it is under way.")


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Have the invocation, not the command, know the value of an option."""
    invocation: Invocation | None = context.find_root().obj
    if invocation is not None and value is not None and value is not False:
        setattr(invocation, str(parameter.name).removeprefix("px_"), value)


no_autostart_option = click.option(
    "--no-autostart", is_flag=True, expose_value=False, callback=_keep, help="Do not start the daemon."
)


def waking_client(invocation: Invocation) -> Client:
    """Return a client that starts the daemon where nobody answers, unless that is turned off."""
    if invocation.no_autostart or invocation.env.get("PX_AUTOSTART", "1").lower() in {"0", "false", "no", "off"}:
        return invocation.client()

    def wake() -> None:
        from pxctl.service import START_SECONDS, start_daemon  # which few calls need

        invocation.notice("pxctl: starting pxd …")
        start_daemon(invocation, START_SECONDS)

    return invocation.client(wake)


def _globals(*, hidden: bool) -> list[click.Option]:
    """Return the options that are taken anywhere on the line; `pxctl --help` alone explains them."""

    def option(*names: str, attribute: str, **settings: Any) -> click.Option:
        return click.Option([*names, f"px_{attribute}"], expose_value=False, callback=_keep, hidden=hidden, **settings)

    return [
        option("--socket", attribute="socket", metavar="PATH", help="Socket of the daemon."),
        option("--system", attribute="system", is_flag=True, help="The machine's daemon, not the user's."),
        option("--json", attribute="json", is_flag=True, help="One JSON document on stdout (streams: NDJSON)."),
        option("--color", attribute="colour", type=click.Choice(["auto", "always", "never"]), help="Also: NO_COLOR."),
        option("-q", "--quiet", attribute="quiet", is_flag=True, help="Ids only, no notices."),
    ]


_GLOBAL_OPTIONS = _globals(hidden=True)
_GLOBAL_WORDS = "Global options, explained by pxctl --help: --socket, --system, --json, --color, -q."


class PxGroup(click.Group):
    """A group of commands; the module of one in `modules` is imported when it is called. `sample`: a unit of its."""

    def __init__(
        self, name: str, about: str, sample: str = _SAMPLE, modules: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        options = _globals(hidden=False) if modules else _GLOBAL_OPTIONS
        super().__init__(name, help=about, epilog=_GLOBAL_WORDS, params=[*options])
        self._modules, self.sample = modules, sample
        if not modules:
            root.add_command(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules or self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules:
            import_module(f"pxctl.commands.{self._modules[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if ctx.resilient_parsing or name.startswith("-") or name in known:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = [*(each for each in known if each.startswith(name)), *get_close_matches(name, known, 1)]
        word = next(filter(known.__contains__, _OTHER_WORDS.get(name, near)), "--help")
        raise usage(f"there is no command {name!r}", f"{ctx.command_path} {word}")


_OTHER_WORDS = {"ps": ["status"], "top": ["status"], "ls": ["list", "status"], "kill": ["stop"], "rm": ["remove"]}
_MODULES = {
    "run": "tools", "status": "units", "start": "units", "stop": "units", "restart": "units", "pin": "units",
    "unpin": "units", "wait": "history", "tools": "tools", "exec": "exec", "kernel": "kernel", "pipe": "pipe_runs",
    "logs": "history", "events": "history", "why": "history", "doctor": "daemon", "daemon": "daemon",
    "config": "daemon", "completion": "help", "help": "help", "version": "help",
}  # fmt: skip
_ABOUT = "Ask and steer pxd, the daemon that holds warm tools, kernels and pipes."
root = PxGroup("pxctl", _ABOUT, modules=_MODULES)
click.version_option(package_name="supervisord-py", message="%(prog)s %(version)s")(root)


def declare(
    group: PxGroup, name: str, action: str | None = None
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Declare a command of a group; the function gets the Invocation first and returns the exit code (None is 0).

    Its docstring is the help: the text, then examples as `$` lines, else it is shown with the group's sample. `action`
    is what it does, in the words of "pxctl: cannot …", with the command's arguments in braces.
    """

    def wrap(function: Callable[..., int | None]) -> click.Command:
        def call(**given: Any) -> int | None:
            context = click.get_current_context()
            invocation: Invocation = context.obj
            if action is not None:
                named = {key: ", ".join(one) if isinstance(one, tuple) else one for key, one in given.items()}
                invocation.action = action.format(**named)
            try:
                return function(invocation, **given)
            except Failure as failure:
                if failure.kind == "usage" and failure.hint is None:
                    failure.hint = f"{context.command_path} --help"
                raise

        about, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\n$ ")
        given = [*reversed(getattr(function, "__click_params__", [])), *_GLOBAL_OPTIONS]
        sample = [group.sample] if any(isinstance(one, click.Argument) and one.required for one in given) else []
        examples = examples or " ".join(["pxctl", *([] if group is root else [str(group.name)]), name, *sample])
        # The list of commands shows the first clause of the first sentence.
        short = re.split(r"[;:(.]", " ".join(about.split("\n\n")[0].split()))[0]
        epilog = f"{_GLOBAL_WORDS}\n\n\b\nExamples:\n  " + examples.replace("\n$ ", "\n  ")
        made = click.Command(name, callback=call, params=given, help=about, short_help=short, epilog=epilog)
        group.add_command(made)
        return made

    return wrap


# -- live names for the shell's completion -----------------------------------------------------------------------------


Completer = Callable[[click.Context, click.Parameter, str], list[str]]

_NAMES_SECONDS = 0.1


def _ask(context: click.Context, target: str) -> Any:
    """Return the document at `target`; {} when it does not come in time. Never starts a daemon, nor prints an error."""
    invocation: Invocation = context.find_root().obj or Invocation({})
    with contextlib.suppress(Failure, OSError):
        return Client(invocation.socket_path).get(target, timeout=_NAMES_SECONDS)
    return {}


def _offer(names: Iterable[object], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(map(str, names)) if name.startswith(incomplete)]


def _listing(target: str, key: str, kind: str, *members: str) -> Completer:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        listed = _ask(context, target).get(key, [])
        names = [(one.get("kind", kind), one.get(member)) for member in members for one in listed]
        full = (f"{its}:{name}" for its, name in names)
        return _offer((name for _, name in names), incomplete) or _offer(full, incomplete)

    return complete


def _choices(*words: str) -> Completer:
    return lambda _, __, incomplete: _offer(words, incomplete)


tool_names = _listing("/api/tools", "tools", "tool", "name")
kernel_names = _listing("/api/kernels", "kernels", "kernel", "name", "id")
pipe_names = _listing("/api/pipes", "pipes", "pipe", "name")
unit_names = _listing(query("/api/units", [("name", "*")]), "units", "", "name")
example_tools = _choices("example:compound-interest", "example:lorenz-ode-solver", "example:text-stats")
example_pipes = _choices("example:daily-digest", "example:disk-digest", "example:tell-failure")
pipe_keys = _choices(
    "agent=", "allow_empty=", "command=", "description=", "effort=", "enabled=", "history=", "limits=", "preset=",
    "retries=", "run_on_enable=", "schedule=", "schedule_config=", "timeout=", "timezone=", "title=", "trigger=",
)  # fmt: skip
_execution_ids = _listing("/api/executions", "executions", "", "id")


def execution_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _execution_ids(context, parameter, incomplete) + pipe_names(context, parameter, incomplete)


def assignments(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    if "=" in incomplete:
        return []
    with contextlib.suppress(Failure):
        tool = _ask(context, route("tool", context.params.get("tool") or ""))
        return _offer([f"{key}=" for key in (tool.get("input_schema") or {}).get("properties") or {}], incomplete)
    return []
