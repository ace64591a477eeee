"""A newer version of the keeper takes over in place, with all that is held; or it is refused,
and nothing is lost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keeper.keeper_rig import (
    MAIN,
    PLAIN_ARGV,
    PYTHON,
    RUNGS,
    SLEEPS,
    Rig,
    alive,
    family,
    probe,
    records,
)
from rounds import mostly_deep
from supervisord_py.keeper.handover import last_error
from supervisord_py.keeper.protocol import close_fds

COUNTS = """
import os
number = 0
while not os.path.exists("enough"):
    os.write(1 + number % 2, b"line %09d\\n" % number)
    number += 1
os.write(1, b"all %d\\n" % number)
os._exit(7)
"""
DIES = """
import os, sys
if "--check" not in sys.argv:
    os.kill({pid}, 9)
    while open("/proc/{pid}/stat").read().split()[2] != "Z":
        pass
"""


def installed(rig: Rig) -> Path:
    """Have the keeper run from a copy of the package, where a test installs another version;
    return its folder.
    """
    package = rig.dir / "lib" / "supervisord_py"
    shutil.copytree(MAIN.parent, package / "keeper", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(MAIN.parents[1] / "__init__.py", package)
    rig.argv = [*PLAIN_ARGV[:-1], str(package / "keeper" / "__main__.py")]
    return package


def install(package: Path, more: str = "") -> None:
    (package / "__init__.py").write_text(f'"""Newer."""\n\n__version__ = "9.9.9"\n{more}')


@pytest.mark.parametrize("rung", mostly_deep(RUNGS, "subreaper"))
def test_a_new_version_goes_on_with_all_that_is_held(rigs: Callable[..., Rig], rung: str) -> None:
    """Children, output, descriptors, limits, and an end that nobody saw."""
    rig = rigs(**RUNGS[rung], log_total_bytes=1 << 30)
    package = installed(rig)
    link = rig.up()
    talker = rig.spawn([*PYTHON, "-c", COUNTS], unit="tool:talker")
    spec, people = family(rig, 3, "child", "daemon", unit="tool:family")
    eats = (
        f"until [ -e eat ]; do sleep 0.01; done; exec {shlex.join(probe('eater', 1e9, 256 << 20))}"
    )
    eater = rig.spawn(["/bin/sh", "-c", eats], unit="tool:eater", max_rss_bytes=64 << 20)
    dies = rig.spawn(SLEEPS, unit="tool:dies", tag="note")
    read, write = os.pipe()
    link.call("put_fd", (write,), name="kept")
    os.close(write)
    # What ends between the two versions sends its SIGCHLD to neither.
    install(package, DIES.format(pid=dies["pid"]))
    assert link.call("upgrade")["version"] == "9.9.9"
    link.call("restart", all=False)
    link.end()

    link = rig.greet()
    hello = link.hello
    assert (hello["version"], hello["pid"], hello["control_restarts"]) == ("9.9.9", rig.pid, 1)
    assert hello["kill_rung"] == rig.links[0].hello["kill_rung"]
    assert not rig.said("swept")
    assert link.exit(dies["key"])["signal"] == signal.SIGKILL
    assert {one["key"]: one["tag"] for one in hello["children"]}[dies["key"]] == "note"
    (rig.dir / "enough").touch()
    assert link.exit(talker["key"])["code"] == 7
    link.event("gone", key=talker["key"])
    said = re.findall(rb"(?:line|all) (\d+)", rig.output("tool:talker"))
    assert sorted(map(int, said)) == list(range(len(said)))
    assert {record[3] for record in records(rig.dir / "logs/tool/talker")} == {1}
    assert link.call("spawn", **spec)["child"]["pid"] in people  # known by its key and order
    (rig.dir / "eat").touch()
    assert link.exit(eater["key"])["verdict"]["reason"] in ("memory_limit", "oom_kill")
    (fd,) = link.call("take_fd", name="kept")["received"]
    os.write(fd, b"kept")
    assert os.read(read, 10) == b"kept"
    close_fds([read, fd])
    assert link.stop(spec["key"], 5)["survivors"] == []
    assert not any(alive(pid) for pid in people)
    assert link.refused("upgrade")["kind"] == "handover", "no control plane of it was ready yet"
    link.call("ready")
    assert link.call("upgrade")["version"] is None


def open_inodes(pid: int) -> set[int]:
    """Return the inodes of all that a process has open, as fuser(1) and lsof(8) look for them."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.stat(f"/proc/{pid}/fd/{name}").st_ino)
    return inodes


