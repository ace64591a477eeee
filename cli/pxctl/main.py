"""Entry of `pxctl`: the streams and Ctrl-C are seen to before anything else is even imported (CONTRACT §3).

Whatever happens ends in an exit code of the contract, and never in a traceback.
"""

from __future__ import annotations

import os
import signal
import sys

from pxctl import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OK, _FAILED = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        terminal.occupy_streams()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # Where it is ignored (a shell's background job), or another's, it is left alone.
            signal.signal(signal.SIGINT, terminal.interrupt)
        return _called(sys.argv[1:] if arguments is None else list(arguments))
    except terminal.ReaderGone:
        terminal.forget_stdout()
        return _OK
    except KeyboardInterrupt:
        # Before there was a command, or in the middle of telling how it ended.
        terminal.notice("pxctl: interrupted from the keyboard")
        return _FAILED
    finally:
        if signal.getsignal(signal.SIGINT) is terminal.interrupt:
            # Everything is said: Ctrl-C ends the process, and nobody sees a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _called(arguments: list[str]) -> int:
    # Most of the start are these imports: whoever presses Ctrl-C meanwhile gets no traceback of them.
    from pxctl.app import Invocation, call

    return call(arguments, Invocation(os.environ))
