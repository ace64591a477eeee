"""Entries for journald in its native form, the same of keeper and control plane
(systemd.journal-fields(7)).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_PATH = "/run/systemd/journal/socket"
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
# the message leaves these out
_NOT_REPEATED = frozenset({"event", "level", "time", "exception", "source"})
_FIELD_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_MOST_FIELD_LETTERS = 64


def is_journal(fd: int) -> bool:
    """Say whether a descriptor is the connection to journald that the service manager gave this
    process.
    """
    with contextlib.suppress(OSError):
        seen = os.fstat(fd)
        return os.environ.get("JOURNAL_STREAM") == f"{seen.st_dev}:{seen.st_ino}"
    return False


def entry(facts: Mapping[str, object]) -> bytes:
    """Serialise an event: for each field its name, a newline, the length as 64 bits
    little-endian, value, newline.
    """
    event = str(facts.get("event", ""))
    rest = {
        name: fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False, default=str)
        for name, fact in facts.items()
        if name not in _NOT_REPEATED
    }
    message = " ".join([event, *(f"{name}={text}" for name, text in rest.items())])
    if "exception" in facts:
        message = f"{message}\n{facts['exception']}"
    fields = {
        "MESSAGE": message,
        "PRIORITY": str(PRIORITIES.get(str(facts.get("level")), PRIORITIES["info"])),
        "SYSLOG_IDENTIFIER": "pxd",
        "PX_EVENT": event,
    }
    if "source" in facts:
        fields["PX_SOURCE"] = str(facts["source"])
    for name, text in rest.items():
        fields[_field(name)] = text
    parts = []
    for name, text in fields.items():
        value = text.encode("utf-8", "replace")
        parts += [name.encode("ascii"), b"\n", struct.pack("<Q", len(value)), value, b"\n"]
    return b"".join(parts)


def _field(name: str) -> str:
    letters = (letter if letter in _FIELD_LETTERS else "_" for letter in name.upper())
    return f"PX_{''.join(letters)}"[:_MOST_FIELD_LETTERS]


def send(facts: Mapping[str, object]) -> bool:
    """Send one entry, never waiting; say whether journald took it."""
    try:
        # Made anew each time: lines are rare, and journald may have been restarted since the last
        # one.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(entry(facts), SOCKET_PATH)
    except OSError:
        return False
    return True
