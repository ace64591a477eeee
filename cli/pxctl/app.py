"""The command line: what a call was given and how it answers, how commands are declared, loaded and
completed.

`pxctl X` imports the module of X and of no other command. A command gets everything from its
`Invocation`: none reads the environment on its own. Whatever a command raises ends in an exit code
of CONTRACT §3, with at most one error on stderr, or one problem document on stdout under `--json`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from pxctl import output, paths
from pxctl.client import Client, Document, Exchange, Exit, Failure, route, usage

if TYPE_CHECKING:  # four milliseconds, which only completion needs
    from click.shell_completion import CompletionItem

_STDERR_LINES, _STDERR_COLUMNS = 20, 400
_BAD_ANSWER = (KeyError, json.JSONDecodeError)  # of a daemon of another version, perhaps
_LONGEST_SECONDS = 1e9  # a socket takes no longer timeout
_SAMPLE = "compound-interest"
_MEMBER_LINES = 40  # of a text of several lines
_DOCTOR = "pxctl doctor"
Decorator = Callable[[Any], Any]
_MOMENTS = {
    "next_run",
    "last_run",
    "last_used",
    "last_success",
    "not_before",
    "context_start",
    "context_end",
}


# -- one call --------------------------------------------------------------------------------------


class Invocation:
    """What was asked for, beside the command's own arguments: global options, the daemon that is
    meant, the streams.

    `action` is what is being done, in the words of "pxctl: cannot …". `is_of_one_kind`: the command
    is of a group, in which units are called by their names alone.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.socket: str | None = None
        self.system = self.json = self.quiet = self.no_autostart = self.is_of_one_kind = False
        self.colour = "auto"
        self.action: str | None = None
        self.arguments: Sequence[str] = ()  # of the whole command line
        self.in_is_terminal, self.out_is_terminal, self.err_is_terminal = map(os.isatty, range(3))

    @property
    def socket_path(self) -> str:
        return paths.find_socket(self.env, explicit=self.socket, system=self.system)

    @property
    def given_options(self) -> list[str]:
        """The options that say which daemon is meant.

        Variables are there for the next command, too.
        """
        options = ["--system"] if self.system else []
        return [*options, "--socket", self.socket_path] if self.socket else options

    def complete(self, text: str) -> str:
        """Return a text whose commands of pxctl mean the same daemon as this call."""
        options = self.given_options
        if not options:
            return text
        from pxctl import hints  # which few calls need

        return hints.complete(text, options, _MODULES)

    def complete_document(self, value: Any) -> Any:
        """Return a document whose next steps mean the same daemon as this call."""
        options = self.given_options
        if not options:
            return value
        from pxctl import hints

        return hints.complete_document(value, options, _MODULES)

    def next_step(self, failure: Failure) -> str | None:
        """Return the hint of a failure: a command for this very daemon, and never the one that
        has just failed.
        """
        import shlex

        from pxctl import hints

        if failure.kind in {"unreachable", "not_running"} and self._machines_daemon_answers():
            return (
                f"the machine's daemon runs: {shlex.join(['pxctl', '--system', *self.arguments])}"
            )
        hint = failure.hint
        program = failure.extra.get("program")
        found = _which(str(program), self.env) if program else None
        if found is not None:
            return self.complete(
                f"{program} is on your PATH, not on the daemon's: write {found}, or start the "
                "daemon with your PATH:"
                " pxctl daemon stop && pxctl daemon start (a service: pxctl daemon install --force "
                "before that)"
            )
        if hint is not None and hints.names_itself(hint, self.arguments):
            log = f"tail -n 50 {shlex.quote(paths.find_log_file(self.env, system=self.system))}"
            hint = log if hints.names_itself(_DOCTOR, self.arguments) else _DOCTOR
        return None if hint is None else self.complete(hint)

    def _machines_daemon_answers(self) -> bool:
        """Say whether the user's own daemon was meant by default, and only the machine's is
        there.
        """
        if self.system or self.socket or self.env.get("PX_SOCKET") or self.env.get("PX_HOME"):
            return False
        with contextlib.suppress(Failure):
            Exchange(paths.MACHINES_SOCKET).close()
            return True
        return False

    @property
    def has_colour(self) -> bool:
        return output.wants_colour(self.colour, self.env, terminal=self.out_is_terminal)

    @property
    def err_has_colour(self) -> bool:
        return output.wants_colour(self.colour, self.env, terminal=self.err_is_terminal)

    def client(self, wake: Callable[[], None] | None = None) -> Client:
        return Client(
            self.socket_path, wake, lambda: self.spinner("pxd", "waiting for its answer…")
        )

    # -- stdout

    def paint(self, text: str, style: str | None) -> str:
        return output.paint(text, style, on=self.has_colour)

    def print(self, *lines: object) -> None:
        output.write("".join(f"{line}\n" for line in lines))

    def print_json(self, value: Document) -> None:
        value = self.complete_document(value)
        self.print(
            json.dumps(value, ensure_ascii=False, indent=2 if self.out_is_terminal else None)
        )

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
        """Write what a check found: the verdict, in its colour, a sentence, and below it lines
        of what to do.
        """
        self.print(
            f"{self.paint(f'{word:<5}', output.BY_STATE.get(word))}  {output.clean(str(text))}"
        )
        cure = self.complete(str(cure or ""))
        self.print(*(f"       {output.clean(line)}" for line in cure.splitlines()))

    def table(self, columns: Sequence[output.Column], rows: Sequence[Document]) -> list[str]:
        width = output.screen().columns if self.out_is_terminal else None
        return output.table(columns, rows, width, colour=self.has_colour)

    def print_rows(
        self,
        result: Document,
        rows: Sequence[Document],
        key: str,
        columns: Sequence[output.Column],
        none: str,
    ) -> None:
        """Write rows as a table, as `--json` the whole result, as `-q` one member of each;
        `none`: there are none.
        """
        if self.print_result(result, (row.get(key) for row in rows)):
            return
        if rows:
            self.print(*self.table(columns, rows))
        else:
            self.notice(none)

    def print_members(self, document: Document, **more: object) -> None:
        """Write names and values of a document, and `more`, below each other.

        What is absent, empty or nested is left out. A text of several lines stands below its name,
        indented.
        """
        members = {**document, **more, "schema": None}
        shown: dict[str, str] = {}
        for name, value in members.items():
            label, text = self._member(name, value, members)
            if text not in ("", output.ABSENT):
                shown[label] = text
        one_line = [name for name, text in shown.items() if "\n" not in text]
        widest = max(map(len, one_line), default=0)
        for name, text in shown.items():
            if name in one_line:
                self.print(f"{name:{widest}}  {output.clean(text)}")
            else:
                self.print(name, *output.indented(text, _MEMBER_LINES))

    def _member(self, name: str, value: object, members: Document) -> tuple[str, str]:
        """Return the name and the text of one member; the text is empty where there is nothing
        to show.
        """
        if value is None or isinstance(value, dict):
            return name, ""
        if isinstance(value, list):
            is_flat = all(isinstance(one, str) for one in value)
            return name, ", ".join(value) if is_flat else ""
        if isinstance(value, str):
            is_moment = name.endswith("_at") or name in _MOMENTS
            return name, self.moment(value) if is_moment else value.rstrip()
        noun, _, measure = name.rpartition("_")
        # `stdout_bytes` must not take the place of `stdout`.
        label = name if noun in members else noun
        if measure == "seconds" and isinstance(value, int | float):
            return label, output.duration(value)
        if measure == "ms" and isinstance(value, int | float):
            return label, output.duration(value / 1000)
        if measure == "bytes" and isinstance(value, int | float):
            return label, output.size(value)
        return name, json.dumps(value)

    def print_degraded(self, daemon: Document) -> None:
        """Report on stderr what of a daemon works only in part, each with what repairs it."""
        for part in daemon.get("degraded") or []:
            self.notice(f"pxctl: {part['part']}: {part['detail']}", f"repair: {part['repair']}")

    def print_done(self, *lines: str) -> None:
        if not (self.json or self.quiet):
            self.print(*map(self.complete, lines))

    def moment(self, text: object) -> str:
        """Return an RFC 3339 time as a person's clock says it on a terminal; elsewhere as it
        came.
        """
        at = output.epoch(text)
        if at is None:
            return output.ABSENT
        return (
            time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(at))
            if self.out_is_terminal
            else str(text)
        )

    # -- stderr

    def notice(self, *lines: str) -> None:
        """Write lines of progress or warning to stderr; `-q` silences them."""
        if not self.quiet:
            self.warn(*map(self.complete, lines))

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
            self.warn(f"\npxctl: {self.complete(words)}")
            raise click.exceptions.Exit(Exit.FAILED) from None

    # -- what is done alike to tools and pipes

    def add(
        self, kind: str, target: str, content: Document, words: str = "added in {folder}"
    ) -> Document | None:
        """Have a unit made or installed and say where; return its document where the next step
        is to be told.
        """
        if "source" in content and not re.match(
            r"example:|[A-Za-z][A-Za-z0-9+.-]*://", content["source"]
        ):
            # the daemon runs elsewhere
            content["source"] = os.path.abspath(os.path.expanduser(content["source"]))
        with self.spinner(kind, "adding…"):
            made = self.client().ask("POST", target, content=content, timeout=None)
        if self.print_result(made, [made["name"]]):
            return None
        self.print(f"{kind}:{made['name']} {words.format(folder=made.get('folder'))}")
        self.print_warnings(made)
        return made

    def remove(self, unit: str, command: str, target: str, yes: bool) -> None:
        """Have a unit and its folder removed once a person says so; `command` is the one that
        does not ask.
        """
        if not yes and not (self.in_is_terminal and self.err_is_terminal):
            raise Failure(
                "nobody is there to be asked", kind="unconfirmed", hint=command, unit=unit
            )
        if not yes and not click.confirm(f"Remove {unit} and its folder?", err=True):
            raise click.exceptions.Exit(Exit.FAILED)
        answer = self.client().ask("DELETE", target, timeout=None)
        self.show(answer, [unit.partition(":")[2]], f"{unit} removed")


