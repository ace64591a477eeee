"""What a child feels, and what becomes of one that cannot be."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keeper.keeper_rig import Rig, one_rung, probe, until
from supervisord_py.keeper.protocol import close_fds

ROOT = Path(__file__).parents[2]


def felt(rig: Rig, **members: Any) -> dict[str, Any]:
    link = rig.links[-1]
    spec = rig.spawn(probe("felt"), **members)
    assert link.exit(spec["key"])["code"] == 0, rig.output(spec["unit"])
    report: dict[str, Any] = json.loads(rig.output(spec["unit"]))
    return report


GLIBC_OWN = (1 << (32 - 1)) | (1 << (33 - 1))
"""The two signals that glibc keeps for itself: make(1) leaves them ignored, and nobody but glibc
can change them.
"""


@one_rung
def test_a_child_has_what_was_asked_for_it_and_nothing_else(rung: Rig) -> None:
    limits = {"core": [0, 0], "cpu": [100, 200], "fsize": [1 << 30, -1], "as": [1 << 34, 1 << 34]}
    env = {"GREETING": "hällo = 'quoted'\n", "EMPTY": "", "LISTEN_FDS": "1"}
    rlimits, granted = [[name, *pair] for name, pair in limits.items()], {}
    for number in range(3, 12):  # which the keeper uses itself for other things
        read, write = os.pipe()
        granted[str(number)] = os.readlink(f"/proc/self/fd/{read}")
        rung.links[0].call("put_fd", (read,), name=f"pipe {number}")
        close_fds([read, write])
    grants = [[int(number), f"pipe {number}"] for number in granted]
    report = felt(rung, env=env, set_listen_pid=True, rlimits=rlimits, grant_fds=grants)
    report["env"].pop("LC_CTYPE", None)  # set by Python's own start-up
    report["env"].pop("COVERAGE_PROCESS_CONFIG", None)  # set by the tracer of the coverage report
    marks = {"PX_INSTANCE": f"{rung.daemon_id}.key0001", "PX_UNIT": "tool:probe"}
    assert report["env"] == {
        "PATH": "/usr/bin:/bin",
        **marks,
        **env,
        "LISTEN_PID": str(report["pid"]),
    }
    nofile = list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert {name: report["limits"][name] for name in (*limits, "nofile")} == {
        **limits,
        "nofile": nofile,
    }
    streams = [report["fds"].pop(number) for number in "012"]
    assert (streams[0], streams[1][:5], streams[2][:5]) == ("/dev/null", "pipe:", "pipe:")
    assert streams[1] != streams[2]
    assert report["fds"] == granted
    # Python itself ignores SIGPIPE and SIGXFSZ in the probe; the keeper's own must not shine
    # through.
    own = (1 << (signal.SIGPIPE - 1)) | (1 << (signal.SIGXFSZ - 1))
    assert int(report["ignored"], 16) & ~(own | GLIBC_OWN) == 0
    assert int(report["blocked"], 16) == 0
    assert felt(rung, rlimits=[["nofile", 64, 128]], unit="tool:few")["limits"]["nofile"] == [
        64,
        128,
    ]


def test_children_get_the_umask_and_open_files_of_the_boot_document(
    rigs: Callable[..., Rig],
) -> None:
    """Over `pxd`, which has changed both by then; the keeper's own files stay private."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    rig = rigs(umask=0o027, nofile=[77, hard], platform="portable")
    rig.up()
    report = felt(rig)
    assert (report["umask"], report["limits"]["nofile"]) == (0o027, [77, hard])
    files = [
        path
        for path in rig.dir.rglob("*")
        if path.is_file() and rig.daemon_id in path.read_text(errors="replace")
    ]
    assert files
    assert {path.stat().st_mode & 0o077 for path in files} == {0}


BORN_ELSEWHERE = """
import os, select, sys
from supervisord_py.keeper import spawn
plan = spawn.SpawnPlan({"argv": ["/bin/true"], "env": {}}, (0, 1, 2), {})
plan.cgroup = os.open(sys.argv[1], os.O_RDONLY)
pid, report = spawn.launch(plan)
select.select([report], [], [])
print(spawn.read_report(report), os.waitpid(pid, 0)[1])
"""


def test_a_child_that_cannot_be_born_in_its_group_moves_itself(tmp_path: Path) -> None:
    """As under a kernel without clone3(2), or one that forbids it: here the folder is no group."""
    argv = [sys.executable, "-c", BORN_ELSEWHERE, str(tmp_path)]
    assert (
        subprocess.check_output(argv, cwd=ROOT, timeout=60)
        == b"cgroup: No such file or directory 32512\n"
    )
    (tmp_path / "cgroup.procs").touch()
    assert subprocess.check_output(argv, cwd=ROOT, timeout=60) == b"None 0\n"
    assert (tmp_path / "cgroup.procs").read_text() == "0"


def test_a_descriptor_that_is_not_stored_is_named(rig: Rig) -> None:
    link = rig.up()
    refusal = link.refused("spawn", **rig.spec(["/bin/true"], grant_fds=[[3, "nothing"]]))
    assert (refusal["kind"], "'nothing'" in refusal["detail"]) == ("unknown_fd", True)
    assert link.call("list", prefix="")["children"] == []


@pytest.mark.parametrize(
    ("members", "stage", "error"),
    [
        ({"argv": ["no-such-program"]}, "exec", errno.ENOENT),
        ({"argv": ["/etc/passwd"]}, "exec", errno.EACCES),
        ({"argv": ["/bin/true", "x" * 300_000]}, "exec", errno.E2BIG),
        ({"argv": ["/bin/true", "nul\0byte"]}, "exec", errno.EINVAL),
        ({"cwd": "/no/such/directory"}, "chdir", errno.ENOENT),
        ({"rlimits": [["core", 2, 1]]}, "rlimit", errno.EINVAL),
        ({"env": {"A": 1}}, None, None),
        ({"unit": "tool:../../etc"}, None, None),
    ],
)
def test_what_cannot_start_says_stage_and_errno_and_leaves_no_ghost(
    rig: Rig, members: dict[str, Any], stage: str | None, error: int | None
) -> None:
    link = rig.up()
    spec = rig.spec(**{"argv": ["/bin/true"], **members})
    failure = link.refused("spawn", **spec)
    assert (failure.get("stage"), failure.get("errno")) == (stage, error), failure
    assert failure["kind"] == ("spawn_failed" if stage else "bad_request")
    assert link.call("list", prefix="")["children"] == []
    children = Path(f"/proc/{rig.pid}/task/{rig.pid}/children")
    until(
        lambda: children.read_text().split() == [str(link.pid)],
        "the end of the child that could not be started",
    )
    again = rig.spec(["/bin/true"], key=spec["key"])
    assert link.call("spawn", **again)["child"]["key"] == spec["key"]  # the key was not burnt
    link.event("gone", key=spec["key"])
    assert not any(event["event"] == "exit" and event["record"]["signal"] for event in link.events)


@one_rung
def test_an_exit_is_told_after_the_spawn_was_answered(rung: Rig) -> None:
    link = rung.links[0]
    for _ in range(20):
        spec = rung.spec(["/bin/true"])
        number = link.send("spawn", **spec)
        while number not in link.replies:
            assert not any(
                event.get("record", {}).get("key") == spec["key"] for event in link.events
            )
            link.receive(1)
        link.reply(number)
        assert link.exit(spec["key"])["code"] == 0
