"""The words that keeper and control plane exchange, and how frames are cut; the only thing that the two share.

Transport: one AF_UNIX SOCK_STREAM socketpair. A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON
(one object). A frame that carries file descriptors says `"fds": N`; the N descriptors ride as SCM_RIGHTS on the first
byte of that frame, in order. Frames are at most MAX_FRAME bytes.

Request:  {"id": int, "verb": str, ...}            control -> keeper
Reply:    {"id": int, "ok": true, ...}             keeper -> control
          {"id": int, "ok": false, "error": {"kind": str, "detail": str, ...}}
Event:    {"event": str, ...}                      keeper -> control, unasked

Verbs, their members and the members of the reply (`key` is the instance id that the control plane chose; every verb
that names one is idempotent by it):

  hello      {protocol: 1} -> {protocol, revision, pid, started_at, start_time, boot_id, kill_rung, memory_rung,
                               children: [CHILD], fds: [name], control_restarts, interrupted: [{key, unit, pid}]}
             `revision`: counts what was added within the protocol; absent = 1. A control plane may be newer.
             `interrupted`: what an earlier keeper of the same state directory left and this one swept at its start.
  spawn      SPAWN -> {child: CHILD}                errors: kind "spawn_failed" with stage, errno; "exists" when the key
                                                    is known with another spec (same spec: its child)
  signal     {key, signum, tree: bool, group: bool} -> {}   error "unknown_key", "dead", "not_permitted"
             To the leader; with `tree` to every process of the tree, one by one; with `group` (absent = false) to the
             leader's process group, all at once, as a terminal's Ctrl-C: what made a session or group of its own is
             spared. `tree` and `group` together are a bad request.
  stop       {key, grace_seconds, kill_seconds, reason} -> {survivors: [{pid, name, start_time}], killed: bool}
             TERM (then CONT) to the tree, grace, KILL until nothing is left or kill_seconds passed; replies when the
             tree is empty and the pipes are drained, or with what is left. Several stops of one key share one ladder;
             the shortest grace wins.
  list       {prefix: str} -> {children: [CHILD]}
  stat       {keys: [str], shared_once?: bool} -> {stats: {key: {rss_bytes, cpu_seconds, processes}}}
             (whole trees; unknown keys absent; shared_once: pages shared by several processes count once)
  annotate   {key, tag: str} -> {}                  replaces the opaque note that the control plane keeps with the child
  rename     {key, new_key, unit, tag} -> {child: CHILD}   a child that runs goes on as `new_key` of `unit`: its output
             from now on and its end are theirs, `started_at` is now. The marks in its environment stay as they were.
             errors "unknown_key", "dead" (ended, or being stopped), "exists"
  release    {key} -> {}                            acknowledges the exit record; the keeper forgets the instance.
                                                    error "alive" while its tree lives
  put_fd     {name, fds: 1} (+1 descriptor) -> {}   keeps a duplicate by name until dropped (replaces an equal name)
  take_fd    {name} -> {fds: 1} (+1 descriptor)     a duplicate; the keeper keeps its own. error "unknown_fd"
  drop_fd    {name} -> {}
  ready      {} -> {}                               the API serves: the keeper tells the service manager READY=1
  status     {text: str} -> {}                      STATUS= line for the service manager
  alive      {} -> {}                               the control loop makes progress (answer to event "ping")
  shutdown   {} -> {}                               orderly end: the control plane is done; stop what is left, exit 0
  restart    {all: bool} -> {}                      all=false: replace the control plane, keep every child.
                                                    all=true: stop everything, then exec pxd anew (same pid)

Events:
  exit         {record: EXIT}      a leader was reaped. Sent again after each hello until released.
  gone         {key}               the tree of an exited leader is empty and its pipes are drained
  log_degraded {unit, errno, lost_bytes} / log_recovered {unit, lost_bytes}
  ping         {}                  answer with verb alive
  stop         {signum}            SIGTERM/SIGINT arrived: stop all children in order, then verb shutdown
  reload       {} (SIGHUP) / dump {} (SIGUSR1)

CHILD: {key, unit, pid, start_time, boot_id, started_at, state: "running" | "exited", tag, log_position,
        stopping: bool, exit: EXIT | null}
        start_time: clock ticks since boot (field 22 of /proc/PID/stat); started_at: unix seconds;
        log_position: the unit's cumulative output position at the spawn.
EXIT:  {key, unit, pid, start_time, boot_id, started_at, ended_at, code: int | null, signal: int | null,
        user_seconds, system_seconds, max_rss_bytes, log_position, log_end,
        verdict: {reason, by, rss_bytes, limit_bytes, signal, time} | null,
        orphans: int}            `verdict` is what the killer wrote down before it signalled.
SPAWN: {key, unit, argv: [str], cwd: str, env: {str: str}, umask: int, nice: int,
        rlimits: [[name, soft, hard]],   name: "nofile" | "nproc" | "as" | "cpu" | "core" | "fsize"; -1 = infinity
        grant_fds: [[child_fd, stored_name]],   child_fd >= 3; duplicated there, inheritable, before exec
        set_listen_pid: bool,            sets LISTEN_PID to the child's pid in its environment
        max_rss_bytes: int | null, tag: str,
        memory_grace_seconds: number,    between TERM and KILL of a tree over max_rss_bytes, where the keeper enforces
                                         it; absent = 0, KILL at once. A quarter more ends the grace.
        stdin_name: str | null}          a stored descriptor that becomes 0; else /dev/null (revision 2)
        Stages of spawn_failed: "fork", "setsid", "cgroup", "rlimit", "umask", "nice", "fds", "pdeathsig", "chdir",
        "exec".

Output: DIR/<kind>/<name>/ for a unit `kind:name`; see keeper/segments.py for the file format.
"""

