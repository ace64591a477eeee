"""`pxctl kernel show`: one session."""

from __future__ import annotations

import click

from pxctl import wording
from pxctl.commanding import READS, declare
from pxctl.completing import kernel_names
from pxctl.kernels import failure_of, find_kernel
from pxctl.printing import print_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_FACTS = (
    "state", "reason", "pid", "running", "queued", "cwd", "interpreter", "kernelspec", "language", "backend",
    "owner", "restarts", "start_method", "cold_start_ms", "connection_file", "jupyter_id",
)  # fmt: skip


@declare("show", effect=READS, examples=["pxctl kernel show default", "pxctl kernel show default-3fa9c1 --json"])
@click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
def command(invocation: Invocation, kernel: str, cwd: str | None) -> None:
    """Show one session: state, process, folder, interpreter, what runs in it."""
    invocation.action = f"show {kernel}"
    answer = find_kernel(invocation.client(), kernel, cwd=cwd)
    document = answer.document
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    if invocation.quiet:
        invocation.say(str(document.get("id")))
        return
    facts = [("unit", str(document.get("unit")))]
    facts += [(name.replace("_", " "), str(document[name])) for name in _FACTS if document.get(name)]
    if failed := failure_of(document):
        facts.append(("failure", failed))
    for name in ("started_at", "last_used"):
        if document.get(name):
            facts.append((name.replace("_", " "), wording.ago(document[name], invocation.now())))
    if document.get("rss_bytes"):
        facts.append(("memory", wording.size(document["rss_bytes"])))
    facts += [("notice", str(notice)) for notice in document.get("notices") or []]
    print_facts(invocation, facts)
