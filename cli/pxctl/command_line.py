"""One command line: parsed, its one command called, what came of it told (CONTRACT §3).

Law: whatever a command raises ends in an exit code of the contract, with at most one error on stderr (or one problem
document on stdout under `--json`).
"""

from __future__ import annotations

import click

from pxctl.commanding import group
from pxctl.commands import ENTRIES
from pxctl.failure import OK, USAGE, Failure, Silent
from pxctl.reporting import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

command = group(
    "pxctl",
    ENTRIES,
    "Ask and steer pxd, the daemon that holds warm tools, kernels and pipes.",
)


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
            return _usage_failure(error)
        case click.ClickException():
            return Failure(error.format_message())
        case OSError():
            where = f" ({error.filename})" if error.filename else ""
            return Failure(f"{error.strerror or error}{where}", kind="os_error", errno=error.errno)
        case _:
            return Failure("interrupted from the keyboard", kind="cancelled")


def _usage_failure(error: click.UsageError) -> Failure:
    path = error.ctx.command_path if error.ctx is not None else "pxctl"
    return Failure(error.format_message(), kind="usage", hint=f"{path} --help", exit_code=USAGE)