from __future__ import annotations

import json
import os
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PROTOCOL = 1
REVISION = 2
"""Grows with each addition that an older peer can do without."""
MAX_FRAME = 4 * 1024 * 1024

STDOUT = 1
STDERR = 2
GAP = 3
"""Stream number of an index record that stands for lost bytes (its length counts them; no bytes in the file)."""

RECOVERED = 1
"""Flag of an index record that a crash took and the next opening made up: its time and stream are a best guess."""

INDEX_RECORD = "<QdIHBB"
"""One record of a segment's .idx: position u64, time f64 (unix), length u32, instance u16, stream u8, flags u8.

`position` is cumulative over the unit's whole life; a segment's file name is the position at which it begins
(20 digits), `.log` for the raw bytes as they came, `.idx` for the records. A cursor is one such position.
"""
INDEX_RECORD_SIZE = 24

MARK_INSTANCE = "PX_INSTANCE"
MARK_UNIT = "PX_UNIT"
"""Environment marks of every child (D11). An instance id begins with the daemon's id and a dot."""

LENGTH_BYTES = 4


class FrameError(Exception):
    """What came is no frame of the protocol, or what is to be sent is too large for one."""


class Frame:
    """One decoded frame. Whoever takes it owns `fds` and closes them."""

    __slots__ = ("fds", "message")

    def __init__(self, message: dict[str, Any], fds: list[int]) -> None:
        self.message = message
        self.fds = fds


class Decoder:
    """Cuts a stream of bytes and descriptors into frames."""

    __slots__ = ("_buffer", "_fds")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def feed(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Take what one read gave."""
        self._buffer += data
        self._fds.extend(fds)

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, None when more must be read first.

        Raises:
            FrameError: No frame of the protocol looks like this.
        """
        if len(self._buffer) < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if length > MAX_FRAME:
            raise FrameError(f"a frame announces {length} bytes, over the limit of {MAX_FRAME}")
        end = LENGTH_BYTES + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[LENGTH_BYTES:end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a frame is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise FrameError("a frame is not a JSON object")
        count = message.get("fds", 0)
        if isinstance(count, list) and all(isinstance(name, str) for name in count):
            count = 0  # the names that `hello` answers with: a member, not a count
        if not isinstance(count, int) or not 0 <= count <= len(self._fds):
            raise FrameError(f"a frame announces {count!r} descriptors, {len(self._fds)} came")
        return Frame(message, [self._fds.popleft() for _ in range(count)])

    def close(self) -> None:
        """Close the descriptors whose frame never came."""
        while self._fds:
            os.close(self._fds.popleft())