def test_sockets_out_of_sight_and_a_umask_go_over_two_upgrades(rigs: Callable[..., Rig]) -> None:
    rig = rigs(umask=0o027)
    package = installed(rig)
    link = rig.up()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        inode, address = os.fstat(listening.fileno()).st_ino, listening.getsockname()
        link.call("put_fd", (listening.fileno(),), name="listen:tool:x")
    for version in ("9.9.9", "9.9.10"):
        (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
        before = len(os.listdir(f"/proc/{rig.pid}/fd"))
        link.call("ready")
        assert link.call("upgrade")["version"] == version
        link.call("restart", all=False)
        link.end()
        link = rig.greet()
        assert (link.hello["version"], link.hello["pid"]) == (version, rig.pid)
        assert inode not in open_inodes(rig.pid)
        assert len(os.listdir(f"/proc/{rig.pid}/fd")) <= before, "no duplicate is left"
        socket.create_connection(address).close()
        spec = rig.spawn(
            probe("felt"), unit=f"tool:felt-{version}", grant_fds=[[3, "listen:tool:x"]]
        )
        link.event("gone", key=spec["key"])
        felt = json.loads(rig.output(spec["unit"]))
        assert (felt["umask"], felt["fds"]["3"]) == (0o027, f"socket:[{inode}]")
    link.call("drop_fd", name="listen:tool:x")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_stop_under_way_goes_on(rig: Rig) -> None:
    package = installed(rig)
    link = rig.up()
    spec, people = family(rig, 1, "deaf")
    link.send("stop", key=spec["key"], grace_seconds=1, kill_seconds=5, reason="stopped")
    install(package)
    link.call("upgrade")
    link.end()
    link = rig.greet()
    assert link.exit(spec["key"])["verdict"]["signal"] == signal.SIGKILL
    assert not alive(people[0])


def test_a_version_that_hangs_is_refused_twice_in_a_row(rigs: Callable[..., Rig]) -> None:
    rig = rigs(trial_seconds=0.5)
    package = installed(rig)
    link = rig.up()
    child = rig.spawn(SLEEPS)
    install(package, "while True: pass\n")
    for _ in range(2):
        refusal = link.refused("upgrade")
        assert refusal["kind"] == "trial"
        assert "9.9.9 cannot take over: it does not answer within 0.5 s" in refusal["detail"]
    link.end()
    link = rig.greet()
    assert [one["pid"] for one in link.hello["children"]] == [child["pid"]]
    assert link.hello["version"] != "9.9.9"


@pytest.mark.parametrize(
    "source", ["raise SystemExit(0)\n", "import os; os._exit(0)\n", "import os; os.abort()\n"]
)
def test_a_version_that_ends_without_a_word_is_refused(rig: Rig, source: str) -> None:
    package = installed(rig)
    link = rig.up()
    install(package, source)
    assert link.refused("upgrade")["kind"] == "trial"
    assert rig.dump()["control_pid"] == link.pid


COMPILING = '  File "/lib/control.py", line 177\n    def broken(:\n               ^\nSyntaxError: invalid syntax'
IMPORTING = 'Traceback …\n  File "/lib/a.py", line 3, in <module>\n    import b\nImportError: no b'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ""),
        ("one line\n", "one line"),
        ("noise\nOSError: no space (boot.py, line 9)", "OSError: no space (boot.py, line 9)"),
        (COMPILING, "SyntaxError: invalid syntax (control.py, line 177)"),
        (IMPORTING, "ImportError: no b (a.py, line 3)"),
    ],
)
def test_the_last_error_of_a_trial_names_its_place(text: str, error: str) -> None:
    assert last_error(text) == error


def test_an_exec_that_fails_loses_nothing(rig: Rig) -> None:
    package = installed(rig)
    python = rig.dir / "python"
    python.symlink_to(sys.executable)
    rig.argv[0] = str(python)
    link = rig.up()
    child = rig.spawn(SLEEPS)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        inode = os.fstat(listening.fileno()).st_ino
        link.call("put_fd", (listening.fileno(),), name="listen:tool:x")
    install(package)
    assert link.call("upgrade")["version"] == "9.9.9"
    python.unlink()
    link.end()
    link = rig.greet()
    assert os.strerror(errno.ENOENT) in rig.said("handover_failed")[0]["detail"]
    assert [one["pid"] for one in link.hello["children"]] == [child["pid"]]
    assert inode not in open_inodes(rig.pid)
    second = rig.spawn(["/bin/true"], grant_fds=[[3, "listen:tool:x"]])
    assert link.exit(second["key"])["code"] == 0
