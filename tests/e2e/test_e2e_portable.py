"""A whole daemon on the rungs of macOS (DESIGN §5), by the switch in the keeper's boot document: what they still do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import House, alive, house, marked, server, until, written_pid

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


@contextlib.contextmanager
def portable_house() -> Iterator[House]:
    """Make a house whose daemon has neither control groups nor a subreaper."""
    with house() as made:
        made.process = subprocess.Popen([sys.executable, "-P", "-c", PXD], env=made.environ, stdin=subprocess.DEVNULL)
        until(made.answers, "pxd answers")
        yield made


@pytest.fixture(scope="module")
def portable() -> Iterator[House]:
    with portable_house() as made:
        made.tool("family", FAMILY, max_memory_mb=100)
        yield made


def test_it_says_on_which_rungs_it_stands(portable: House) -> None:
    daemon = portable.get("/api/status")["daemon"]
    assert (daemon["kill_rung"], daemon["memory_rung"]) == ("process_group", "footprint")
    checks = {one["name"]: one["status"] for one in json.loads(portable.pxctl("doctor", "--json").stdout)["checks"]}
    assert checks["kill_rung"] == "warn"


def test_a_stop_ends_the_group_and_every_descendant_that_was_seen(portable: House) -> None:
    family = portable.run("family").json()
    assert portable.pxctl("stop", "family").returncode == 0
    assert [pid for pid in (family["pid"], *family["others"]) if alive(pid)] == []


def test_memory_is_sampled_and_the_end_has_its_reason(portable: House) -> None:
    assert "ResourceLimitExceeded: memory" in json.dumps(portable.run("family", {"grow": 300}).json())
    until(lambda: portable.status("family")["reason"] == "memory_limit", "its end has a name")


def test_kernels_are_started_plainly_and_live_on_over_a_restart_of_the_control_plane(portable: House) -> None:
    """What is forked would come to the keeper as an orphan, and none comes to it here."""
    assert portable.pxctl("exec", "import os; pid = os.getpid()").returncode == 0
    assert portable.get("/api/kernels")["zygotes"] == []
    before = portable.pids()
    os.kill(before[1], signal.SIGKILL)
    until(lambda: portable.answers() and portable.pids() != before, "the next control plane")
    assert portable.pxctl("exec", "print(os.getpid() == pid)").stdout == "True\n"


def test_nothing_survives_the_keeper(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, file=open({str(told)!r}, 'w'))"
    with portable_house() as own:
        assert own.pxctl("exec", code).returncode == 0
        child = written_pid(told)
        os.kill(own.pids()[0], signal.SIGKILL)
        until(lambda: not alive(child) and not marked(own.daemon_id), "nothing is left")
