"""How long the keeper takes to answer a spawn: fork, session, limits, exec confirmed. Asked in its own words.

This program is also the keeper's control plane (`--control FILE`): nothing else stands between.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_stage import Row, milliseconds, print_table, ratio, resident_mib, timed

KEEPER = Path(__file__).parents[2] / "supervisord_py" / "keeper" / "__main__.py"
SPAWNS = 300
TRUE = shutil.which("true") or "/bin/true"


class Channel:
    """Requests and replies over the keeper's socket; events are dropped."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._next = 0

    def call(self, verb: str, **members: Any) -> dict[str, Any]:
        self._next += 1
        body = json.dumps({"id": self._next, "verb": verb, **members}).encode()
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        while True:
            size = int.from_bytes(self._exactly(4), "big")
            message: dict[str, Any] = json.loads(self._exactly(size))
            if message.get("id") == self._next:
                return message

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self._socket.recv(size - len(content))
            if not piece:
                raise EOFError("the keeper closed the channel")
            content += piece
        return content


def control(target: Path) -> None:
    """Spawn, and Popen, turn about; write the figures to a file."""
    channel = Channel(3)
    hello = channel.call("hello", protocol=1)
    ours, theirs = [], []
    for number in range(SPAWNS + 20):
        key = f"{os.environ['BENCH_DAEMON']}.BENCH{number:07}"
        spawn = {
            "key": key, "unit": "tool:true", "argv": [TRUE], "cwd": "/", "env": {"PATH": os.environ["PATH"]},
            "umask": 0o077, "nice": 0, "rlimits": [], "grant_fds": [], "set_listen_pid": False, "max_rss_bytes": None,
            "tag": "",
        }  # fmt: skip
        begin = time.perf_counter()
        reply = channel.call("spawn", **spawn)
        ours.append(time.perf_counter() - begin)
        assert reply["ok"], reply
        theirs.append(timed(lambda: subprocess.Popen([TRUE], start_new_session=True, pipesize=-1).wait()))
        while not channel.call("release", key=key)["ok"]:
            time.sleep(0.001)
    memory = resident_mib(hello["pid"])
    target.write_text(json.dumps({"keeper": ours[20:], "popen": theirs[20:], "memory": memory}))
    channel.call("shutdown")


def measure() -> list[Row]:
    """Run a keeper of our own with this program as its control plane."""
    folder = Path(tempfile.mkdtemp(prefix="pxb", dir="/tmp"))
    daemon_id = os.urandom(4).hex()
    try:
        for name in ("run", "state", "logs"):
            (folder / name).mkdir(mode=0o700)
        document = {
            "daemon_id": daemon_id, "run_dir": str(folder / "run"), "state_dir": str(folder / "state"),
            "log_dir": str(folder / "logs"), "socket_path": "", "socket_owned": False,
            "control_argv": [sys.executable, __file__, "--control", str(folder / "figures")],
        }  # fmt: skip
        boot, writer = os.pipe()
        os.write(writer, json.dumps(document).encode())
        os.close(writer)
        argv = [sys.executable, "-I", "-S", str(KEEPER), "--boot-fd", str(boot)]
        with (folder / "err").open("wb") as err:
            subprocess.run(
                argv,
                env=os.environ | {"BENCH_DAEMON": daemon_id},
                pass_fds=[boot],
                stderr=err,
                timeout=120,
                check=False,
            )
        os.close(boot)
        if not (folder / "figures").exists():
            raise RuntimeError((folder / "err").read_text(errors="replace"))
        figures = json.loads((folder / "figures").read_text())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ours, theirs = figures["keeper"], figures["popen"]
    return [
        Row("spawn, exec confirmed", milliseconds(ours), milliseconds(theirs), ratio(ours, theirs)),
        Row("fastest", f"{1000 * min(ours):.2f} ms", f"{1000 * min(theirs):.2f} ms"),
        Row("mean", f"{1000 * statistics.mean(ours):.2f} ms", f"{1000 * statistics.mean(theirs):.2f} ms"),
        Row("keeper, resident", f"{figures['memory']:.1f} MiB", "target: 14 MiB"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--control"]:
        control(Path(sys.argv[2]))
    else:
        print_table("spawn: keeper's answer, Popen and wait of the same program (target: 3 ms)", measure())
