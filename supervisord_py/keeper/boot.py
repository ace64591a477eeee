"""What the keeper was told at its birth, and which rungs this machine offers.

The boot document is JSON that `pxd` wrote into an inherited descriptor before it became the keeper
(DESIGN §1).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time

from supervisord_py.keeper import cgroup, procfs, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDERR_FD = 2
CONTROL_MODULE = "supervisord_py.daemon.control"


class Boot:
    """The boot document.

    Durations in seconds, sizes in bytes; descriptors are -1 where there is none.
    """

    daemon_id: str
    run_dir: str
    log_dir: str
    control_argv: list[str]
    pxd_argv: list[str]
    versions_dir = ""  # where control planes keep copies of versions that served; "": they do not
    kept_root = ""  # this keeper runs from such a copy: the folder that its package lies in
    # of a kept copy: where the next version will be installed, the path of its __main__.py
    installed_main = ""
    exit_records_path = ""  # of the ends that no control plane has taken; "": they are not kept
    socket_path = ""
    socket_owned = False  # unlink it at the end
    listen_fd = -1
    lock_fd = -1
    kept_fds: dict[str, int]  # descriptors by name that are only kept open, also over an upgrade
    log_segment_bytes = 8 << 20
    log_total_bytes = 64 << 20
    log_spill_bytes = 1 << 20
    # for an orderly stop: KILL, drained pipes, a closed ledger; then the keeper kills
    stop_seconds = 10.0
    # between two questions for a sign of life of the control plane; 0: half the manager's
    watchdog_seconds = 10.0
    # in which a new version has to say that it could serve; a cold disk may need many of them
    trial_seconds = 60.0
    control_hang_seconds = 30.0  # of silence after which it is replaced
    backoff_initial_seconds = 0.2
    backoff_max_seconds = 20.0
    cgroup = "auto"
    platform = "auto"
    umask: int | None = None  # that pxd was started with; None: that of this process
    nofile: list[int] | None = None  # soft and hard limit of open files, likewise
    handover: dict[str, Any] | None = None  # of an earlier version (handover.py)

    def __init__(self, document: dict[str, Any]) -> None:
        self.kept_fds = {}
        vars(self).update({name: value for name, value in document.items() if value is not None})
        document.pop("handover", None)
        self._document = document

    def to_json(self) -> dict[str, Any]:
        """Return the document for the next version of the keeper, without a hand-over."""
        return {**self._document, "kept_fds": self.kept_fds}

    def control_command(self) -> list[str]:
        """Return the command of the control plane: of a kept copy it is loaded from there."""
        python, *words = self.control_argv
        if not self.kept_root or words[:3] != ["-P", "-m", CONTROL_MODULE]:
            return self.control_argv
        code = (
            f"import sys; sys.path.insert(0, {self.kept_root!r}); from {CONTROL_MODULE} import "
            "main; sys.exit(main())"
        )
        return [python, "-P", "-c", code, *words[3:]]

    def descriptors(self) -> dict[str, int]:
        """Return, by name, the descriptors that the keeper lives with from start to end."""
        named = {"listen": self.listen_fd, "lock": self.lock_fd, **self.kept_fds}
        return {name: fd for name, fd in named.items() if fd >= 0}

    def adopt_descriptors(self, inherited: list[int], handed_over: set[int]) -> None:
        """Give a name to what an older version inherited without one (its second lock): it has
        to stay open.
        """
        unnamed = set(inherited) - handed_over - set(self.descriptors().values())
        self.kept_fds = {**self.kept_fds, **{f"inherited {fd}": fd for fd in sorted(unnamed)}}


def read_boot(fd: int) -> Boot:
    """Read the document from an inherited pipe or memfd, to its end, and close it.

    Raises OSError, ValueError.
    """
    if os.fstat(fd).st_size:  # a memfd or a file may stand at its end after the writing
        os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb") as file:
        return Boot(json.load(file))


class Rungs:
    """What this machine lets us do (DESIGN §5): how a tree is killed, and how its memory is
    limited.
    """

    def __init__(self, boot: Boot) -> None:
        self.portable = boot.platform == "portable" or not sys.platform.startswith("linux")
        # every orphaned descendant comes back to this process (prctl(2), Linux 3.4)
        self.subreaper = False
        if not self.portable:
            with contextlib.suppress(OSError):
                spawn.prctl(spawn.PR_SET_CHILD_SUBREAPER, 1)
                self.subreaper = True
        if boot.handover is None:
            self.groups = (
                cgroup.found(boot.daemon_id) if self.subreaper and boot.cgroup != "off" else None
            )
        else:  # nothing is tried where children live
            self.groups = (
                cgroup.Cgroup(boot.handover["cgroup"]) if boot.handover["cgroup"] else None
            )
        self.controllers = self.groups.controllers() if self.groups is not None else []
        self.kill = "subreaper" if self.subreaper else "process_group"
        self.memory = "footprint" if self.portable else "resident"
        if self.groups is not None:
            self.kill = "cgroup"
            self.memory = "cgroup" if "memory" in self.controllers else self.memory


class Birth:
    """What this process had when it began; children get the user's umask and limit of open files.

    `pxd` has changed both before it became the keeper, so the boot document says what they were.
    """

    def __init__(self, boot: Boot) -> None:
        self.pid = os.getpid()
        self.started_at = time.time()
        self.boot_id = procfs.boot_id()
        self.environ = dict(os.environ)
        # Everything that the keeper makes is its user's alone, whatever umask it was started with.
        present_umask = os.umask(0o077)
        self.umask = present_umask if boot.umask is None else boot.umask
        self.nofile = resource.getrlimit(resource.RLIMIT_NOFILE)
        if boot.nofile is not None:
            soft, hard = boot.nofile
            self.nofile = (soft, hard)
        self.inherited = []  # descriptors from 3 on; a child gets none of them unasked
        for fd in map(
            int, os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")
        ):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                if fd > STDERR_FD:
                    os.set_inheritable(fd, False)
                    self.inherited.append(fd)

    def take_descriptors(self) -> None:
        """Raise the soft limit of open files to the hard one: each child costs three.

        Children get the old one.
        """
        # macOS refuses more than kern.maxfilesperproc
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.nofile[1], self.nofile[1]))

    def restore(self) -> None:
        """Undo it, for an exec of somebody else in this process."""
        os.umask(self.umask)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, self.nofile)
