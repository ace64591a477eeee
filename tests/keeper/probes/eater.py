"""Eats memory: `eater.py BYTES_PER_SECOND TOTAL [MODE]`, page by page touched.

`shared`: one parent with TOTAL touched bytes and two forked children that only share them.
`polite`: exits with 7 on SIGTERM; `deaf`: ignores it.
"""

import os
import signal
import sys
import time

PIECE = 1 << 20

pace, total, mode = float(sys.argv[1]), float(sys.argv[2]), (sys.argv[3:] or [""])[0]
if mode == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
eaten, began = [], time.monotonic()
while len(eaten) * PIECE < total:
    eaten.append(b"\1" * PIECE)
    signal.sigtimedwait([], max(0.0, began + len(eaten) * PIECE / pace - time.monotonic()))
if mode == "shared" and os.fork():
    os.fork()
signal.pause()
