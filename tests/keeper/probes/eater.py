"""Eats memory: `eater.py BYTES_PER_SECOND TOTAL [MODE]`, page by page touched.

`shared`: one parent with TOTAL touched bytes and two forked children that only share them. `polite`: exits with 7 on
SIGTERM; `deaf`: ignores it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

PIECE = 1 << 20


def eat(pace: float, total: int) -> list[bytes]:
    eaten = []
    began = time.monotonic()
    while len(eaten) * PIECE < total:
        eaten.append(b"\1" * PIECE)
        ahead = len(eaten) * PIECE / pace - (time.monotonic() - began)
        if ahead > 0:
            signal.sigtimedwait([], ahead)
    return eaten


pace, total, mode = float(sys.argv[1]), int(float(sys.argv[2])), (sys.argv[3:] or [""])[0]
if mode == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = eat(pace, total)
if mode == "shared" and os.fork():
    os.fork()
print("full", flush=True)
signal.pause()
