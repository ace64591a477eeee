"""Entry of `pxctl`. Whatever happens ends in an exit code of the contract, never in a traceback."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from pxctl import output


def main(arguments: Sequence[str] | None = None) -> int:
    gc.set_threshold(100_000)  # most calls are over before there is anything to collect
    try:
        # Most of the start are these imports: Ctrl-C meanwhile shows no traceback of them.
        from pxctl.app import run

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        output.notice("pxctl: interrupted from the keyboard")
        return 1
