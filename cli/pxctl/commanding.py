"""How commands are declared: lazily loaded, with the global options before and after them, help that shows examples.

Law: `pxctl X` imports the module of X and of no other command; every help page says what the command changes.
"""

from __future__ import annotations

from importlib import import_module

import click

from pxctl.failure import OK, USAGE, Silent
from pxctl.terminal import notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from click.shell_completion import CompletionItem

    from pxctl.invocation import Invocation

READS = "read-only"


class Entry:
    """One line of a group's table: where the command is, what it does in a few words, under which heading."""

    __slots__ = ("module", "section", "short")

    def __init__(self, module: str, short: str, section: str = "Commands") -> None:
        self.module = module
        self.short = short
        self.section = section


def _store(attribute: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that puts a given value into the invocation; values that were not given leave it alone."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        invocation: Invocation | None = context.find_root().obj
        if invocation is not None and value is not None and value is not False:
            setattr(invocation, attribute, value)

    return keep


def _show_version(context: click.Context, _: click.Parameter, value: Any) -> None:
    if not value or context.resilient_parsing:
        return
    from pxctl.versions import own_version  # noqa: PLC0415 - importlib.metadata is dear

    click.echo(f"pxctl {own_version()}")
    context.exit(OK)


def global_options() -> list[click.Parameter]:
    """Return fresh copies of the options that every command takes."""

    def option(*names: str, attribute: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_store(attribute), **settings)

    return [
        option("--socket", "px_socket", attribute="socket", metavar="PATH", help="Socket of the daemon."),
        option("--system", "px_system", attribute="system", is_flag=True, help="The machine's daemon, not the user's."),
        option(
            "--json", "px_json", attribute="json", is_flag=True, help="One JSON document on stdout (streams: NDJSON)."
        ),
        option(
            "--color",
            "px_color",
            attribute="colour",
            type=click.Choice(["auto", "always", "never"]),
            help="Colour; also NO_COLOR.",
        ),
        option("-q", "--quiet", "px_quiet", attribute="quiet", is_flag=True, help="Ids only, no notices."),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        ),
    ]


class _WithGlobals(click.Command):
    """Takes the global options; keeps them apart on the help page."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._own = len(self.params)
        self.params = [*self.params, *global_options()]

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


class LazyGroup(_WithGlobals, click.Group):
    """A group whose commands are imported when they are called."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = entries

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; called with nothing at all, show the help on stderr: nothing was asked for, so it is no result."""
        if not args and not ctx.resilient_parsing:
            notice(self.get_help(ctx))
            raise Silent(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = import_module(entry.module).command
        return found

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
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only while completing

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=entry.short)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]


def declare(name: str, *, effect: str, examples: Sequence[str]) -> Callable[[Callable[..., int | None]], PxCommand]:
    """Declare a command; the function gets the Invocation first and returns the exit code (None is 0)."""

    def wrap(function: Callable[..., int | None]) -> PxCommand:
        return click.command(name, cls=PxCommand, effect=effect, examples=examples)(click.pass_obj(function))

    return wrap


def group(name: str, entries: Mapping[str, Entry], text: str) -> LazyGroup:
    """Declare a group of lazily imported commands."""
    return LazyGroup(name=name, entries=entries, help=text)
