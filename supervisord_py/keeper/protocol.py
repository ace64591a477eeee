"""The words that keeper and control plane exchange, and the frames they travel in: what the two
share.

Transport: one AF_UNIX SOCK_STREAM socketpair. A frame is a 4-byte big-endian length and that many
bytes of UTF-8 JSON (one object). A frame that carries file descriptors says `"fds": N`; the N
descriptors ride as SCM_RIGHTS on the first byte of that frame, in order. Frames are at most
MAX_FRAME bytes.

Request:  {"id": int, "verb": str, ...}            control -> keeper; without `id` nobody waits for a reply
Reply:    {"id": int, "ok": true, ...}             keeper -> control
          {"id": int, "ok": false, "error": {"kind": str, "detail": str, ...}}
Event:    {"event": str, ...}                      keeper -> control, unasked

Verbs, their members and the members of the reply (`key` is the instance id that the control plane
chose; every verb that names one is idempotent by it):

  hello      {protocol: 1} -> {protocol, revision, version, pid, started_at, boot_id, kill_rung, memory_rung,
                               controllers: [str], children: [CHILD], control_restarts,
                               rolled_back_from: str | null}
             `rolled_back_from`: the version that did not come up, so that the keeper went back to this one (revision 7)
             `revision`: counts what was added within the protocol; absent = 1. A control plane may be newer.
  spawn      SPAWN (+ descriptors) -> {child: CHILD}   error "spawn_failed" with stage, errno. A known key: its child
  signal     {key, signum} -> {}   error "unknown_key", "dead"
             To the leader's process group, all at once, as a terminal's Ctrl-C: what made a session or group of its
             own is spared.
  stop       {key, grace_seconds, kill_seconds, reason} -> {survivors: [{pid, name, start_time}], killed: bool,
                                                            unassigned: [{pid, name, start_time}]}
             TERM (then CONT) to the tree, grace, KILL until nothing is left or kill_seconds passed; replies when the
             tree is empty and the pipes are drained, or with what is left. Several stops of one key share one ladder;
             the shortest grace wins. `unassigned`: orphans younger than the leader that came back to the keeper, of
             no known instance; they may be its, and were not signalled (revision 7).
  list       {prefix: str} -> {children: [CHILD]}
  stat       {keys: [str], shared_once?: bool} -> {stats: {key: {rss_bytes, cpu_seconds, processes, pids,
             pressure}}}
             (whole trees; unknown keys absent; shared_once: pages shared by several processes count once; `pressure`:
             {cpu, memory, io} of Cgroup.pressure, null without a group, revision 6)
  annotate   {key, tag: str} -> {}                  replaces the opaque note that the control plane keeps with the child
  release    {key} -> {}                            acknowledges the exit record; the keeper forgets the instance.
                                                    error "alive" while its tree lives
  put_fd     {name, fds: 1} (+1 descriptor) -> {}   keeps a duplicate by name until dropped (replaces an equal name)
  take_fd    {name} -> {fds: 1} (+1 descriptor)     a duplicate; the keeper keeps its own. error "unknown_fd"
  drop_fd    {name} -> {}
  ready      {} -> {}                               the API serves: the keeper tells the service manager READY=1
  status     {text: str} -> {}                      STATUS= line for the service manager
  alive      {} -> {}                               the control loop makes progress (answer to event "ping")
  shutdown   {} -> {}                               orderly end: the control plane is done; stop what is left, exit 0
  upgrade    {always?: bool} -> {version: str | null}
                                                    when this control plane ends, the keeper becomes the version that is
                                                    installed (handover.py); null: it is that one. error "handover": it
                                                    cannot go on from here, a new start of it can (revision 6); "trial":
                                                    a trial of it failed, with what it said. That may take a minute;
                                                    `always`: also of the version that runs (revision 7)
  restart    {all: bool} -> {}                      all=false: replace the control plane, keep every child.
                                                    all=true: stop everything, then exec pxd anew (same pid)

Events:
  exit         {record: EXIT}      a leader was reaped. Sent again after each hello until released.
  gone         {key}               the tree of an exited leader is empty and its pipes are drained
  log_degraded {unit, errno, lost_bytes} / log_recovered {unit, lost_bytes}
  ping         {}                  answer with verb alive
  stop         {signum}            SIGTERM/SIGINT arrived: stop all children in order, then verb shutdown
  reload       {} (SIGHUP) / dump {} (SIGUSR1)

CHILD: {key, unit, pid, start_time, boot_id, started_at, tag, log_position, tree_alive: bool, exit: EXIT | null}
        start_time: clock ticks since boot (field 22 of /proc/PID/stat); started_at: unix seconds;
        log_position: the unit's cumulative output position at the spawn.
EXIT:  {key, unit, pid, start_time, boot_id, started_at, ended_at, code: int | null, signal: int | null,
        user_seconds, system_seconds, max_rss_bytes, memory_peak_bytes: int | null, log_position, log_end,
        verdict: {reason, by, rss_bytes, limit_bytes, signal, time} | null}
        `verdict` is what the killer wrote down before it signalled; memory_peak_bytes: of the tree, while the leader
        lived, where its group counts it (revision 6).
SPAWN: {key, unit, argv: [str], cwd: str, env: {str: str},
        rlimits: [[name, soft, hard]],   name: "nofile" | "nproc" | "as" | "cpu" | "core" | "fsize"; -1 = infinity.
                                         The group holds "nproc" where it can, and it alone "cpu_percent", of one
                                         processor (revision 6)
        grant_fds: [[child_fd, stored_name]],   child_fd >= 3; duplicated there, inheritable, before exec
        set_listen_pid: bool,            sets LISTEN_PID to the child's pid in its environment
        max_rss_bytes: int | null, tag: str,
        memory_grace_seconds: number,    between TERM and KILL of a tree over max_rss_bytes, where the keeper enforces
                                         it; absent = 0, KILL at once. A quarter more ends the grace.
        stop_grace_seconds: number,      between TERM and KILL, where the keeper has to stop it by itself; absent = 5
                                         (revision 7)
        stdio_fds: ["stdin", "stdout", "stderr"],   the streams (any of them) whose descriptors ride with this frame, in
                                         this order: they become 0, 1, 2. Absent: /dev/null for 0, and a pipe into the
                                         unit's log for 1 and 2 (revision 5)
        zygote: str | null,              key of a child that forks this one, by the descriptor that is stored under
                                         `zygote:<key>` (zygote/main.py); absent = the keeper forks (revision 4)}
        Stages of spawn_failed: "fork", "setsid", "cgroup", "rlimit", "fds", "pdeathsig", "chdir", "exec", and "zygote"
        where there is no answer from it: nothing was started.

Output of the streams that have no descriptor: DIR/<kind>/<name>/ for a unit `kind:name`, append
only, in segments:

  00000000000000000000.log    the bytes as they came, both streams in order of arrival
  00000000000000000000.idx    one INDEX_RECORD for each chunk, written before its bytes: position u64, time f64 (unix
                              seconds), length u32, instance u16 (1..65535, wrapping), stream u8, flags u8 (0)

A segment is named by the position (cumulative over the unit's life) of its first byte. A chunk goes
from its record's position to the next record's, or to the end of the bytes: a torn or missing index
loses times, never bytes. Stream GAP stands for lost bytes: its length counts them, it covers no
position.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

PROTOCOL = 1
REVISION = 7  # grows with each addition that an older peer can do without
MAX_FRAME = 4 * 1024 * 1024
FDS_PER_MESSAGE = 16
LENGTH_BYTES = 4
_PASSING_ERRORS = (errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS)
"""Errors of a send that is to be tried again: unix(7), "too many references" counts descriptors on
their way.
"""

STDOUT = 1
STDERR = 2
GAP = 3
INDEX_RECORD = "<QdIHBB"
INDEX_RECORD_SIZE = 24
SEGMENT_DIGITS = 20

MARK_INSTANCE = "PX_INSTANCE"
# environment marks of every child (D11). An instance id begins with the daemon's id and a dot.
MARK_UNIT = "PX_UNIT"
MARK_CONTROL = "PX_CONTROL"  # the mark of the control plane itself: the daemon's id


def unit_directory(log_dir: str, unit: str) -> str:
    """Return DIR/<kind>/<name> of a unit `kind:name`.

    Raises ValueError: that would lead out of the log directory.
    """
    kind, _, name = unit.partition(":")
    for part in (kind, name):
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            raise ValueError(f"unit {unit!r} does not name a kind and a name")
    return f"{log_dir}/{kind}/{name}"


def segment_starts(folder: str) -> list[int]:
    names = [name.removesuffix(".log") for name in os.listdir(folder) if name.endswith(".log")]
    return sorted(int(name) for name in names if len(name) == SEGMENT_DIGITS and name.isdigit())


def segment_paths(folder: str, start: int) -> tuple[str, str]:
    return f"{folder}/{start:0{SEGMENT_DIGITS}d}.log", f"{folder}/{start:0{SEGMENT_DIGITS}d}.idx"


class FrameError(Exception):
    """What came is no frame of the protocol, or what is to be sent is too large for one."""


def close_fds(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _duplicates(fds: Sequence[int]) -> list[int]:
    """Duplicate all descriptors, or none. Raises OSError."""
    duplicates: list[int] = []
    try:
        for fd in fds:
            duplicates.append(os.dup(fd))  # noqa: PERF401  what was made before a failure is closed
    except OSError:
        close_fds(duplicates)
        raise
    return duplicates


class FrameSocket:
    """Frames with descriptors over a connected, non-blocking AF_UNIX stream socket; whoever has
    a loop drives it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.set_inheritable(False)
        self._sock = sock
        # frames of one sending, the first with descriptors
        self._output: deque[tuple[bytearray, list[int]]] = deque()
        self._input = bytearray()
        self._fds: deque[int] = deque()
        self.queued = 0  # bytes that wait to be sent

    def fileno(self) -> int:
        return self._sock.fileno()

    def push(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Queue one frame, with duplicates of `fds`. Raises FrameError: it is too large."""
        # Escaped to ASCII, so that surrogates (undecodable file names) pass too.
        body = json.dumps(
            {**message, "fds": len(fds)} if fds else message, separators=(",", ":")
        ).encode("ascii")
        if len(body) > MAX_FRAME:
            raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME}")
        data = len(body).to_bytes(LENGTH_BYTES, "big") + body
        if fds or not self._output:
            self._output.append((bytearray(), _duplicates(fds)))
        self._output[-1][0].extend(data)
        self.queued += len(data)

    def flush(self) -> bool:
        """Send what can be sent; return whether nothing is left.

        Raises OSError: the other side is gone.
        """
        while self._output:
            data, fds = self._output[0]
            try:
                sent = socket.send_fds(self._sock, [data], fds) if fds else self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                if error.errno in _PASSING_ERRORS:
                    return False
                # What is queued is lost. Both sides must see the end of the channel now, or they
                # would wait for answers that never come.
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
                self._drop()
                raise
            close_fds(fds)
            fds.clear()
            del data[:sent]
            self.queued -= sent
            if not data:
                self._output.popleft()
        return True

    def read(self, take: Callable[[dict[str, Any], list[int]], None]) -> str | None:
        """Read once, and hand out each whole frame with its descriptors, which are the taker's
        then.

        Returns None while more may come, else why it will not: "" when the other side has closed,
        or is dead.
        """
        try:
            data, fds, flags, _ = socket.recv_fds(self._sock, 65536, FDS_PER_MESSAGE)
            for fd in fds:
                os.set_inheritable(fd, False)
            self._fds.extend(fds)
            if flags & socket.MSG_CTRUNC:
                raise FrameError(
                    "descriptors were lost on the way: too many, or this process may open no more"
                )
            self._input += data
            while self._sock.fileno() >= 0 and (frame := self._next()) is not None:
                take(*frame)
            return None if data else ""
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it died with something of ours unread
            return ""
        except (FrameError, OSError) as error:
            return str(error)

    def _next(self) -> tuple[dict[str, Any], list[int]] | None:
        if len(self._input) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + int.from_bytes(self._input[:LENGTH_BYTES], "big")
        if end > LENGTH_BYTES + MAX_FRAME:
            raise FrameError(
                f"a frame announces {end - LENGTH_BYTES} bytes, over the limit of {MAX_FRAME}"
            )
        if len(self._input) < end:
            return None
        body = bytes(self._input[LENGTH_BYTES:end])
        del self._input[:end]
        try:
            message: dict[str, Any] = json.loads(body)
            count = message.get("fds", 0)
            if isinstance(count, list):
                # the names with which an older keeper's `hello` answers: a member, not a count
                count = 0
            return message, [self._fds.popleft() for _ in range(count)]
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise FrameError(f"a frame is none of the protocol: {error!r}") from error

    def close(self) -> None:
        """Close the socket and every descriptor on its way; frames not yet sent are dropped."""
        self._sock.close()
        self._drop()
        close_fds(self._fds)
        self._fds.clear()

    def _drop(self) -> None:
        for _, fds in self._output:
            close_fds(fds)
        self._output.clear()
        self.queued = 0
