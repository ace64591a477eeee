"""`pxctl kernel export`: a session's history as a notebook."""

from __future__ import annotations

import click

from pxctl import wording
from pxctl.answers import write_whole
from pxctl.commanding import declare
from pxctl.completing import kernel_names
from pxctl.kernels import kernel_id
from pxctl.naming import kernel_route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_EXPORT_SECONDS = 300.0


@declare(
    "export",
    effect="modifying: writes the file that -o names, and nothing else",
    examples=["pxctl kernel export default -o session.ipynb", "pxctl kernel export default > session.ipynb"],
)
@click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Where to; else to stdout.")
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
def command(invocation: Invocation, kernel: str, output: str | None, cwd: str | None) -> None:
    """Write what a session ran, with its outputs, as a notebook (nbformat 4.5). A stopped session has one, too."""
    invocation.action = f"export {kernel}"
    client = invocation.client()
    found = kernel_id(client, kernel, cwd=cwd)
    with client.open(
        "GET", kernel_route(found, "notebook"), fields={"Accept": "*/*"}, timeout=_EXPORT_SECONDS
    ) as exchange:
        if output is None:
            for chunk in exchange.chunks():
                invocation.write(chunk)
            invocation.write("\n")
            return
        size = write_whole(output, exchange.chunks())
    if invocation.json:
        invocation.document(
            {"schema": "px.saved/1", "path": output, "size_bytes": size, "content_type": "application/x-ipynb+json"}
        )
    else:
        invocation.notice(f"saved {output} ({wording.size(size)})")
