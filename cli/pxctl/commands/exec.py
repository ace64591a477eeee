"""`pxctl exec`: run cells in a session's kernel and show what comes of them."""

from __future__ import annotations

import os

import click

from pxctl.answers import write_whole
from pxctl.app import Seconds, declare
from pxctl.cells import Call, Order, PipeView, ask, failure_of, read_source
from pxctl.client import bare_name
from pxctl.completion import kernel_names
from pxctl.failure import OK, Failure, usage
from pxctl.follow import print_event
from pxctl.kernels import BACKENDS, CALLER_VARIABLES, own_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.cells import Source, View
    from pxctl.client import Client


_WAYS = ("auto", "never", "kitty", "iterm")


class _Wishes:
    """How the answer is to be shown and kept."""

    __slots__ = ("full", "images", "inplace", "output", "raw", "stream")

    def __init__(self, *, full: bool, raw: bool, stream: bool, images: str, output: str | None, inplace: bool) -> None:
        self.full = full
        self.raw = raw
        self.stream = stream
        self.images = images
        self.output = output
        self.inplace = inplace

    def notebook_path(self, source: Source) -> str | None:
        """Return where the executed notebook goes; None where it is only shown."""
        if self.output is None and not self.inplace:
            return None
        if not source.is_notebook or source.file is None:
            raise usage(
                "--output and --inplace save an executed notebook, and none is run",
                "pxctl exec -f x.ipynb -o done.ipynb; the notebook of a session: pxctl kernel export",
            )
        if self.output is not None and self.inplace:
            raise usage("--output and --inplace exclude each other", f"pxctl exec -f {source.file} --inplace")
        return self.output or source.file


