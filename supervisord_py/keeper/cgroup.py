"""Own cgroup2 groups, one an instance: the rung on which nothing escapes and one write kills a
whole tree.

    <where we are>/pxd-<daemon id>/<instance id>/

In a delegated systemd unit the keeper first moves into a leaf `keeper/`, for a group with processes
of its own may not hand controllers on (cgroups(7), "no internal processes"): where somebody else's
remain in it, none is asked for, for half of them would be granted, and then nothing could join.
Whether all this is allowed is found out by doing it once. Control files are written with one
write(2) each: the kernel answers a whole message.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Mapping

from supervisord_py.keeper.procfs import slurp

CONTROLLERS = ("cpu", "memory", "pids")
CPU_PERIOD = 100_000  # microseconds, the kernel's default
# by name of the limit
_FILES = {"memory": "memory.max", "nproc": "pids.max", "cpu_percent": "cpu.max"}
GROUP_PREFIX = "pxd-"
LEAF = "keeper"
# leaves that we, or systemd's DelegateSubgroup=, put the keeper into
_LEAVES = (LEAF, "supervisor")


def put(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb", buffering=0) as file:
        file.write(text.encode())


def get(path: str) -> str:
    """Read one control file; "" when it, or its group, is not there.

    Raises OSError: it cannot be read now.
    """
    try:
        return slurp(path).decode()
    except OSError as error:
        # ENODEV: the group was removed while it was open
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return ""
        raise


def get_figure(path: str) -> str:
    """Read a control file that is only shown or counted: "" where it cannot be read, for
    whatever reason.
    """
    try:
        return slurp(path).decode()
    except OSError:
        return ""


def counter(text: str, name: str) -> int:
    """Return the number beside `name` in a flat keyed control file; 0 when it is not there."""
    for line in text.splitlines():
        word, _, number = line.partition(" ")
        if word == name and number.isdigit():
            return int(number)
    return 0


def locate(mountinfo: str, membership: str) -> tuple[str, str] | None:
    """Return (mount point, our own group's directory), by two texts of /proc/self; None: outside
    of cgroup2.
    """
    mounts = [line.partition(" - ") for line in mountinfo.splitlines()]
    fields = next((left.split() for left, _, right in mounts if right.startswith("cgroup2 ")), None)
    path = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    if fields is None or path is None:
        return None
    mount, root = _unescape(fields[4]), _unescape(fields[3]).rstrip("/")
    if path.startswith("/../") or not (path + "/").startswith(root + "/"):
        return None
    return mount, (mount + path[len(root) :]).rstrip("/")


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def walk(path: str) -> list[str]:
    """Return a group's directory and all below it, parents first. Raises OSError: they cannot be
    seen now.

    What was removed meanwhile, and groups of other users that are closed to us, are left out.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | PermissionError):
            raise error

    return [folder for folder, _, _ in os.walk(path, onerror=failed)]


