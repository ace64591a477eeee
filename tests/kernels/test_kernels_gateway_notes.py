"""What is written down of gateways and their kernels: private, whole or not at all, and never in the way."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernels.kernel_rig import PATIENCE, eventually
from supervisord_py.errors import TimedOutError
from supervisord_py.kernels.gateway import end_marked, process_end
from supervisord_py.kernels.gateway.gateway_files import GatewayFiles, GatewayRecord
from supervisord_py.kernels.gateway.gateway_lock import gateway_lock
from supervisord_py.kernels.gateway.held import Held, HeldKernels
from supervisord_py.kernels.gateway.leftovers import marked
from supervisord_py.kernels.gateway.port import HeldPort, listens
from supervisord_py.process import identity
from supervisord_py.process.spec import Identity

RECORD = GatewayRecord("http://127.0.0.1:4242", 17, 99, "boot", "/t", "/py", 5.0, "abcd1234", "abcd1234.one")
HELD = Held("abcd1234.one", "s-000000", "k-1", "http://h", "sess", 1.0, "tag", ("17", "'x'", "'/w'"))
SLEEPER = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
TELLER = [sys.executable, "-I", "-S", "-c", "import sys; print('on', flush=True); sys.stdin.read()"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def files(short_tmp: Path) -> GatewayFiles:
    made = GatewayFiles(short_tmp / "gw")
    made.prepare()
    return made


# -- gateway.json ------------------------------------------------------------------------------------------------------


def test_what_is_written_of_a_gateway_is_read_again_and_private(files: GatewayFiles) -> None:
    files.write(RECORD)
    assert files.read() == RECORD
    assert (mode(files.metadata), mode(files.folder)) == (0o600, 0o700)
    members = json.loads(files.metadata.read_text())
    assert {"url", "pid", "start_time", "token_file", "pythonPath", "startedAt", "daemon"} <= set(members)
    assert os.listdir(files.folder) == ["gateway.json"], "no draft is left"
    assert (RECORD.port, RECORD.identity) == (4242, Identity(17, 99, "boot"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"url": "x"}', None], ids=["empty", "cut", "list", "nothing", "half", "absent"]
)
def test_a_file_that_makes_no_sense_counts_as_none(files: GatewayFiles, text: str | None) -> None:
    if text is not None:
        files.metadata.write_text(text)
    assert files.read() is None


@pytest.mark.parametrize(("key", "value"), [("url", "http://h"), ("url", "http://h:0"), ("pid", -1), ("pid", "x")])
def test_a_file_with_impossible_values_counts_as_none(files: GatewayFiles, key: str, value: object) -> None:
    files.write(RECORD)
    files.metadata.write_text(json.dumps({**json.loads(files.metadata.read_text()), key: value}))
    assert files.read() is None


def test_a_gateways_end_removes_its_own_files_only(files: GatewayFiles) -> None:
    files.write(replace(RECORD, instance="other.one"))
    token = files.write_token(RECORD.instance, "secret")
    files.remove(RECORD.instance)
    assert not token.exists()
    assert files.metadata.exists(), "another gateway's"
    files.remove("other.one")
    assert not files.metadata.exists()


def test_a_token_is_read_only_where_it_is_private(files: GatewayFiles) -> None:
    record = replace(RECORD, token_file=str(files.write_token(RECORD.instance, "secret")))
    assert files.read_token(record) == "secret"
    assert mode(Path(record.token_file)) == 0o600
    os.chmod(record.token_file, 0o640)
    assert files.read_token(record) is None
    assert files.read_token(replace(record, token_file="/nowhere")) is None  # noqa: S106


def test_a_draft_that_cannot_be_placed_is_removed(files: GatewayFiles) -> None:
    files.metadata.mkdir()
    (files.metadata / "in the way").touch()
    with pytest.raises(OSError, match=r"gateway\.json"):
        files.write(RECORD)
    assert os.listdir(files.folder) == ["gateway.json"]


def test_users_are_known_while_they_hold_their_mark(files: GatewayFiles) -> None:
    mine, other = files.register("me"), files.register("other")
    assert files.others("me") == ("other",)
    os.close(other)
    assert files.others("me") == ()
    assert os.listdir(files.folder / "users") == ["me"], "marks of the dead are removed"
    os.close(mine)
    assert GatewayFiles(files.folder / "absent").others("me") == ()


# -- the lock ----------------------------------------------------------------------------------------------------------


async def test_one_holds_the_lock_at_a_time(short_tmp: Path) -> None:
    order: list[str] = []

    async def hold(name: str) -> None:
        async with gateway_lock(short_tmp / "lock", 60):
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(*(hold(name) for name in "abc"))
    assert [order[0::2], order[1::2]] == [order[0::2]] * 2


async def test_who_waits_too_long_for_the_lock_is_told(short_tmp: Path) -> None:
    async with gateway_lock(short_tmp / "lock", 60):
        with pytest.raises(TimedOutError, match="Timed out waiting for shared gateway lock"):
            async with gateway_lock(short_tmp / "lock", 0):
                pytest.fail("it is held")
    async with gateway_lock(short_tmp / "lock", 0):
        pass


async def test_a_lock_that_cannot_be_a_file_is_an_error(short_tmp: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        async with gateway_lock(short_tmp / "absent" / "lock", 0):
            pytest.fail("there is no such directory")


# -- kernels -----------------------------------------------------------------------------------------------------------


def test_a_kernels_note_is_private_and_its_daemons(short_tmp: Path) -> None:
    notes = HeldKernels(short_tmp / "held")
    assert notes.of("abcd1234") == ()
    notes.write(HELD)
    notes.write(replace(HELD, instance="other.one"))
    assert notes.of("abcd1234") == (HELD,)
    assert notes.read(HELD.instance) == HELD
    assert HELD.daemon == "abcd1234"
    assert {mode(path) for path in (short_tmp / "held").iterdir()} == {0o600}
    notes.remove(HELD.instance)
    notes.remove(HELD.instance)
    assert notes.read(HELD.instance) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}', '{"version": 1, "instance": "x"}'])
def test_a_note_that_makes_no_sense_counts_as_none(short_tmp: Path, text: str) -> None:
    (short_tmp / "abcd1234.one.json").write_text(text)
    notes = HeldKernels(short_tmp)
    assert (notes.read(HELD.instance), notes.of("abcd1234")) == (None, ())


def test_a_note_that_cannot_be_written_leaves_no_draft(short_tmp: Path) -> None:
    (short_tmp / "abcd1234.one.json" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="abcd1234"):
        HeldKernels(short_tmp).write(HELD)
    assert os.listdir(short_tmp) == ["abcd1234.one.json"]


# -- ports and processes -----------------------------------------------------------------------------------------------


def test_a_held_port_is_given_to_nobody_by_chance() -> None:
    held = HeldPort()
    try:
        given = set()
        for _ in range(50):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                given.add(other.getsockname()[1])
        assert held.number not in given
    finally:
        held.let_go()


def test_a_listener_is_known_by_its_process() -> None:
    """D9: the token goes to nobody but the gateway's own process."""
    held = HeldPort()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", held.number))
        assert not listens(os.getpid(), held.number), "bound is not listening"
        listener.listen()
        assert listens(os.getpid(), held.number)
        assert not listens(os.getppid(), held.number)
        assert not listens(2**22 + 1, held.number), "no such process"
    held.let_go()


