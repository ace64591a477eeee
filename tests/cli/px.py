"""Runs `pxctl` as a user does: as a process of its own, piped or on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from beside import beside
from waiting import PATIENCE as DEADLINE

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parents[1]
ARGV = [sys.executable, "-m", "pxctl"]


@dataclass
class Ended:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Px:
    """Calls of `pxctl` in one environment."""

    folder: Path
    socket: str

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if key.startswith(("TEST_SESSION", "LD_"))
        }
        places = {
            "HOME": str(self.folder),
            "PX_HOME": f"{self.folder}/px",
            "PX_SOCKET": self.socket,
        }
        usual = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(REPOSITORY / "cli"),
            "PX_AUTOSTART": "0",
        }
        return {**kept, **places, **usual, **more}

    def __call__(
        self, *arguments: str, given: bytes | None = None, argv: list[str] | None = None, **env: str
    ) -> Ended:
        # Coverage follows where nobody interrupts: a signal within its own lock would leave it
        # locked, for ever.
        env |= {key: value for key, value in os.environ.items() if key.startswith("COV")}
        place: dict[str, Any] = {
            "env": self.environment(**env),
            "cwd": self.folder,
            "timeout": DEADLINE,
        }
        stdin = subprocess.DEVNULL if given is None else None
        words = [*(argv or ARGV), *arguments]
        done = subprocess.run(
            words, input=given, stdin=stdin, capture_output=True, check=False, **place
        )
        return Ended(done.returncode, done.stdout, done.stderr.decode())

    def popen(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        place: dict[str, Any] = {"env": self.environment(), "cwd": self.folder, "stdin": stdin}
        return beside([*ARGV, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **place)

    def terminal(self, *arguments: str, columns: int = 80, **env: str) -> Terminal:
        return Terminal(self, arguments, columns, env)


class House:
    """A `bin` folder with `pxctl` and, beside it, a program in the place of `pxd`."""

    def __init__(self, px: Px) -> None:
        self.px = px
        self.bin = px.folder / "bin"
        self.bin.mkdir()
        paths = f"{TESTS.parent}:{REPOSITORY / 'cli'}"
        self._script(
            "pxctl",
            f"#!{sys.executable}\nimport sys\nfrom pxctl.main import main\nsys.exit(main())\n",
        )
        self._script(
            "pxd",
            f"#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} "
            f'{TESTS / "pretend_pxd.py"} "$@"\n',
        )

    def _script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def fake(self, name: str, text: str) -> None:
        self._script(name, f"#!/bin/sh\n{text}\n")

    def __call__(self, *arguments: str, **env: str) -> Ended:
        argv = [sys.executable, str(self.bin / "pxctl")]
        return self.px(*arguments, argv=argv, **{"PATH": f"{self.bin}:/usr/bin:/bin", **env})


class Terminal:
    """A call on a pseudo-terminal: all three streams are the screen."""

    def __init__(
        self, px: Px, arguments: tuple[str, ...], columns: int, env: dict[str, str]
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        place: dict[str, Any] = {
            "env": px.environment(**{"TERM": "xterm", **env}),
            "cwd": px.folder,
        }
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        self.process = subprocess.Popen(
            [*ARGV, *arguments], start_new_session=True, **streams, **place
        )
        os.close(slave)
        self.screen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def see(self, wanted: str) -> None:
        """Read until the screen shows `wanted`."""
        deadline = time.monotonic() + DEADLINE
        while wanted.encode() not in self.screen:
            is_open = self._read(1.0) and time.monotonic() < deadline
            assert is_open or wanted.encode() in self.screen, (
                f"{wanted!r} was not seen in {self.screen!r}"
            )

    def end(self) -> int:
        """Read to the end; return the exit code."""
        deadline = time.monotonic() + DEADLINE
        while self._read(1.0):
            assert time.monotonic() < deadline
        return self.process.wait(DEADLINE)

    def _read(self, seconds: float) -> bool:
        """Read what is there; False once the terminal is closed at the other end."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._master, 65536)
        except OSError:
            return False
        self.screen += piece
        return bool(piece)

    @property
    def text(self) -> str:
        return self.screen.decode()


def without_spinner(text: str) -> str:
    """Return what stays on a screen: without what a spinner drew and erased."""
    return re.sub(
        r"(?:\r\x1b\[K[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏|/\\-] (?:kernel|pipe):[^\r\n]*)+\r\x1b\[K", "", text
    ).replace("\r\n", "\n")
