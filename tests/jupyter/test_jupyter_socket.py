"""The way to the daemon: what counts as an answer, and what a missing one means."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from supervisord_py.jupyter import control_socket
from supervisord_py.jupyter.control_socket import ControlSocket, DaemonError, shown_by

HEAD = "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def answer(status: int, document: object) -> bytes:
    body = json.dumps(document).encode()
    return HEAD.format(status, len(body)).encode() + body


@asynccontextmanager
async def daemon(folder: Path, *answers: bytes | None) -> AsyncIterator[tuple[ControlSocket, Sequence[bytes]]]:
    """Listen, and answer each connection in turn; None answers nothing and waits."""
    heard: list[bytes] = []
    left = list(answers)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        said = left.pop(0)
        if said is None:
            await over.wait()
        else:
            writer.write(said)
        writer.close()

    server = await asyncio.start_unix_server(serve, str(folder / "s"))
    async with server:
        yield ControlSocket(str(folder / "s")), heard
        over.set()


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (b"", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "broke off"),
        (HEAD.format(200, 99).encode() + b'{"a"', "broke off"),
        (b"what\r\n", "broke off"),
        (answer(503, {"detail": "given up", "kind": "interrupted"}), "given up"),
    ],
)
async def test_what_broke_off_or_was_given_up_by_a_replaced_control_plane_is_asked_for_once_more(
    short_tmp: Path, cut: bytes, words: str
) -> None:
    async with daemon(short_tmp, cut, answer(200, {"a": 1})) as (way, heard):
        assert await way.ask_surely("POST", "/api/x") == {"a": 1}
        assert len(heard) == 2
    async with daemon(short_tmp, cut, cut) as (way, _):
        with pytest.raises(DaemonError, match=words) as told:
            await way.ask_surely("POST", "/api/x")
        assert not told.value.is_gone


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (answer(409, {"detail": "It is so.", "hint": "do this", "kind": "conflict"}), r"^It is so\. do this$"),
        (answer(409, {"title": "Conflict", "hint": None}), "^Conflict$"),
        (answer(200, [1]), "no document"),
        (answer(500, "no"), "no document"),
        (None, r"within 0\.2 s"),
    ],
)
async def test_whatever_is_answered_or_late_the_daemon_is_not_gone(
    short_tmp: Path, said: bytes | None, words: str
) -> None:
    async with daemon(short_tmp, said) as (way, _):
        with pytest.raises(DaemonError, match=words) as told:
            await way.ask("GET", "/", seconds=0.2 if said is None else 60.0)
        assert not told.value.is_gone


async def test_a_socket_behind_which_nobody_listens_is_a_daemon_that_is_gone(short_tmp: Path) -> None:
    async with daemon(short_tmp) as (way, _):
        pass
    (short_tmp / "s").unlink(missing_ok=True)
    with pytest.raises(DaemonError, match="pxctl daemon start") as told:
        await way.ask("GET", "/")
    assert told.value.is_gone


def test_the_socket_is_the_daemons_and_not_one_of_jupyters_service(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager's RUNTIME_DIRECTORY belongs to whom it started: Jupyter."""
    monkeypatch.delenv("PX_SOCKET", raising=False)
    monkeypatch.setenv("PX_HOME", str(short_tmp))
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/jupyter")
    assert ControlSocket().path == str(short_tmp / "run" / "pxd.sock")
    assert ControlSocket("/else").path == "/else"
    monkeypatch.setenv("PX_SOCKET", "/s")
    assert ControlSocket().path == "/s"


@pytest.mark.parametrize(("script", "words"), [("echo no room >&2; exit 1", "no room"), (None, "cannot start it")])
async def test_a_daemon_that_cannot_be_started_is_told_why(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    monkeypatch.delenv("PX_AUTOSTART", raising=False)
    monkeypatch.setenv("PATH", str(short_tmp))
    monkeypatch.setattr(control_socket.sys, "executable", str(short_tmp / "bin" / "python"))
    if script is not None:
        (short_tmp / "pxctl").write_text(f"#!/bin/sh\n{script}\n")
        (short_tmp / "pxctl").chmod(0o755)
    with pytest.raises(DaemonError, match=words):
        await ControlSocket(str(short_tmp / "s")).ensure_running()


def test_only_a_jupyter_server_gets_the_error_in_tornados_form() -> None:
    from tornado.web import HTTPError

    error = DaemonError("100 % full", 422)
    assert shown_by(error, "no_such_program") is error
    told = shown_by(error, "json")
    assert isinstance(told, HTTPError)
    assert told.status_code == 422
    assert isinstance(shown_by(DaemonError("late"), "json"), HTTPError)


def test_the_provisioner_needs_no_daemon_and_nothing_of_the_control_plane_to_be_imported() -> None:
    code = "import sys, supervisord_py.jupyter.provisioner; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    loaded = set(run.stdout.split())
    assert not {"aiohttp", "pydantic", "structlog", "nbformat"} & loaded
    ours = {name for name in loaded if name.startswith("supervisord_py.")}
    assert not {name for name in ours if name.split(".")[1] in {"api", "process", "ledger", "tools", "keeper"}}
