"""Ports for tools that bind by themselves, and who listens where in a tree of processes."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1")  # noqa: S104 - recognised, not bound
_REACHABLE = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104 - recognised, not bound


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening TCP socket of some process."""

    address: str
    port: int
    pid: int

    @property
    def is_reachable(self) -> bool:
        """True when a connection to 127.0.0.1 finds it."""
        return self.address in _REACHABLE

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def free_port() -> int:
    """Return a port on 127.0.0.1 that is free at this moment; whoever listens there later is looked at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tree_of(leader: int) -> tuple[int, ...]:
    """Return the pids of a process and its descendants, as far as they live."""
    try:
        root = psutil.Process(leader)
        return (leader, *(child.pid for child in root.children(recursive=True)))
    except psutil.Error:
        return ()


def listening_of(leader: int) -> tuple[Listening, ...]:
    """Return where a tree of processes listens, without duplicates, leader first. Costs milliseconds."""
    found: dict[tuple[str, int], Listening] = {}
    for pid in tree_of(leader):
        for one in _listening_of_process(pid):
            found.setdefault((one.address, one.port), one)
    return tuple(found.values())


def _listening_of_process(pid: int) -> Iterator[Listening]:
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN:
            yield Listening(connection.laddr[0], connection.laddr[1], pid)


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(one.port == port and one.is_reachable for one in listening_of(leader))
