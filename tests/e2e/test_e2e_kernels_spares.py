"""A kernel that was started ahead bears the marks of that start; what descends from it is its session's all the same.

Law: nothing is left after a stop, and nothing after a keeper's death and the sweep, whatever a process bears: the mark
of the first start, that of the session, or none, in a session of its own and with no parent left.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

from e2e.house import House, alive, house, marked, until, written_pid
from e2e.kernel_house import QUICK, row, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.deep

ESCAPED = ("forked", "apart")
ESCAPES = """
import os, subprocess, time

def told(name, pid):
    with open(name + ".part", "w") as file:
        file.write(str(pid))
    os.rename(name + ".part", name)

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        told({forked!r}, os.getpid())
        while True:
            time.sleep(1000)
    os._exit(0)
os.wait()
out = subprocess.run(["/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=-1, start_new_session=True)
told({apart!r}, int(out.stdout))
"""
"""A process that never called exec bears what the kernel was born with; the other one what the session says."""


@pytest.fixture(scope="module")
def warm() -> Iterator[House]:
    """A daemon, which has a spare kernel once it has been used; a test may kill it, if it starts it again."""
    with house(QUICK) as home:
        home.start()
        yield home


def born_of_a_spare(home: House, session: str) -> list[int]:
    """Return a kernel that was started ahead, and what its cell put out of its reach."""
    until(lambda: has_taken_a_spare(home, session), "a kernel that was started ahead")
    places = {name: home.home / f"{session}-{name}" for name in ESCAPED}
    assert run(home, session, ESCAPES.format(**{name: str(path) for name, path in places.items()})).ok
    tree = [row(home, session)["pid"], *(written_pid(path) for path in places.values())]
    assert all(alive(pid) for pid in tree)
    units = [until(lambda pid=pid: marks(pid).get("PX_UNIT", ""), "its exec is over") for pid in tree]  # type: ignore[misc]
    assert [unit.partition(":")[0] for unit in units] == ["kernel-spare", "kernel-spare", "kernel"]
    return tree


def has_taken_a_spare(home: House, session: str) -> bool:
    """Start the session's kernel anew; a spare that is late, or does not fit any more, is rightly not taken."""
    assert run(home, session, "1", reset=True).ok
    if row(home, session)["start_method"] == "spare":
        return True
    with contextlib.suppress(AssertionError):
        until(lambda: any(one["ready"] for one in home.get("/api/kernels")["spares"]), "a spare is ready", 15)
    return False


def marks(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    with open(f"/proc/{pid}/environ", "rb") as environ:
        return dict(item.decode(errors="replace").partition("=")[::2] for item in environ.read().split(b"\0") if item)


def test_a_stop_leaves_nothing_of_it(warm: House) -> None:
    tree = born_of_a_spare(warm, "stopped")
    answer = warm.request("DELETE", f"/api/kernels/{row(warm, 'stopped')['id']}")
    assert answer.status == 200, answer.body
    assert not [pid for pid in tree if alive(pid)]


def test_the_sweep_after_the_death_of_keeper_and_brain_leaves_nothing_of_it(warm: House) -> None:
    tree = born_of_a_spare(warm, "swept")
    for pid in warm.pids():
        os.kill(pid, signal.SIGKILL)
    assert warm.process is not None
    warm.process.wait(30)
    left = [*tree, *marked(warm.daemon_id)]
    warm.start()
    assert not [pid for pid in left if alive(pid)]
    found = row(warm, "swept")
    assert (found["pid"], found["state"]) == (None, "stopped"), found


ASKS_ITSELF = """
import http.client, json, os, socket
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["PX_SOCKET"])
connection = Unix("px")
body = json.dumps({"code": "1", "cwd": os.getcwd()})
connection.request("POST", "/api/kernels/itself/execute", body, {"Content-Type": "application/json"})
print(connection.getresponse().status)
"""


def test_a_cell_of_it_that_calls_its_own_session_is_refused(warm: House) -> None:
    """The mark in its environment is that of the first start: it is known by its process."""
    until(lambda: has_taken_a_spare(warm, "itself"), "a kernel that was started ahead")
    assert run(warm, "itself", ASKS_ITSELF).text == "409"