# -- one command line ------------------------------------------------------------------------------


def run(arguments: list[str]) -> int:
    invocation = Invocation(os.environ)
    invocation.arguments = tuple(arguments)
    try:
        code: Any = root.main(
            args=list(arguments), prog_name="pxctl", standalone_mode=False, obj=invocation
        )
    except click.exceptions.NoArgsIsHelpError as error:  # nothing was asked for, so it is no result
        output.notice(error.format_message())
        return Exit.USAGE
    except (
        click.ClickException,
        click.Abort,
        KeyboardInterrupt,
        Failure,
        OSError,
        *_BAD_ANSWER,
    ) as error:
        failure = _failure_of(error)
        # A line that was not parsed to its end may have asked for JSON behind the mistake.
        invocation.json = invocation.json or (failure.kind == "usage" and "--json" in arguments)
        return report(invocation, failure)
    return code if isinstance(code, int) else Exit.OK


def _which(program: str, env: Mapping[str, str]) -> str | None:
    """Return where a person's shell finds a program that the daemon did not find; None where it
    is a path.
    """
    import shutil

    return None if "/" in program else shutil.which(program, path=env.get("PATH", os.defpath))


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _failure_of(error: BaseException) -> Failure:
    match error:
        case Failure():
            return error
        case click.NoSuchOption() if (
            error.ctx is not None and error.ctx.command_path == "pxctl run"
        ):
            key = error.option_name.lstrip("-").replace("-", "_")
            detail = f"there is no option {error.option_name}; inputs of a tool are KEY=VALUE"
            return usage(detail, f"pxctl run TOOL {key}=VALUE")
        case click.UsageError():
            path = error.ctx.command_path if error.ctx is not None else "pxctl"
            return usage(error.format_message(), f"{path} --help")
        case click.ClickException():
            return Failure(error.format_message())
        case FileNotFoundError() if not error.filename and not _has_folder():
            detail = "the present folder does not exist any more: it was deleted, or made anew"
            way_out = "go to one that exists, or enter it again: cd .. && cd -"
            return Failure(detail, kind="os_error", hint=way_out, errno=error.errno)
        case OSError():
            where, hint = (
                (f" ({error.filename})", f"ls -ld {error.filename}")
                if error.filename
                else ("", None)
            )
            return Failure(
                f"{error.strerror or error}{where}", kind="os_error", hint=hint, errno=error.errno
            )
        case KeyError() | json.JSONDecodeError():
            detail = f"the daemon's answer is not as it should be: {error!r}"
            return Failure(detail, kind="bad_answer", hint="pxctl version")
        case _:
            return Failure("interrupted from the keyboard", kind="cancelled")


