"""A whole daemon on the rungs of macOS (DESIGN §5), by the switch in the keeper's boot document: what they still do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from e2e.house import House, alive, marked, server, until

PXD = """
import json, types
from supervisord_py.daemon import main, settings
def dumps(document):
    return json.dumps({**document, "platform": "portable"})
settings.json = types.SimpleNamespace(dumps=dumps)
main.main()
"""
FAMILY = server(
    """
    import subprocess
    if "grow" in body:
        block = bytearray(body["grow"] << 20)
        time.sleep(1000)  # over its limit until somebody looks
    member = subprocess.Popen(["sleep", "1000"])
    leaver = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return {"pid": os.getpid(), "others": [member.pid, leaver.pid]}
    """
)


def test_a_daemon_without_control_groups_and_subreaper(home: House) -> None:
    home.process = subprocess.Popen([sys.executable, "-P", "-c", PXD], env=home.environ, stdin=subprocess.DEVNULL)
    until(home.answers, "pxd answers")
    home.tool("family", FAMILY, max_memory_mb=100)
    daemon = home.get("/api/status")["daemon"]
    assert (daemon["kill_rung"], daemon["memory_rung"]) == ("process_group", "footprint")
    checks = {one["name"]: one["status"] for one in json.loads(home.pxctl("doctor", "--json").stdout)["checks"]}
    assert checks["kill_rung"] == "warn"

    family = home.run("family").json()
    assert home.pxctl("stop", "family").returncode == 0
    assert [pid for pid in (family["pid"], *family["others"]) if alive(pid)] == [], "every descendant that was seen"
    assert "ResourceLimitExceeded: memory" in json.dumps(home.run("family", {"grow": 300}).json())
    until(lambda: home.status("family")["reason"] == "memory_limit", "its end has a name")

    # Kernels are not forked: what is would come to the keeper as an orphan, and none comes to it here.
    code = "import os, subprocess; pid = os.getpid(); print(subprocess.Popen(['sleep', '1000']).pid)"
    child = int(home.pxctl("exec", code).stdout)
    assert home.get("/api/kernels")["zygotes"] == []
    before = home.pids()
    os.kill(before[1], signal.SIGKILL)
    until(lambda: home.answers() and home.pids() != before, "the next control plane")
    assert home.pxctl("exec", "print(os.getpid() == pid)").stdout == "True\n", "it lives on"
    os.kill(before[0], signal.SIGKILL)
    until(lambda: not alive(child) and not marked(home.daemon_id), "nothing survives the keeper")
