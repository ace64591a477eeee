"""Talks: `talker.py COUNT [exit code]` numbered lines to stdout, every tenth to stderr, unbuffered; then exits.

COUNT `-`: for ever. COUNT `flood`: big pieces for ever. COUNT `wait`: says "ready", then waits for ever.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

count, code = sys.argv[1], int((sys.argv[2:] or ["0"])[0])
if count == "wait":
    os.write(1, b"ready\n")
    while True:
        signal.pause()
if count == "flood":
    piece = b"x" * 65535 + b"\n"
    while True:
        os.write(1, piece)
numbers = itertools.count() if count == "-" else range(int(count))
for number in numbers:
    line = b"line %09d\n" % number
    os.write(2 if number % 10 == 9 else 1, line)
    if count == "-" and number % 1000 == 0:
        signal.sigtimedwait([], 0.001)
os._exit(code)