def report(invocation: Invocation, failure: Failure) -> int:
    """Say how it failed: a problem document on stdout with `--json`, else words on stderr.

    Returns the exit code.
    """
    failure.hint = invocation.next_step(failure)
    document = invocation.complete_document(failure.document())
    on = invocation.err_has_colour
    code = failure.exit_code or Exit.FAILED
    if invocation.json:
        output.write(json.dumps(document, ensure_ascii=False) + "\n")
        return code
    # What the sentence says already is not listed again.
    lines = [
        f"{error.get('pointer') or error.get('file') or '(the whole input)'}: "
        f"{error.get('message')}"
        for error in document.get("errors") or []
        if str(error.get("message")) not in failure.detail
    ]
    lines += [f"candidate: {candidate}" for candidate in document.get("candidates") or []]
    lines += [
        f"survived: pid {one.get('pid')} ({one.get('name', '?')})"
        for one in document.get("survivors") or []
    ]
    tail = str(document.get("stderr_tail") or document.get("stderr") or "").rstrip().splitlines()
    lines += [f"stderr: {output.cut(line, _STDERR_COLUMNS)}" for line in tail[-_STDERR_LINES:]]
    action = invocation.action if failure.action is None else failure.action
    detail = invocation.complete(failure.detail)
    what = f"cannot {action}: {detail}" if action and failure.kind != "usage" else detail
    invocation.warn(output.paint("pxctl:", "red", on=on) + f" {what}".replace("\n", "\n  "))
    invocation.warn(*(f"  {line}" for line in lines))
    if failure.hint:
        invocation.warn(output.paint("hint:", "bold", on=on) + f" {failure.hint}")
    return code


