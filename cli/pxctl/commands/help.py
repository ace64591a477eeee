"""`pxctl help`: the manual pages that came with this installation, wherever that is, and the help of each command."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import click

from pxctl.app import declare, root
from pxctl.failures import Document, Failure, usage
from pxctl.invocation import Invocation
from pxctl.output import Column

_COLUMNS = [Column("TOPIC", "name"), Column("SECTION", "section"), Column("ABOUT", "about", 1, minimum=20)]


def _pages() -> Iterator[Document]:
    """Yield the pages that this very package has installed: they need not lie where man(1) looks."""
    from importlib import metadata

    for file in metadata.files("supervisord-py") or ():
        path = Path(str(file.locate())).resolve()
        if path.parent.parent.name == "man" and path.is_file():
            name, _, section = path.name.rpartition(".")
            about = re.search(r"^\.SH NAME\n.* \\- (.*)$", path.read_text("utf-8"), re.MULTILINE)
            yield {"name": name, "section": int(section), "about": about[1] if about else None, "path": str(path)}


def _topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    names = [*(page["name"] for page in _pages()), *root.list_commands(context)]
    return [name for name in names if name.startswith(incomplete)]


@declare(root, "help", "open the manual")
@click.argument("topic", nargs=-1, shell_complete=_topics)
def show_help(invocation: Invocation, topic: tuple[str, ...]) -> None:
    """Open a page of the manual, or show the help of a command; without a topic, list the pages.

    With --json or -q a page is named, not opened.

    $ pxctl help
    $ pxctl help pxd.toml
    $ pxctl help pipe run
    """
    pages = sorted(_pages(), key=lambda page: (page["section"], page["name"]))
    found = [page for page in pages if page["name"] == " ".join(topic)]
    if topic and not found:
        if topic[0] not in root.list_commands(click.get_current_context()):
            raise usage(f"there is neither a page nor a command {topic[0]!r}", "pxctl help")
        root.main([*topic, "--help"], prog_name="pxctl", standalone_mode=False, obj=invocation)
    elif not topic or invocation.json or invocation.quiet:
        shown = found or pages
        none = "this installation has no pages: pip install supervisord-py brings them"
        invocation.print_rows({"schema": "px.help/1", "pages": shown}, shown, "path", _COLUMNS, none)
    else:
        path = found[0]["path"]
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it; man and its pager count on it
        try:
            os.execvp("man", ["man", path])  # noqa: S606 - in our place: the terminal is its own
        except FileNotFoundError as error:
            raise Failure(
                "there is no man here", kind="not_installed", hint=f"install man-db, or read {path}"
            ) from error
