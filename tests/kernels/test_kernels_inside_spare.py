"""A kernel that waits for its order: it becomes what was ordered, or says why not, or ends with its owner."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kernels.inside_rig import LAUNCHER, PATIENCE, InsideRig, ours
from supervisord_py.kernels.inside.spare import stamped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BORN = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}


class Owner:
    """This end of the descriptor."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE)
        self._file = self._socket.makefile("rb")

    def hear(self) -> Any:
        return json.loads(self._file.readline())

    def order(self, argv: list[str], cwd: Path, env: Mapping[str, str]) -> Any:
        self.say({"argv": argv, "cwd": str(cwd), "env": env})
        return self.hear()

    def say(self, members: Any) -> None:
        self._socket.sendall(json.dumps(members).encode() + b"\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()
        self.theirs.close()


@contextmanager
def spare(folder: Path, python: str = sys.executable) -> Iterator[tuple[InsideRig, Owner]]:
    """Give a process that has not been told anything, and its owner."""
    owner = Owner()
    number = owner.theirs.fileno()
    argv = [python, LAUNCHER, "--px-spare", str(number)]
    rig = InsideRig(folder, argv, pass_fds=(number,), env=BORN, cwd="/")
    owner.theirs.close()
    try:
        yield rig, owner
    finally:
        owner.close()
        rig.close()


def test_it_becomes_the_kernel_that_was_ordered(python: str, short_tmp: Path) -> None:
    with spare(short_tmp, python) as (rig, owner):
        made_from = owner.hear()["made_from"]
        assert python in made_from
        assert stamped(made_from) == made_from
        argv = [*ours(python), "-f", str(short_tmp / "connection.json")]
        assert owner.order(argv, rig.cwd, {"MINE": "1"}) == {"fits": True, "why": None}
        owner.say({"go": True})
        rig.ready()
        code = "import os, sys; print(os.getcwd(), os.environ['MINE'], sys.argv[1], '' in sys.path)"
        assert rig.good(code).text() == f"{rig.cwd} 1 -f True\n"


@pytest.mark.parametrize("moment", ["at once", "waiting", "ordered"])
def test_it_ends_without_a_word_when_its_owner_does(moment: str, short_tmp: Path) -> None:
    with spare(short_tmp) as (rig, owner):
        if moment != "at once":
            owner.hear()
        if moment == "ordered":
            owner.order([sys.executable, LAUNCHER], rig.cwd, {})
        owner.close()
        assert rig.process.wait(PATIENCE) == 0
        assert rig.stderr.read_text() == ""


def test_it_says_why_it_cannot_be_what_was_ordered(short_tmp: Path) -> None:
    with spare(short_tmp) as (_, owner):
        owner.hear()
        answer = owner.order([sys.executable, LAUNCHER], short_tmp / "gone", {})
        assert answer["fits"] is False
        assert "/gone" in answer["why"]
