"""The one fault that is to happen, in a file that several processes map."""

import mmap
import struct

LAYOUT = struct.Struct("<40siii")  # name, errno, calls that still pass, fired
CALLS = {
    "os.open": ("EMFILE", "ENFILE", "ENOMEM", "EIO"),
    "os.read": ("EIO", "ENOMEM"),
    "os.write": ("ENOSPC", "EIO"),
    "os.pipe": ("EMFILE", "ENFILE"),
    "os.dup": ("EMFILE",),
    "os.dup2": ("EMFILE", "EIO"),
    "os.fork": ("EAGAIN", "ENOMEM"),
    "os.setsid": ("EPERM",),
    "os.chdir": ("EIO",),
    "os.execve": ("ENOMEM", "EIO"),
    "os.waitid": ("ENOMEM",),
    "os.waitpid": ("ENOMEM",),
    "os.wait4": ("ENOMEM",),
    "os.mkdir": ("ENOSPC", "ENOMEM"),
    "os.rmdir": ("EBUSY", "EIO"),
    "os.unlink": ("EIO",),
    "os.rename": ("ENOSPC",),
    "os.listdir": ("EMFILE", "ENOMEM"),
    "os.readlink": ("ENOMEM",),
    "os.stat": ("ENOMEM", "EIO"),
    "os.fstat": ("ENOMEM",),
    "os.ftruncate": ("EIO",),
    "os.pread": ("EIO",),
    "os.kill": ("EPERM",),
    "os.killpg": ("EPERM",),
    "os.pidfd_open": ("EMFILE", "ENFILE", "ENOMEM"),
    "os.set_blocking": ("EIO",),
    "os.set_inheritable": ("EBADF",),
    "os.scandir": ("EMFILE", "ENOMEM"),
    "builtins.open": ("EMFILE", "ENOMEM"),
    "fcntl.fcntl": ("EMFILE", "ENOMEM"),
    "resource.setrlimit": ("EPERM",),
    "signal.pidfd_send_signal": ("EPERM", "ENOMEM"),
    "socket.socketpair": ("EMFILE", "ENFILE", "ENOMEM"),
    "socket.send_fds": ("ENOMEM", "EPIPE"),
    "socket.recv_fds": ("ENOMEM", "EMFILE"),
    "EpollSelector.register": ("ENOSPC", "ENOMEM"),
    "EpollSelector.modify": ("ENOMEM",),
    "EpollSelector.select": ("ENOMEM",),
}
"""The system calls of the keeper, and the errors that each may meet on a machine in trouble."""


class FaultFile:
    def __init__(self, path):
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), LAYOUT.size)

    def arm(self, name, number, passing):
        """Have the call `name` fail once with errno `number`, after `passing` calls that
        succeed.
        """
        self._memory[:] = LAYOUT.pack(name.encode(), number, passing, 0)

    def disarm(self):
        """Let everything succeed; return whether the fault has happened."""
        fired = LAYOUT.unpack(self._memory)[3]
        self._memory[:] = bytes(LAYOUT.size)
        return bool(fired)

    def take(self, name):
        """Return the errno with which this call of `name` is to fail; 0: it is not."""
        armed, number, passing, fired = LAYOUT.unpack(self._memory)
        if fired or armed.rstrip(b"\0").decode() != name:
            return 0
        if passing:
            self._memory[:] = LAYOUT.pack(armed, number, passing - 1, 0)
            return 0
        self._memory[:] = LAYOUT.pack(armed, number, 0, 1)
        return number
