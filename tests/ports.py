"""Ports for servers that are told theirs before they listen.

Law: between the choice and the listening, seconds on a slow machine, nobody gets such a port by accident: it lies below
those that the system hands out by itself to everybody who connects or binds port 0 (ip(7), ip_local_port_range: 32768).
"""

from __future__ import annotations

import contextlib
import secrets
import socket

FIRST_EPHEMERAL = 32768
SPAN = 12000
_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port of loopback at which nobody listens; each is given once."""
    while True:
        # Not `random`: it is seeded alike in all processes of pytest-xdist.
        port = FIRST_EPHEMERAL - 1 - secrets.randbelow(SPAN)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
