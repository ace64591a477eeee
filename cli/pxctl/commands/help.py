"""`pxctl help`, `completion`, `version`: what came with this installation, wherever that is."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import textwrap
from functools import partial
from pathlib import Path

import click

from pxctl import output
from pxctl.app import Invocation, declare, root
from pxctl.client import Document, Failure, usage
from pxctl.output import Column
from pxctl.paths import own_version, shipped_files
from pxctl.reasons import TABLES

_COLUMNS = [
    Column("TOPIC", "name"),
    Column("SECTION", "section"),
    Column("ABOUT", "about", 1, minimum=20),
]
_REASONS = "reasons"
_WIDTH = 80
_HEADINGS = {
    "reason": "Why a process of a tool, kernel or pipe ended (reason)",
    "error_type": "Why an execution of a pipe failed (error_type)",
}
_SCRIPTS = {
    "bash": "completions/pxctl",
    "zsh": "site-functions/_pxctl",
    "fish": "vendor_completions.d/pxctl.fish",
}


def _pages() -> list[Path]:
    """Return the manual pages of this installation: they lie in other places than man(1) looks
    at.
    """
    return sorted(
        path
        for path in map(Path, shipped_files())
        if path.parent.parent.name == "man" and path.is_file()
    )


def _topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    names = [*(path.stem for path in _pages()), *root.list_commands(context), _REASONS]
    return [name for name in names if name.startswith(incomplete)]


def _meanings_of(topic: tuple[str, ...]) -> list[Document]:
    """Return all reasons and error types, or those of one word; none where the topic is another
    one.
    """
    rows = [{"kind": kind, **one._asdict()} for kind, table in TABLES.items() for one in table]
    if topic == (_REASONS,):
        return rows
    return [row for row in rows if topic == (row["word"],)]


def _show_meanings(invocation: Invocation, rows: list[Document]) -> None:
    if invocation.print_result(
        {"schema": "px.reasons/1", "reasons": rows}, (row["word"] for row in rows)
    ):
        return
    width = max(len(row["word"]) for row in rows)
    kind = None
    for row in rows:
        if row["kind"] != kind:
            kind = row["kind"]
            invocation.print(
                *([""] if row is not rows[0] else []), invocation.paint(_HEADINGS[kind], "bold")
            )
        margin = " " * (width + 4)
        wrap = partial(textwrap.fill, width=_WIDTH, break_on_hyphens=False)
        head = f"  {row['word']:<{width}}  "
        invocation.print(
            wrap(row["meaning"], initial_indent=head, subsequent_indent=margin),
            wrap(row["step"], initial_indent=f"{margin}-> ", subsequent_indent=f"{margin}   "),
        )


@declare(root, "help", "open the manual")
@click.argument("topic", nargs=-1, shell_complete=_topics)
def show_help(invocation: Invocation, topic: tuple[str, ...]) -> None:
    """Open a page of the manual, or show the help of a command; without a topic, list the pages.

    `reasons`, or one of them, shows what the words in the column REASON mean and what to do about
    each. With --json or -q a page is named, not opened.

    $ pxctl help pxd.toml
    $ pxctl help pipe run
    $ pxctl help reasons
    """
    meanings = _meanings_of(topic)
    if meanings:
        _show_meanings(invocation, meanings)
        return
    pages: list[Document] = []
    for path in _pages():
        about = re.search(r"^\.SH NAME\n.* \\- (.*)$", path.read_text("utf-8"), re.MULTILINE)
        facts = {"name": path.stem, "section": int(path.suffix[1:]), "about": about and about[1]}
        pages.append({**facts, "path": str(path)})
    found = [page for page in pages if page["name"] == " ".join(topic)]
    if topic and not found:
        if topic[0] not in root.list_commands(click.get_current_context()):
            raise usage(f"there is neither a page nor a command {topic[0]!r}", "pxctl help")
        root.main([*topic, "--help"], prog_name="pxctl", standalone_mode=False, obj=invocation)
    elif not topic or invocation.json or invocation.quiet:
        shown, none = (
            found or pages,
            "this installation has no pages: pip install supervisord-py brings them",
        )
        invocation.print_rows(
            {"schema": "px.help/1", "pages": shown}, shown, "path", _COLUMNS, none
        )
    else:
        page = found[0]["path"]
        # Python ignores it; man and its pager count on it
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp("man", ["man", page])  # noqa: S606 - in our place: the terminal is its own
        except FileNotFoundError as error:
            raise Failure(
                "there is no man here", kind="not_installed", hint=f"less {page}"
            ) from error


@declare(root, "completion", "print the script for {shell}")
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
def print_script(_: Invocation, shell: str) -> None:
    """Print a completion script. Names of tools and units are asked of the running daemon, in at
    most 0.1 s.

    $ pxctl completion bash > ~/.local/share/bash-completion/completions/pxctl
    $ pxctl completion zsh > ~/.zfunc/_pxctl    # a directory of $fpath
    $ pxctl completion fish > ~/.config/fish/completions/pxctl.fish
    """
    path = next((path for path in shipped_files() if path.endswith(_SCRIPTS[shell])), None)
    if path is None:
        raise Failure(
            "this installation has no scripts", hint="pip install supervisord-py brings them"
        )
    output.write(Path(path).read_bytes())


@declare(root, "version")
def show_version(invocation: Invocation) -> None:
    """Show the versions of client and daemon."""
    ours, theirs = own_version(), None
    with contextlib.suppress(Failure):
        theirs = invocation.client().get("/api/daemon", timeout=5.0).get("version")
    document = {"schema": "px.version/1", "client": ours, "daemon": theirs}
    invocation.show(
        document, [ours], f"pxctl {ours}", f"pxd {theirs}" if theirs else "pxd not running"
    )
    if theirs and ours != theirs and not invocation.json:
        invocation.notice(
            "pxctl: client and daemon differ; bring the daemon up to date: pxctl daemon restart"
        )
