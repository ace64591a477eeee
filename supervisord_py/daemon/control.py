"""The control plane's process: `python -m supervisord_py.daemon.control`, started by the keeper, never by a user.

This file only shortens the way to the first answer: while a control plane is replaced, clients wait. What it does is in
brain.py.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def main() -> int:
    """Load everything quickly, then run one control plane to its end; return its exit code."""
    started_at = time.time()
    faulthandler.enable()
    with suppress(OSError):  # what ps and pgrep show; nothing but Linux has it
        Path("/proc/self/comm").write_bytes(b"pxd: control")
    # The terminal tells the keeper as well, and the keeper tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imports make tens of thousands of objects that live for ever: collecting among them costs a tenth of the start.
    gc.disable()
    # structlog loads rich wherever it is installed, for tracebacks that we print plainly: a fifth of the start.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None means 'not there' to the import system
    from supervisord_py.daemon.brain import run

    gc.freeze()
    gc.enable()
    return run(sys.argv[1:], started_at)


if __name__ == "__main__":
    sys.exit(main())