# -- how commands are declared ---------------------------------------------------------------------


def _seconds(text: str) -> float:
    if not 0 <= float(text) < _LONGEST_SECONDS:  # "nan" is no time to wait, either
        raise ValueError(text)
    return float(text)


def timeout_option(
    about: str = "Give up after S seconds (exit 7).", default: float | None = None
) -> Decorator:
    return click.option(
        "--timeout", type=_seconds, default=default, show_default=True, metavar="S", help=about
    )


no_wait_option = click.option("--no-wait", is_flag=True, help="Return once it is under way.")


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    invocation: Invocation | None = context.find_root().obj
    if invocation is not None and value:
        setattr(invocation, str(parameter.name), value)


no_autostart_option = click.option(
    "--no-autostart",
    is_flag=True,
    expose_value=False,
    callback=_keep,
    help="Do not start the daemon.",
)


def _globals(*, hidden: bool) -> list[click.Parameter]:
    """Return the options that are taken anywhere on the line; `pxctl --help` alone explains
    them.
    """

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, hidden=hidden, **settings)

    colours = click.Choice(["auto", "always", "never"])
    return [
        option("--socket", metavar="PATH", help="Socket of the daemon."),
        option("--system", is_flag=True, help="The machine's daemon, not the user's."),
        option("--json", is_flag=True, help="One JSON document on stdout (streams: NDJSON)."),
        option("--color", "colour", type=colours, help="Also: NO_COLOR."),
        option("-q", "--quiet", is_flag=True, help="Ids only, no notices."),
    ]


_GLOBAL_OPTIONS = _globals(hidden=True)
_SETTINGS = {"help_option_names": ["-h", "--help"]}
_GLOBAL_WORDS = (
    "Global options, explained by pxctl --help: --socket, --system, --json, --color, -q."
)


