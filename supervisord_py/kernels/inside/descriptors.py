"""Captures what is written to descriptors 1 and 2: by os.write, by C libraries, by child processes.

Law: a pipe of ours is always read, so whoever writes is never blocked for want of a reader; and each cell has pipes of
its own, so that a child which outlives its cell goes on writing to that cell's file.

Print and descriptor writes of one thread stay in order: whoever is about to write to a file first moves what already
lies in the pipes (`catch_up`). Between descriptors 1 and 2 there is no order, as between any two pipes. A pipe ends
when its last writer does (pipe(7)). The original descriptors stay in `original`: a kernel that dies natively has
somewhere to say why.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import functools
import os
import select
import selectors
import sys
import termios
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Sink(Protocol):
        """Whoever takes bytes of a stream."""

        def write(self, stream: str, data: bytes) -> None:
            """Take them."""


NUMBERS = {"stdout": 1, "stderr": 2}
CHUNK = 1 << 16
SETTLE = b"s"
"""What the reading thread is told."""
PATIENCE = 10.0
"""Seconds after which nobody waits any longer for the reading thread: it has never been seen to be late."""
_SAFE_BYTES = 512
"""What a pipe takes whole, without blocking, when poll(2) says that it can be written (POSIX: PIPE_BUF or more)."""


class Pipes:
    """One pipe for each stream, and who gets what comes out of them."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.readers: dict[int, str] = {}
        self.writers: dict[str, int] = {}
        self.inodes: dict[str, int] = {}
        self._poll = select.poll()
        try:
            for stream in NUMBERS:
                reader, self.writers[stream] = os.pipe()
                self.readers[reader] = stream
                self.inodes[stream] = os.fstat(reader).st_ino
                os.set_blocking(reader, False)
                self._poll.register(reader, select.POLLIN)
        except OSError:
            self.close()
            raise

    def put_in_place(self, instead_of: set[int] | None = None) -> None:
        """Make them descriptors 1 and 2.

        Args:
            instead_of: Inodes of our own pipes: a descriptor that the user's code has pointed elsewhere stays there.
        """
        for stream, number in NUMBERS.items():
            if instead_of is None or _inode(number) in instead_of:
                os.dup2(self.writers[stream], number)

    def waiting(self) -> bool:
        """Say whether something lies in them."""
        try:
            return bool(self._poll.poll(0))
        except RuntimeError:  # a signal handler of the user's prints while we are in poll: look rather than miss
            return True

    def close_writers(self) -> None:
        """Keep only the ends that others hold."""
        for fd in self.writers.values():
            os.close(fd)
        self.writers.clear()

    def close_reader(self, reader: int) -> None:
        """Give up one that has ended."""
        del self.readers[reader]
        self._poll.unregister(reader)
        os.close(reader)

    def close(self) -> None:
        """Give all ends back."""
        self.close_writers()
        for reader in list(self.readers):
            self.close_reader(reader)


