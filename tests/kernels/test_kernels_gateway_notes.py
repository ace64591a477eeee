"""What is written down of gateways and their kernels: private, whole or not at all, and never in the way."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import TimedOutError
from supervisord_py.kernels.gateway import end_marked
from supervisord_py.kernels.gateway.gateway_files import GatewayFiles, GatewayRecord, listens
from supervisord_py.kernels.gateway.roster import Held, HeldKernels

RECORD = GatewayRecord("http://127.0.0.1:4242", 17, 99, "boot", "/t", "/py", 5.0, "abcd1234", "abcd1234.one")
HELD = Held("abcd1234.one", "s-000000", "k-1", "http://h", "sess", 1.0, "tag", ("17", "'x'", "'/w'"))
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
    assert (RECORD.port, RECORD.is_there) == (4242, False)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"url": "x"}', None], ids=["empty", "cut", "list", "nothing", "half", "absent"]
)
def test_a_file_that_makes_no_sense_counts_as_none(files: GatewayFiles, text: str | None) -> None:
    if text is not None:
        files.metadata.write_text(text)
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


# -- the lock ----------------------------------------------------------------------------------------------------------


async def test_who_waits_too_long_for_the_lock_is_told(files: GatewayFiles) -> None:
    async with files.locked(60):
        with pytest.raises(TimedOutError, match="Timed out waiting for shared gateway lock"):
            async with files.locked(0):
                pytest.fail("it is held")
    async with files.locked(0):
        pass


# -- kernels -----------------------------------------------------------------------------------------------------------


def test_a_kernels_note_is_private_and_its_daemons(short_tmp: Path) -> None:
    notes = HeldKernels(short_tmp / "held")
    assert notes.of("abcd1234") == ()
    notes.write(HELD)
    notes.write(replace(HELD, instance="other.one"))
    assert notes.of("abcd1234") == (HELD,)
    assert notes.read(HELD.instance) == HELD
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


def test_a_listener_is_known_by_its_process() -> None:
    """D9: the token goes to nobody but the gateway's own process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not listens(os.getpid(), port), "bound is not listening"
        listener.listen()
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)
        assert not listens(2**22 + 1, port), "no such process"


def test_whoever_bears_the_mark_is_ended_and_nobody_else(short_tmp: Path) -> None:
    mark = f"mark-of-{short_tmp.name}"
    bearing = f"PX_INSTANCE={mark}".encode()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    bearer = subprocess.Popen(TELLER, env={**os.environ, "PX_INSTANCE": mark}, **pipes)
    other = subprocess.Popen(TELLER, env={**os.environ, "PX_INSTANCE": f"{mark}-not"}, **pipes)
    try:
        for each in (bearer, other):  # in the middle of its exec a process has no environment that could be read
            assert each.stdout is not None
            assert each.stdout.readline() == b"on\n"
        assert end_marked.marked(bearing) == [bearer.pid]
        assert end_marked.end(bearing)
        assert bearer.wait() == -9
        assert other.poll() is None
        assert end_marked.marked(bearing) == []
    finally:
        for each in (bearer, other):
            each.kill()
            each.communicate()