def _hidden_options(command: click.Command, incomplete: str) -> list[CompletionItem]:
    """Return the options that begin so and that the help leaves out: they are taken all the
    same.
    """
    if not incomplete.startswith("-"):
        return []
    from click.shell_completion import CompletionItem

    hidden = [one for one in command.params if isinstance(one, click.Option) and one.hidden]
    return [
        CompletionItem(name, help=one.help)
        for one in hidden
        for name in one.opts
        if name.startswith(incomplete)
    ]


class PxCommand(click.Command):
    """A command, which completes the global options, too."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return super().shell_complete(ctx, incomplete) + _hidden_options(self, incomplete)


class PxGroup(click.Group):
    """A group of commands; the module of one in `modules` is imported when it is called.

    `sample`: a unit of its; `examples`: commands that its help ends with.
    """

    def __init__(
        self,
        name: str,
        about: str,
        sample: str = _SAMPLE,
        modules: Mapping[str, str] = MappingProxyType({}),
        examples: Sequence[str] = (),
    ) -> None:
        options = _globals(hidden=False) if modules else _GLOBAL_OPTIONS
        words = "" if modules else _GLOBAL_WORDS  # pxctl's own help lists those options
        epilog = f"{words}\n\n\b\nExamples:\n  " + "\n  ".join(examples)
        super().__init__(
            name, help=about, epilog=epilog.strip("\n"), params=options, context_settings=_SETTINGS
        )
        self._modules, self.sample = modules, sample
        if not modules:
            root.add_command(self)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return super().shell_complete(ctx, incomplete) + _hidden_options(self, incomplete)

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
        from pxctl.habits import nearest_commands

        group = "" if self is root else str(self.name)
        near = nearest_commands(group, name, args[1:], known)
        raise usage(
            f"there is no command {name!r}", ", or ".join(near) or f"{ctx.command_path} --help"
        )


_MODULES = {
    "run": "tools", "status": "units", "is-active": "units", "start": "units", "stop": "units",
    "restart": "units", "pin": "units", "unpin": "units", "wait": "history", "tools": "tools",
    "exec": "exec", "kernel": "kernel", "pipe": "pipe", "logs": "logs", "events": "history", "why":
    "history", "doctor": "daemon", "daemon": "daemon", "config": "daemon", "completion": "help",
    "help": "help", "version": "help",
}  # fmt: skip
_ABOUT = "Ask and steer pxd, the daemon that holds warm tools, kernels and pipes."
_FIRST_STEPS = (
    "pxctl daemon start",
    "pxctl tools add example:compound-interest",
    "pxctl run compound-interest principal=1000 annual_rate=0.05 years=2",
    "pxctl status",
    "pxctl help pxctl                 # the manual; pxctl help lists its pages",
)
root = PxGroup("pxctl", _ABOUT, modules=_MODULES, examples=_FIRST_STEPS)
click.version_option(
    None, "-V", "--version", package_name="supervisord-py", message="%(prog)s %(version)s"
)(root)


def declare(
    group: PxGroup, name: str, action: str | None = None
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Declare a command of a group; the function gets the Invocation first and returns the exit
    code (None is 0).

    Its docstring is the help: the text, then examples as `$` lines, else it is shown with the
    group's sample. `action` is what it does, in the words of "pxctl: cannot …", with the command's
    arguments in braces.
    """

    def wrap(function: Callable[..., int | None]) -> click.Command:
        def call(**given: Any) -> int | None:
            context = click.get_current_context()
            invocation: Invocation = context.obj
            invocation.is_of_one_kind = group is not root
            if action is not None:
                named = {
                    key: ", ".join(one) if isinstance(one, tuple) else one
                    for key, one in given.items()
                }
                invocation.action = action.format(**named)
            try:
                return function(invocation, **given)
            except Failure as failure:
                if failure.kind == "usage" and failure.hint is None:
                    failure.hint = f"{context.command_path} --help"
                raise

        about, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\n$ ")
        given = [*reversed(getattr(function, "__click_params__", [])), *_GLOBAL_OPTIONS]
        sample = (
            [group.sample]
            if any(isinstance(one, click.Argument) and one.required for one in given)
            else []
        )
        examples = examples or " ".join(
            ["pxctl", *([] if group is root else [str(group.name)]), name, *sample]
        )
        # The list of commands shows the first clause of the first sentence.
        short = re.split(r"[;:(.]", " ".join(about.split("\n\n")[0].split()))[0]
        epilog = f"{_GLOBAL_WORDS}\n\n\b\nExamples:\n  " + examples.replace("\n$ ", "\n  ")
        made = PxCommand(
            name,
            callback=call,
            params=given,
            help=about,
            short_help=short,
            epilog=epilog,
            context_settings=_SETTINGS,
        )
        group.add_command(made)
        return made

    return wrap


