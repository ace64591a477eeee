"""Eats memory: `eater.py BYTES_PER_SECOND TOTAL [forked]`, page by page touched; `forked`: in three processes.

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
if mode == "forked":
    if os.fork() == 0 or os.fork() == 0:
        kept = eat(pace / 2, total // 2)
        signal.pause()
else:
    kept = eat(pace, total)
    if mode == "shared":
        for _ in range(2):
            if os.fork() == 0:
                signal.pause()
print("full", flush=True)
signal.pause()
