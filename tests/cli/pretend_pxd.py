"""A program in the place of `pxd`: serves a little of the API from its own process, or fails as
FAKE_PXD says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

from cli.fake_daemon import FakeDaemon, document

HOME = os.environ["PX_HOME"]


def main() -> int:
    how = os.environ.get("FAKE_PXD", "serve")
    with open(f"{os.path.dirname(HOME)}/calls", "a") as calls:
        umask = os.umask(0o077)
        calls.write(
            json.dumps({"argv": sys.argv[1:], "umask": umask, "sid": os.getsid(0) == os.getpid()})
            + "\n"
        )
    if how.startswith("exit"):
        print("setting pxd.toml:3: [tols] is not known", file=sys.stderr)
        return int(how.removeprefix("exit"))
    if how == "silent":
        threading.Event().wait(60)
        return 0
    if "--print-unit" in sys.argv or "--check-config" in sys.argv:
        print(os.environ.get("FAKE_UNIT", "[Unit]"))
        return 0
    serve(how)
    return 0


def serve(how: str) -> None:
    """Hold a child, until the stop; a restart gives no answer and is one only once."""
    ended, control = threading.Event(), [os.getpid()]
    child = subprocess.Popen(["sleep", "300"])
    units = [
        {"unit": "tool:a", "kind": "tool", "state": "ready", "pid": child.pid, "waiting": 1},
        {"unit": "pipe:b", "kind": "pipe", "state": "queued", "pid": None, "waiting": 2},
    ]

    def facts() -> dict[str, Any]:
        process = {"version": "9", "rss_bytes": 1024, "started_at": "2026-11-21T10:00:00Z"}
        both = {
            "keeper": process | {"pid": os.getpid()},
            "control": process | {"pid": control[0], "restarts": 0},
        }
        return {"version": "9", "interrupted": [], "degraded": [], **both}

    def stop(_: object, connection: Any) -> None:
        connection.sendall(document({"wish": "stop"}, status="202 Accepted"))
        ended.set()

    def restart(*_: object) -> None:
        control[0] = (1 << 22) + 1  # nobody's pid (PID_MAX_LIMIT): a stop waits for it to be gone

    daemon = FakeDaemon(os.environ["PX_SOCKET"]).on("GET /api/health", document({"ok": True}))
    daemon.on("GET /api/daemon", lambda _, connection: connection.sendall(document(facts())))
    daemon.on(
        "GET /api/status", lambda _, c: c.sendall(document({"daemon": facts(), "units": units}))
    )
    daemon.on("POST /api/daemon/stop", stop).on("POST /api/daemon/restart", restart)
    daemon.start()
    ended.wait(120)
    daemon.stop()
    if how != "keeps":
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(main())
