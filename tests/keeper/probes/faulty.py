"""A keeper one of whose system calls fails once: `faulty.py KEEPER_MAIN [its arguments]`.

Which call fails, and how, is in the file that PX_TEST_FAULT names (see fault_file.py): it is shared
with the test, which arms it while the keeper runs, and with what the keeper forks, up to exec.
"""

import builtins
import fcntl
import functools
import os
import resource
import runpy
import selectors
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fault_file import CALLS, FaultFile

del sys.path[0]
HOLDERS = {
    "builtins": builtins, "fcntl": fcntl, "os": os, "resource": resource, "signal": signal,
    "socket": socket, "EpollSelector": selectors.EpollSelector,
}  # fmt: skip


def break_calls(file):
    for name in CALLS:
        if name == "os.fork":
            continue
        holder_name, _, attribute = name.partition(".")
        holder = HOLDERS[holder_name]
        real = getattr(holder, attribute)

        def broken(*words, _real=real, _name=name, **options):
            number = file.take(_name)
            if number:
                raise OSError(number, os.strerror(number))
            return _real(*words, **options)

        setattr(holder, attribute, functools.wraps(real)(broken))


def break_forks(file):
    """Have a fork fail: clone3(2) first, by which the keeper forks, and then the fork(2) that it
    tries instead.
    """
    from supervisord_py.keeper import spawn

    real_clone = spawn._clone
    real_fork = os.fork
    refused = []

    def clone(group):
        number = file.take("os.fork")
        if number:
            refused.append(number)
            raise OSError(number, os.strerror(number))
        return real_clone(group)

    def fork():
        if refused:
            number = refused.pop()
            raise OSError(number, os.strerror(number))
        return real_fork()

    spawn._clone = clone
    os.fork = fork


file = FaultFile(os.environ["PX_TEST_FAULT"])
break_calls(file)
sys.argv = sys.argv[1:]
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))))
break_forks(file)
runpy.run_path(sys.argv[0], run_name="__main__")
