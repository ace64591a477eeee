"""`!command` lines of cells of ours: on a terminal of their own at which nobody sits.

Law: a line that asks is told at once that nobody answers, as input() is; it never waits for somebody. What a command
writes goes out as it was written, and nothing of the command outlives an interrupt.

IPython's own lines wait for ever: nobody types at their terminal. Here the end of input lies ready from the start (^D,
termios(3)); that it is gone is the sign that somebody has read, and the next one is laid. /dev/tty is this terminal:
what asks there instead of on its standard input is told the same.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import os
import selectors
import shutil
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

from IPython.core.error import StdinNotImplementedError

from .shell import end_group, followed  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

END_OF_INPUT = b"\x04"
LAID_SECONDS = 1.0
"""How long the terminal may take to have an end of input ready."""
FIRST_LOOK, LAST_LOOK = 0.001, 0.02
"""Seconds between two looks at a command that writes nothing: few at first, for most are short."""
ANSWERS = 25
"""A command that has asked so often and asks again will not stop."""
CHUNK = 1 << 16
LINES, COLUMNS = 24, 80
ON_ITS_TERMINAL = 'exec "$0" -c "$1" <>"$2"'
"""Begins the command at the terminal $2: the leader of a session that opens one has it as /dev/tty (tty_ioctl(4)).

Every /bin/sh opens it so; of the shells behind it bash would do that by itself, dash would have no /dev/tty.
"""
NOBODY = (
    "!{command} asked for input, but nobody can answer: this cell runs without a terminal. "
    "Give it its input in the line instead, e.g. !echo yes | command, or use an option that asks nothing"
)


@contextlib.contextmanager
def nobody_answers(shell: Any, request: Mapping[str, Any]) -> Iterator[None]:
    """Run the shell lines of a cell of ours; where its client can answer, or somebody put another way there, not.

    Args:
        shell: IPython's.
        request: The execute_request.
    """
    if shell is None or request["content"].get("allow_stdin") or "system" in vars(shell):
        yield
        return

    def system(command: str) -> None:
        """Run a shell line; its exit code is in `_exit_code`."""
        if command.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        expanded = str(shell.var_expand(command, depth=1))
        line = _Line(expanded)
        code = line.run()
        shell.user_ns["_exit_code"] = code
        if line.asked and code != 0:
            raise StdinNotImplementedError(NOBODY.format(command=expanded))
        if code != 0 and getattr(shell, "system_raise_on_error", False):
            raise subprocess.CalledProcessError(code, expanded)

    shell.system = system
    try:
        yield
    finally:
        if vars(shell).get("system") is system:
            del shell.system


class _Line:
    """One command on its terminal."""

    def __init__(self, command: str) -> None:
        self.asked = 0
        self._command = command
        self._master, self._slave = os.openpty()
        self._output, self._input = selectors.DefaultSelector(), selectors.DefaultSelector()
        self._output.register(self._master, selectors.EVENT_READ)
        self._input.register(self._slave, selectors.EVENT_READ)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def run(self) -> int:
        """Return the exit code, -N where signal N ended it."""
        try:
            _set_up(self._slave)
            self._lay_end(LAID_SECONDS)
            shell = shutil.which(os.environ.get("SHELL") or "sh") or "/bin/sh"
            arguments = ["/bin/sh", "-c", ON_ITS_TERMINAL, shell, self._command, os.ttyname(self._slave)]
            terminal = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
            try:
                code, _ = followed(arguments, self._follow, **terminal)
            finally:
                self._pass_on_rest()
            return code
        finally:
            for fd in (self._master, self._slave):
                if fd >= 0:
                    os.close(fd)
            self._output.close()
            self._input.close()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Pass its output on until it has ended."""
        look = FIRST_LOOK
        while process.poll() is None:
            if self._output.select(look):
                self._pass_on()
            else:
                look = min(2 * look, LAST_LOOK)
            self._answer()
            if self.asked > ANSWERS or (self.asked and not _is_by_lines(self._slave)):
                end_group(process)
        self._answer()

    def _answer(self) -> None:
        """See whether it has read, and if so lay the next end of input."""
        if not self._input.select(0):
            self.asked += 1
            self._lay_end(0)

    def _lay_end(self, seconds: float) -> None:
        """Have the end of input ready; the terminal takes a moment."""
        os.write(self._master, END_OF_INPUT)
        if seconds:
            self._input.select(seconds)

    def _pass_on(self, seconds: float = 0) -> None:
        """Print what was written up to now, until nothing comes for so long."""
        while self._output.select(seconds):
            try:
                data = os.read(self._master, CHUNK)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                data = b""
            if not data:
                break
            _print(data, self._decode)
        sys.stdout.flush()

    def _pass_on_rest(self) -> None:
        """Print the rest: what was written may still be on its way until all other ends are closed (pty(7), EIO)."""
        self._input.unregister(self._slave)
        slave, self._slave = self._slave, -1
        os.close(slave)
        self._pass_on(LAST_LOOK)


def _print(data: bytes, decode: Any) -> None:
    """Print bytes: as they are where `sys.stdout` takes them, else as text."""
    raw = getattr(sys.stdout, "buffer", None)
    if raw is not None:
        raw.write(data)
    else:
        sys.stdout.write(decode(data))


def _set_up(slave: int) -> None:
    """Have the terminal echo nothing and change nothing of what is written, and be as large as usual."""
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))


def _is_by_lines(slave: int) -> bool:
    """Say whether an end of input means anything: not to a program that has asked for single keys."""
    return bool(termios.tcgetattr(slave)[3] & termios.ICANON)