@declare(
    "exec",
    effect="modifying: runs the code as you, in a kernel that keeps its variables; starts what is not there",
    examples=[
        "pxctl exec 'x = 6 * 7; print(x)'",
        "pxctl exec 'x + 1'                          # the same session: 43",
        "pxctl exec -f analysis.py --kernel work     # cells begin at # %%",
        "pxctl exec -f notebook.ipynb -o done.ipynb",
        "pxctl exec --bash 'ls -l | head' --timeout 10",
        "echo 'print(2 ** 100)' | pxctl exec --per-call",
        "pxctl exec 'import sys; sys.stdout.write(\"a,b\\n\")' --raw > out.csv",
    ],
)
@click.argument("code", metavar="[CODE|-]", required=False)
@click.option(
    "-f", "--file", metavar="FILE", type=click.Path(dir_okay=False), help="Run x.py (split at # %%) or x.ipynb."
)
@click.option(
    "--kernel", default="default", show_default=True, metavar="NAME", shell_complete=kernel_names, help="The session."
)
@click.option("--cwd", metavar="DIR", type=click.Path(file_okay=False), help="Where it runs; else here.")
@click.option("--timeout", type=Seconds(None), metavar="S", help="Limit of the whole call, 1 to 600 (exit 7); else 30.")
@click.option("--reset", is_flag=True, help="Replace the kernel first: no variables.")
@click.option("--per-call", is_flag=True, help="A kernel of its own, gone afterwards.")
@click.option("--bash", is_flag=True, help="Shell instead of Python.")
@click.option("--interpreter", metavar="PATH", help="Python, environment folder, or 'managed'.")
@click.option("--kernelspec", metavar="NAME", help="An installed kernelspec; see pxctl kernel specs.")
@click.option("--backend", type=click.Choice(BACKENDS), help="How the kernel is held; else as set.")
@click.option("--full", is_flag=True, help="Collapse nothing on a terminal.")
@click.option("--raw", is_flag=True, help="Only the bytes that cells print.")
@click.option("--stream", is_flag=True, help="Print the events as they come, one JSON document a line.")
@click.option(
    "--images", type=click.Choice(_WAYS), default="auto", show_default=True, help="Draw pictures on the terminal."
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Save the executed notebook.")
@click.option("--inplace", is_flag=True, help="Save the executed notebook over the one that was read.")
@click.option("--no-autostart", is_flag=True, help="Do not start the daemon when it is not there.")
def command(
    invocation: Invocation,
    code: str | None,
    file: str | None,
    kernel: str,
    cwd: str | None,
    timeout: float | None,
    reset: bool,
    per_call: bool,
    bash: bool,
    interpreter: str | None,
    kernelspec: str | None,
    backend: str | None,
    full: bool,
    raw: bool,
    stream: bool,
    images: str,
    output: str | None,
    inplace: bool,
    no_autostart: bool,
) -> int:
    """Run code in a session's kernel; variables stay for the next call.

    The session is named by --kernel and the folder. Without CODE, or with -, the code comes from stdin. On a pipe,
    stdout gets exactly what the cells print, and results as lines; on a terminal long output is collapsed.
    Ctrl-C interrupts the cell; again, harder. Exits 1 when a cell fails, 7 when the time is over.
    """
    name = bare_name("kernel", kernel)
    invocation.action = f"run kernel:{name}"
    wishes = _Wishes(full=full, raw=raw, stream=stream, images=images, output=output, inplace=inplace)
    source = read_source(invocation, code, file, bash=bash)
    wishes.notebook_path(source)
    if source.is_shell:
        _refuse_python(interpreter=interpreter, kernelspec=kernelspec)
    asked = {
        "timeout": timeout,
        "reset": reset,
        "per_call": per_call,
        "interpreter": interpreter,
        "kernelspec": kernelspec,
        "backend": backend,
        "language": "bash" if source.is_shell else None,
    }
    client = invocation.waking_client(autostart=not no_autostart)
    folder = os.path.abspath(cwd or ".")
    if not (interpreter or kernelspec or backend):
        name = own_session(client, invocation.env, name, folder, "bash" if source.is_shell else "python") or name
    order = _order(invocation, name, source, folder, asked)
    if invocation.json and not stream:
        return _answer(invocation, client, order, source, wishes)
    return _follow(invocation, client, order, source, wishes)


def _refuse_python(**named: str | None) -> None:
    """Refuse what shell cells would ignore."""
    if found := next((name for name, value in named.items() if value is not None), None):
        raise usage(f"--{found} names what runs Python cells, and shell cells run in bash", f"leave --{found} out")


def _order(invocation: Invocation, name: str, source: Source, cwd: str, asked: dict[str, Any]) -> Order:
    environ = {key: value for key in CALLER_VARIABLES if (value := invocation.env.get(key))}
    wanted = {key: value for key, value in asked.items() if value is not None and value is not False}
    body = {**source.body(), "cwd": cwd, "environ": environ, **wanted}
    return Order(name, cwd, body, invocation.env.get("PX_INSTANCE"))


def _answer(invocation: Invocation, client: Client, order: Order, source: Source, wishes: _Wishes) -> int:
    """Print the whole answer as one document."""
    try:
        answer = ask(client, order)
    except KeyboardInterrupt:
        raise _cancelled(order) from None
    invocation.document(answer)
    _save(invocation, answer.document, source, wishes)
    failure = failure_of(answer.document, order.unit, cancelled=False)
    return OK if failure is None else failure.exit_code


def _follow(invocation: Invocation, client: Client, order: Order, source: Source, wishes: _Wishes) -> int:
    """Show what happens as it happens."""
    result: dict[str, Any] = {}
    with Call(client, order) as call:
        view = None if wishes.stream else _view(invocation, call, source, wishes)
        try:
            for event in call.events():
                if event.get("event") == "done":
                    result = event.get("result") or {}
                if view is not None:
                    view.show(event)
                else:
                    print_event(invocation, event)
        except KeyboardInterrupt:
            raise _cancelled(order) from None
        finally:
            if view is not None:
                view.finish()
        cancelled = call.was_cancelled
    if view is not None:
        view.conclude(result)
    _save(invocation, result, source, wishes)
    failure = failure_of(result, order.unit, cancelled=cancelled)
    if failure is None:
        # `exit()` ends the session, for one.
        if result.get("message"):
            invocation.notice(f"pxctl: {result['message']}")
        return OK
    if wishes.stream:
        return failure.exit_code
    raise failure


def _view(invocation: Invocation, call: Call, source: Source, wishes: _Wishes) -> View:

    from pxctl.screen import Album, Screen, way_for

    album = Album(invocation.env)
    has_headers = source.file is not None
    if wishes.raw or not invocation.out_is_terminal:
        return PipeView(invocation, has_headers=has_headers, raw=wishes.raw, album=None if wishes.raw else album)
    return Screen(
        invocation,
        has_headers=has_headers,
        shows_code=source.file is not None,
        full=wishes.full,
        album=album,
        way=way_for(wishes.images, invocation.env),
        kernel=lambda: call.kernel,
    )


def _save(invocation: Invocation, result: dict[str, Any], source: Source, wishes: _Wishes) -> None:
    """Write the executed notebook where that was asked for, also when a cell failed."""
    if not source.is_notebook:
        return
    path, notebook = wishes.notebook_path(source), result.get("notebook")
    if path is None:
        invocation.notice(f"pxctl: not saved; to keep the outputs: pxctl exec -f {source.file} --inplace, or -o FILE")
    elif not isinstance(notebook, str):
        invocation.warn(f"pxctl: {path} was not written: the daemon's answer has no notebook")
    else:
        write_whole(path, iter([notebook.encode("utf-8", "surrogatepass")]))
        invocation.notice(f"pxctl: saved {path}")


def _cancelled(order: Order) -> Failure:
    is_shell = order.body.get("language") == "bash"
    variables = "" if is_shell else ", and variables are kept if it yields to an interrupt"
    return Failure(
        f"cancelled; what runs of it is being ended{variables}",
        kind="cancelled",
        unit=order.unit,
        hint=f"pxctl kernel show {order.name}",
    )