@pytest.mark.parametrize("by", ["pidfd", "looking"])
async def test_the_end_of_a_process_that_is_not_our_child_is_heard(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "looking":
        monkeypatch.delattr(os, "pidfd_open")
    child = await asyncio.to_thread(subprocess.Popen, SLEEPER, stdin=subprocess.PIPE)
    who = identity.identity_of(child.pid)
    assert who is not None
    heard: list[str] = []
    process_end.watch_end(who, lambda: heard.append("first"))
    give_up = process_end.watch_end(who, lambda: heard.append("given up"))
    give_up()
    give_up()
    assert heard == []
    await asyncio.to_thread(child.communicate)
    await eventually(lambda: heard == ["first"], "the news")


async def test_the_end_of_one_that_is_gone_already_is_heard_too() -> None:
    heard: list[bool] = []
    process_end.watch_end(Identity(os.getpid(), 1, identity.boot_id()), lambda: heard.append(True))
    await eventually(lambda: heard, "the news")


def test_whoever_bears_the_mark_is_ended_and_nobody_else(short_tmp: Path) -> None:
    mark = f"mark-of-{short_tmp.name}"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    bearer = subprocess.Popen(TELLER, env={**os.environ, "PX_INSTANCE": mark}, **pipes)
    other = subprocess.Popen(TELLER, env={**os.environ, "PX_INSTANCE": f"{mark}-not"}, **pipes)
    try:
        for each in (bearer, other):  # in the middle of its exec a process has no environment that could be read
            assert each.stdout is not None
            assert each.stdout.readline() == b"on\n"
        assert marked(mark) == (bearer.pid,)
        assert end_marked.end(f"PX_INSTANCE={mark}".encode()) == 0
        assert bearer.wait() == -9
        assert other.poll() is None
        assert marked(mark) == ()
    finally:
        for each in (bearer, other):
            each.kill()
            each.communicate()


@pytest.mark.parametrize("who", ["marked", "end"])
def test_whoever_is_in_the_middle_of_an_exec_is_looked_at_again(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Its environment is empty for a moment; that of others is so for ever, and nobody waits for them."""
    mark = f"mark-of-{short_tmp.name}"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    bearer = subprocess.Popen(TELLER, env={**os.environ, "PX_INSTANCE": mark}, **pipes)
    bare = subprocess.Popen(TELLER, env={}, **pipes)
    looks: dict[int, int] = {bearer.pid: 0, bare.pid: 0}
    read, environ = end_marked._read, psutil.Process.environ

    def is_early(pid: int) -> bool:
        looks[pid] = looks.get(pid, 0) + 1
        return pid == bearer.pid and looks[pid] <= 3

    def read_early(pid: int, name: str) -> bytes:
        return b"" if name == "environ" and is_early(pid) else read(pid, name)

    def environ_early(self: psutil.Process) -> dict[str, str]:
        return {} if is_early(self.pid) else environ(self)

    try:
        for each in (bearer, bare):
            assert each.stdout is not None
            assert each.stdout.readline() == b"on\n"
        monkeypatch.setattr(end_marked, "_read", read_early)
        monkeypatch.setattr(psutil.Process, "environ", environ_early)
        if who == "marked":
            assert marked(mark) == (bearer.pid,)
            assert looks[bare.pid] == 1
        else:
            assert end_marked.end(f"PX_INSTANCE={mark}".encode()) == 0
            assert bearer.wait(PATIENCE) == -9
    finally:
        for each in (bearer, bare):
            each.kill()
            each.communicate()


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("S 0 4194304 0 0", True),  # nothing is laid out yet
        ("S 0 4194304 500 0", True),  # the beginning is, the end is not
        ("S 0 4194304 500 700", True),  # now it is: it was empty a moment ago
        ("S 0 4194304 500 500", False),
        ("S 0 2097152 0 0", False),  # a kernel thread
        ("Z 0 4194304 0 0", False),
    ],
)
def test_what_the_kernel_says_of_an_empty_environment(
    monkeypatch: pytest.MonkeyPatch, stat: str, *, expected: bool
) -> None:
    state, zero, flags, start, end = stat.split()
    fields = [state, *[zero] * 5, flags, *[zero] * 40, start, end, zero]
    monkeypatch.setattr(end_marked, "_read", lambda pid, _: f"{pid} (a) b) {' '.join(fields)}\n".encode())
    assert end_marked._is_in_exec(1) is expected
