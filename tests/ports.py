"""Ports for servers that are told theirs before they listen.

Law: between the choice and the listening, seconds on a slow machine, nobody gets such a port by accident: it lies below
those that the system hands out by itself to everybody who connects or binds port 0 (ip(7), ip_local_port_range).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

FIRST_EPHEMERAL = 32768
SPAN = 12000
_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port of loopback at which nobody listens; each is given once."""
    last = FIRST_EPHEMERAL
    with contextlib.suppress(OSError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        last = first if first > SPAN + 1024 else FIRST_EPHEMERAL
    while True:
        # Not `random`: it is seeded alike in all processes of pytest-xdist.
        port = last - 1 - secrets.randbelow(SPAN)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
