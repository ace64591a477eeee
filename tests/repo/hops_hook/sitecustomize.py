"""Loaded into a control plane by PYTHONPATH: notes, in order, which functions of ours a request
passes (`make hops`).

A byte on the Unix socket PX_HOPS begins a list; the next one ends it and gets it, as lines
`file:function`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from types import FrameType

OURS = f"{os.sep}supervisord_py{os.sep}"
_seen: dict[str, None] | None = None


def _note(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if (
        event == "call"
        and _seen is not None
        and OURS in code.co_filename
        and not code.co_name.startswith("<")
    ):
        _seen.setdefault(f"{code.co_filename.rpartition(OURS)[2]}:{code.co_qualname}")


def _serve(listener: socket.socket) -> None:
    global _seen  # noqa: PLW0603 - one list, of this process
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            _seen = {}
            connection.sendall(b".")
            connection.recv(1)
            seen, _seen = _seen, None
            connection.sendall("\n".join(seen).encode())


if "supervisord_py.daemon.control" in sys.orig_argv:
    _listener = socket.socket(socket.AF_UNIX)
    _listener.bind(os.environ["PX_HOPS"])
    _listener.listen()
    threading.Thread(target=_serve, args=(_listener,), daemon=True).start()
    # of this thread, the loop's: what others write behind is not on the request's way
    sys.setprofile(_note)