# -- live names for the shell's completion ---------------------------------------------------------


Completer = Callable[[click.Context, click.Parameter, str], "list[str] | list[CompletionItem]"]

_NAMES_SECONDS = 0.1


def _ask(context: click.Context, target: str) -> Any:
    """Return the document at `target`; {} when it does not come in time.

    Never starts a daemon, nor prints an error.
    """
    invocation: Invocation = context.find_root().obj or Invocation({})
    with contextlib.suppress(Failure, OSError, *_BAD_ANSWER):
        return Client(invocation.socket_path).get(target, timeout=_NAMES_SECONDS)
    return {}


def _offer(names: Iterable[object], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(map(str, names)) if name.startswith(incomplete)]


def _choices(*words: str) -> Completer:
    return lambda _, __, incomplete: _offer(words, incomplete)


def _file(begun: str, kind: str = "file") -> list[CompletionItem]:
    """Have the shell complete a path that is begun, which may be the end of a word only; `kind`:
    "file" or "dir".
    """
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type=kind)]


def _or_files(*words: str) -> Completer:
    """Offer words and, beside them, files."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [*map(CompletionItem, _offer(words, incomplete)), *_file(incomplete)]

    return complete


def file_after_at(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer files for the value of an option that takes JSON or @FILE."""
    return _file(incomplete[1:]) if incomplete.startswith("@") else []


def _names(target: str, key: str, *members: str) -> Completer:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        units = _ask(context, target).get(key, [])
        names = (unit[member] for member in members for unit in units)
        return _offer(names, incomplete) or _offer((unit["unit"] for unit in units), incomplete)

    return complete


unit_names = _names("/api/units?name=*", "units", "name")
tool_names = _names("/api/units?name=tool:*", "units", "name")
pipe_names = _names("/api/units?name=pipe:*", "units", "name")
kernel_names = _names("/api/kernels", "kernels", "name", "id")
interpreters = _or_files("managed")
example_tools = _or_files(
    "example:compound-interest", "example:lorenz-ode-solver", "example:text-stats"
)
example_pipes = _or_files("example:daily-digest", "example:disk-digest", "example:tell-failure")
pipe_keys = _choices(
    "agent=", "allow_empty=", "budget=", "command=", "description=", "effort=", "enabled=",
    "history=", "limits=", "model=", "name=", "preset=", "provider=", "redact=", "retries=",
    "run_on_enable=", "schedule=", "schedule_config=", "timeout=", "timezone=", "title=",
    "trigger=",
)  # fmt: skip
"""Every key of pipe.md(5); a test compares it with what the daemon reads."""


def execution_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    ids = (one["id"] for one in _ask(context, "/api/executions").get("executions", []))
    pipes = (one["name"] for one in _ask(context, "/api/units?name=pipe:*").get("units", []))
    return _offer([*ids, *pipes], incomplete)


def assignments(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Offer a tool's inputs as KEY=, and files behind KEY=@."""
    key, is_file, begun = incomplete.partition("=@")
    if key and is_file:
        return _file(begun)
    with contextlib.suppress(Failure):
        schema = (
            _ask(context, route("tool", context.params.get("tool") or "")).get("input_schema") or {}
        )
        return _offer(
            (f"{key}=" for key in schema.get("properties", ()) if "=" not in incomplete), incomplete
        )
    return []
