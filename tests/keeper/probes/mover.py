"""A pid that keeps moving: forks, the parent exits, the child does the same, for ever, deaf to
TERM.

It bounds itself: after the number of seconds in the second word it ends, whatever happens to the
test.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).write_text("moving\n")
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
