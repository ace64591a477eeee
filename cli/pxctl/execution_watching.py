"""What `pipe run` and `pipe retry` do once an execution is queued: watch it to its end, or let it go.

Law: Ctrl-C ends the watching, never the execution; who leaves is told how to look at it and how to cancel it.
"""

from __future__ import annotations

import signal

from pxctl.execution_following import Following
from pxctl.execution_view import ExecutionView, where_it_is
from pxctl.executions import (
    await_execution,
    exit_code_of,
    failure_of,
    particulars,
    sentence,
    successor_of,
)
from pxctl.failure import FAILED, OK, Silent
from pxctl.pipes import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

    Execution = dict[str, Any]


def watch(invocation: Invocation, client: Client, execution: Execution) -> int:
    """Follow an execution to its end; return 0 when it completed.

    A next try that begins at once (the next preset of the pipe's list) is followed, too, and its outcome counts; one
    that comes later is only named. Under `--json` the last row is one document, and its status the exit code; under
    `-q` its id is all that is printed.

    Raises:
        Failure: It did not complete.
        Silent: Ctrl-C.
    """
    while True:
        try:
            is_shown = not (invocation.json or invocation.quiet)
            final = follow(invocation, execution) if is_shown else await_execution(client, execution)
        except KeyboardInterrupt:
            leave(invocation, execution)
            raise Silent(FAILED) from None
        successor = successor_of(client, final)
        if successor is None or successor.get("not_before") is not None:
            return _end(invocation, final, successor)
        invocation.notice(f"pxctl: {sentence(final)}; execution {successor.get('id')} follows with the next preset")
        execution = successor


def _end(invocation: Invocation, final: Execution, successor: Execution | None) -> int:
    if invocation.json:
        invocation.document(final)
        return exit_code_of(final)
    if invocation.quiet:
        invocation.say(str(final.get("id")))
    if (failure := failure_of(final, successor)) is not None:
        raise failure
    invocation.notice(f"pxctl: {_name(final)}: {', '.join(['completed', *particulars(final)])}")
    return OK


def follow(invocation: Invocation, execution: Execution) -> Execution:
    """Show an execution's output and where it is until it is over; return the final row."""
    final = execution
    with ExecutionView(invocation, execution) as view:
        for event in Following(invocation, execution).events():
            view.show(event)
            if isinstance(known := event.get("execution"), dict):
                final = known
    if final.get("truncated"):
        invocation.warn("pxctl: not all of its output was kept (pipes.output_file_bytes)")
    return final


def leave(invocation: Invocation, execution: Execution) -> None:
    """Say what goes on, and let the next Ctrl-C end everything at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    number = execution.get("id")
    invocation.warn(f"\npxctl: detached; {_name(execution)} goes on")
    invocation.warn(
        invocation.err_paint("hint:", "bold") + f" pxctl pipe tail -f {number}; to end it: pxctl pipe cancel {number}"
    )


def let_go(invocation: Invocation, execution: Execution) -> int:
    """Tell of an execution that nobody waits for; return 0 unless it ended badly before it began."""
    failure = failure_of(execution) if execution.get("finished_at") else None
    if invocation.json:
        invocation.document(execution)
        return OK if failure is None else failure.exit_code
    if failure is not None:
        raise failure
    if invocation.quiet:
        invocation.say(str(execution.get("id")))
        return OK
    words = where_it_is(execution, invocation.now()) or str(execution.get("status"))
    invocation.say(f"{_name(execution)}: {words}")
    return OK


def _name(execution: Execution) -> str:
    return f"{PREFIX}{execution.get('pipe_name')} execution {execution.get('id')}"
