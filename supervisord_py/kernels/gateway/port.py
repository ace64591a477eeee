"""A port on loopback for the shared gateway, and whether what listens there is the gateway.

Law: between choosing a port and the gateway's own listening nobody gets it by chance (a bound socket with SO_REUSEADDR
holds it: on Linux a second one with that option may listen there), and no token is sent to a listener that is not known
to be the gateway's process. It keeps chance away, not intent; therefore the listener is verified.
"""

from __future__ import annotations

import socket
import sys

import psutil

_ADDRESS = "127.0.0.1"


class HeldPort:
    """A free port that is held until it is let go."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((_ADDRESS, 0))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":  # elsewhere two sockets cannot share it; the time between is short, and checked
            self._socket.close()

    def let_go(self) -> None:
        """Free it, when the gateway listens or will not."""
        self._socket.close()


def listens(pid: int, port: int) -> bool:
    """Say whether exactly this process listens on the port of 127.0.0.1. Looks into the process: milliseconds."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr[0] == _ADDRESS and each.laddr[1] == port
        for each in connections
    )