class Cgroup:
    """A cgroup: the daemon's, or in it that of an instance."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, key: str) -> Cgroup:
        os.mkdir(f"{self.path}/{key}", 0o755)
        return Cgroup(f"{self.path}/{key}")

    def controllers(self) -> list[str]:
        granted = get(self.path + "/cgroup.subtree_control").split()
        return [name for name in CONTROLLERS if name in granted]

    def populated(self) -> bool:
        """Tell whether a process is in it or below it. Raises OSError: that cannot be seen now."""
        return counter(get(self.path + "/cgroup.events"), "populated") == 1

    def members(self) -> list[int]:
        """Return the pids of all in it and below it. Raises OSError: that cannot be seen now."""
        words = [word for path in walk(self.path) for word in get(path + "/cgroup.procs").split()]
        return [int(word) for word in words if word != "0"]

    def kill(self) -> None:
        """SIGKILL everything in it and below it, also what is forked meanwhile (cgroup.kill,
        Linux 5.14).
        """
        # gone, or no descriptor left: the caller looks, and kills, again
        with contextlib.suppress(OSError):
            put(self.path + "/cgroup.kill", "1")

    def limit(self, memory_bytes: int | None, limits: Mapping[str, tuple[int, int]]) -> set[str]:
        """Have the kernel hold the tree as a whole to `memory_bytes`, and to what of SPAWN's limits
        a group can hold.

        Returns the names of those that it holds, "memory" for the first: the controllers of the
        others are not ours.
        """
        wanted = {name: str(soft) for name, (soft, _) in limits.items() if soft >= 0}
        if "cpu_percent" in wanted:
            wanted["cpu_percent"] = f"{limits['cpu_percent'][0] * CPU_PERIOD // 100} {CPU_PERIOD}"
        if memory_bytes is not None:
            wanted["memory"] = str(memory_bytes)
        held = set()
        for name in _FILES.keys() & wanted.keys():
            with contextlib.suppress(OSError):
                put(f"{self.path}/{_FILES[name]}", wanted[name])
                held.add(name)
        for file, text in (
            (("memory.oom.group", "1"), ("memory.swap.max", "0")) if "memory" in held else ()
        ):
            # older kernels, or no swap accounting: the limit itself stands
            with contextlib.suppress(OSError):
                put(f"{self.path}/{file}", text)
        return held

    def oom(self) -> str | None:
        """Say why the kernel killed in it for want of memory: its own limit, or that of a group
        above or the machine.

        None: it did not. Who was over its limit counts `oom`, who was killed counts `oom_kill`
        (memory.events).
        """
        events = get_figure(self.path + "/memory.events")
        if not counter(events, "oom_kill"):
            return None
        return "memory_limit" if counter(events, "oom") else "oom_kill"

    def memory_peak(self) -> int | None:
        """Return the most bytes that were ever charged to it; None where the kernel does not
        count (Linux 5.19).
        """
        text = get_figure(self.path + "/memory.peak")
        return int(text) if text else None

    def pressure(self) -> dict[str, float | None]:
        """Return in what percent of the last ten seconds something of it waited for each
        resource; None: unknown.
        """
        shares = {}
        for name in ("cpu", "memory", "io"):
            share = (
                get_figure(f"{self.path}/{name}.pressure")
                .partition("some avg10=")[2]
                .partition(" ")[0]
            )
            shares[name] = float(share) if share else None
        return shares

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all that ever ran in it; 0 where the kernel does not count."""
        return counter(get_figure(self.path + "/cpu.stat"), "usage_usec") / 1e6

    def remove(self) -> bool:
        """Remove it with all below; False while something is in it."""
        for below in (False, True):  # most often nothing is
            try:
                for path in walk(self.path)[::-1] if below else [self.path]:
                    os.rmdir(path)
                return True
            except FileNotFoundError:
                return True
            except OSError:
                continue
        return False


def found(daemon_id: str) -> Cgroup | None:
    """Found the daemon's group, or say None where this machine does not let us: then the next
    rung is used.
    """
    place = _here()
    if place is None:
        return None
    mount, base = place
    try:
        # Ourselves moved out of the way, where that is our right.
        if os.path.basename(base) in _LEAVES and os.access(os.path.dirname(base), os.W_OK):
            base = os.path.dirname(base)
        elif base != mount and _delegated(base):
            leaf = f"{base}/{LEAF}"
            os.makedirs(leaf, 0o755, exist_ok=True)
            put(leaf + "/cgroup.procs", "0")
        path = f"{base}/{GROUP_PREFIX}{daemon_id}"
        os.makedirs(path, 0o755, exist_ok=True)
        for each in (base, path) if _delegated(base) else (path,):
            offered = get(each + "/cgroup.controllers").split()
            for name in CONTROLLERS:
                if name in offered and not get(each + "/cgroup.procs"):
                    with contextlib.suppress(OSError):  # what is refused is not used
                        put(each + "/cgroup.subtree_control", f"+{name}")
        groups = Cgroup(path)
        if os.path.exists(path + "/cgroup.kill") and _may_join(groups):
            return groups
        groups.remove()
    except OSError:
        return None
    return None


def leftovers(daemon_id: str) -> list[Cgroup]:
    """Return every group of this daemon that an earlier keeper left, wherever it stood."""
    place = _here()
    name = GROUP_PREFIX + daemon_id
    return (
        [Cgroup(path) for path in walk(place[0]) if os.path.basename(path) == name] if place else []
    )


def _here() -> tuple[str, str] | None:
    return locate(get_figure("/proc/self/mountinfo"), get_figure("/proc/self/cgroup"))


def _delegated(path: str) -> bool:
    """Tell a group handed to us from one we merely may write to: systemd marks it, or it belongs
    to our own uid.
    """
    for name in ("user.delegate", "trusted.delegate"):  # the first since systemd 251
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    uid = os.geteuid()
    return uid != 0 and os.stat(path).st_uid == uid


def _may_join(groups: Cgroup) -> bool:
    """Try with a real child: rights and hybrid layouts have more rules than are worth repeating
    here.
    """
    try:
        probe = groups.create("probe")
    except OSError:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            put(probe.path + "/cgroup.procs", "0")
            os._exit(0)
        finally:
            os._exit(1)
    joined = os.waitpid(pid, 0)[1] == 0
    probe.remove()
    return joined
