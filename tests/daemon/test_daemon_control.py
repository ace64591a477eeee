"""The control plane's process beside a keeper of our own making."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from supervisord_py.daemon.lock import bind_socket
from supervisord_py.daemon.paths import make_places, resolve_paths


def test_a_keeper_that_speaks_otherwise_is_not_swept_after(short_tmp: Path) -> None:
    paths = resolve_paths({"PX_HOME": str(short_tmp)})
    make_places(paths)
    lock = os.open(paths.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    ours, theirs = socket.socketpair()
    with bind_socket(paths.socket) as listening, ours, theirs:
        ours.settimeout(60)
        fds = (theirs.fileno(), listening.fileno(), lock)
        order = json.dumps({"flags": {}, "fds": fds})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PX_", "XDG_"))}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisord_py.daemon.control", order],
            env={**kept, "PX_HOME": str(short_tmp)},
            pass_fds=fds,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        (size,) = struct.unpack(">I", ours.recv(4, socket.MSG_WAITALL))
        hello = json.loads(ours.recv(size, socket.MSG_WAITALL))
        answer = json.dumps({"id": hello["id"], "ok": True, "protocol": 99, "children": []}).encode()
        ours.sendall(struct.pack(">I", len(answer)) + answer)
        _, said = process.communicate(timeout=60)
    os.close(lock)
    assert process.returncode == 1
    assert '"kind": "keeper_lost"' in said
    assert "sweeping" not in said