class Capture:
    """Holds descriptors 1 and 2 of this process.

    Only its own thread reads the pipes, because no KeyboardInterrupt reaches that: nowhere else is it sure that bytes
    which were read are also handed over.

    Args:
        rest: Who gets what is written while no cell of ours has the descriptors.
    """

    def __init__(self, rest: Sink) -> None:
        self.pid = os.getpid()
        self.original = {stream: os.dup(number) for stream, number in NUMBERS.items()}
        self._lock = threading.RLock()
        self._turn = threading.Condition(self._lock)
        self._asked = 0
        self._served = 0
        self._bell, self._button = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._base = Pipes(rest)
        self._open: list[Pipes] = []
        self._claims: list[Pipes] = []
        self._current = self._base
        self._watch(self._base)
        self._base.put_in_place()
        atexit.register(self.restore)
        os.register_at_fork(after_in_child=self._forget)
        self._thread = threading.Thread(target=self._read_forever, name="px-output", daemon=True)
        self._thread.start()

    def claim(self, sink: Sink) -> Pipes | None:
        """Give the descriptors to a cell; None where there are no descriptors left for pipes of its own."""
        with self._turn:
            try:
                pipes = Pipes(sink)
            except OSError:
                return None  # it goes through the base pipes, and is told apart by who runs now
            self._open.append(pipes)
            self._watch(pipes)
            self._claims.append(pipes)
            self._switch()
            return pipes

    def release(self, pipes: Pipes | None) -> None:
        """Take them back; everything that was written up to now has been handed over when this returns."""
        self.settle()
        if pipes is None:
            return
        with self._turn:
            self._claims.remove(pipes)
            self._switch()
            pipes.close_writers()
        self.settle()  # what was written meanwhile, and the end, where nobody else holds the other end

    def catch_up(self) -> None:
        """Hand over what lies in the pipes, so that what is written next comes after it."""
        if self._current.waiting():
            self.settle()
        else:
            with self._lock:  # not by way of the condition: every print passes here
                pass  # the reading thread may hold what it has just taken out, and has its turn until that is done

    def settle(self) -> None:
        """Return when all that lies in any pipe now has been handed over."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        with self._turn:
            self._asked += 1
            mine = self._asked
            os.write(self._button, SETTLE)
            while self._served < mine and self._turn.wait(PATIENCE):
                pass

    def say(self, sentence: str) -> None:
        """Write a line to the original stderr."""
        self.echo("stderr", (sentence + "\n").encode(errors="replace"))

    def echo(self, stream: str, data: bytes) -> None:
        """Write to the original descriptor what it takes without blocking."""
        fd = self.original[stream]
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        try:
            for start in range(0, len(data), _SAFE_BYTES):
                if not ready.poll(0):
                    return
                os.write(fd, data[start : start + _SAFE_BYTES])
        except OSError:
            pass

    def restore(self) -> None:
        """Put the original descriptors back: from now on nobody reads the pipes."""
        if os.getpid() != self.pid:
            return
        flush_native()
        self.settle()
        with self._turn:
            for stream, number in NUMBERS.items():
                os.dup2(self.original[stream], number)
        self.settle()

    def _switch(self) -> None:
        """Put in place the pipes of whoever claimed last, or the base ones."""
        ours = {known for pipes in (self._base, *self._open) for known in pipes.inodes.values()}
        self._current = self._claims[-1] if self._claims else self._base
        self._current.put_in_place(ours)

    def _watch(self, pipes: Pipes) -> None:
        for reader in pipes.readers:
            self._selector.register(reader, selectors.EVENT_READ, pipes)

    def _read_forever(self) -> None:
        while True:
            ready = [key for key, _ in self._selector.select()]
            with self._turn:
                asked = self._asked
                for key in ready:
                    if key.fd == self._bell:
                        os.read(self._bell, CHUNK)
                    elif key.fd in key.data.readers:
                        self._read(key.data, key.fd, CHUNK)
                if asked > self._served:
                    for pipes in (self._base, *self._open):
                        self._move(pipes)
                    self._served = asked
                    self._turn.notify_all()

    def _move(self, pipes: Pipes) -> None:
        """Hand over what lies in `pipes` now; what is written meanwhile may be more than anyone can read up."""
        for reader in list(pipes.readers):
            left = _waiting_bytes(reader)
            while reader in pipes.readers:
                # Where nothing lay there only its end is looked for; but what has come since is taken whole.
                done = self._read(pipes, reader, min(left, CHUNK) or CHUNK)
                left -= done
                if done == 0 or left <= 0:
                    break

    def _read(self, pipes: Pipes, reader: int, limit: int) -> int:
        """Hand over one piece; return its length. A pipe that has ended is given up."""
        try:
            data = os.read(reader, limit)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._give_up(pipes, reader)
            return 0
        try:
            pipes.sink.write(pipes.readers[reader], data)
        except Exception as error:
            self.say("px: output of a descriptor is lost: " + repr(error))
        return len(data)

    def _give_up(self, pipes: Pipes, reader: int) -> None:
        self._selector.unregister(reader)
        pipes.close_reader(reader)
        if not pipes.readers and pipes in self._open:
            self._open.remove(pipes)

    def _forget(self) -> None:
        """In a forked child: only the writing ends are its own, so that it is told when the kernel is gone."""
        for pipes in (self._base, *self._open):
            for reader in pipes.readers:
                with contextlib.suppress(OSError):
                    os.close(reader)


def _inode(fd: int) -> int:
    """Return what a descriptor points to; 0 where it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def _waiting_bytes(fd: int) -> int:
    """Return how many bytes lie in a pipe (ioctl_tty(2), FIONREAD)."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, count)
    except OSError:
        return CHUNK
    return count[0]


def flush_native() -> None:
    """Have the C library and Python's original streams write out what they hold back for descriptors 1 and 2."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass
    if _FLUSH_C_STDOUT is not None:
        _FLUSH_C_STDOUT()


def _flush_of_c_stdout() -> Callable[[], object] | None:
    """Return what calls fflush(3) on the C library's `stdout`, None where that cannot be had."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        name = "__stdoutp" if sys.platform == "darwin" else "stdout"
        stdout = ctypes.c_void_p.in_dll(library, name)
        flush = library.fflush
    except (ImportError, OSError, ValueError, AttributeError):
        return None
    return functools.partial(flush, stdout)


_FLUSH_C_STDOUT = _flush_of_c_stdout()
