"""The provisioner without a daemon: what it asks for, what counts as an answer, and what a missing one means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.jupyter import provisioner
from supervisord_py.jupyter.provisioner import ControlSocket, DaemonError, order_of
from supervisord_py.kernels.kernelspecs import Kernelspec

LAUNCHED = ("-m", "ipykernel_launcher", "-f", "{connection_file}")
VARIABLES = st.dictionaries(*[st.text(st.characters(exclude_categories=[]), max_size=30)] * 2, max_size=5)


def ordered(*argv: str, spec: str = "pxd", language: str = "python", **wishes: Any) -> dict[str, Any]:
    kernelspec = Kernelspec(argv or ("python3", *LAUNCHED), language, name=spec)
    return order_of("5b0a5f1e-0000-4000-8000-000000000000", kernelspec, **{"cwd": "/w", "env": {}, **wishes})


@given(VARIABLES)
def test_an_environment_with_bytes_of_no_encoding_is_json_all_the_same(env: dict[str, str]) -> None:
    order = ordered(env=env)
    json.dumps(order, ensure_ascii=False).encode()
    assert order["env"].items() <= env.items()


@pytest.mark.parametrize(
    ("argv", "language", "expected"),
    [
        (("python", *LAUNCHED), "python", {}),
        (("/e/bin/python", *LAUNCHED), "python", {"interpreter": "/e/bin/python"}),
        (("/e/bin/python", "-Xfrozen_modules=off", *LAUNCHED), "python", {"interpreter": "/e/bin/python"}),
        (("python3.12", *LAUNCHED), "python", {"kernelspec": "s"}),
        (("/e/bin/python", *LAUNCHED, "--matplotlib=inline"), "python", {"kernelspec": "s"}),
        (("/e/bin/python", *LAUNCHED), "sage", {"kernelspec": "s"}),
        (("R", "--slave", "{connection_file}"), "R", {"kernelspec": "s"}),
    ],
)
def test_a_spec_is_followed_as_it_is_written(argv: tuple[str, ...], language: str, expected: dict[str, str]) -> None:
    order = ordered(*argv, spec="s", language=language)
    assert {name: order[name] for name in ("interpreter", "kernelspec") if name in order} == expected


# -- the way to the daemon --------------------------------------------------------------------------------------------


def answer(status: int, document: object) -> bytes:
    body = json.dumps(document).encode()
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


@asynccontextmanager
async def daemon(folder: Path, *answers: bytes | None) -> AsyncIterator[tuple[ControlSocket, Sequence[bytes]]]:
    """Listen, and answer each connection in turn; None answers nothing and waits."""
    heard: list[bytes] = []
    left, over = list(answers), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        said = left.pop(0)
        if said is None:
            await over.wait()
        else:
            writer.write(said)
        writer.close()

    async with await asyncio.start_unix_server(serve, str(folder / "s")):
        yield ControlSocket(str(folder / "s")), heard
        over.set()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "broke off"),
        (answer(200, {"a": 1})[:-2], "broke off"),
        (b"what\r\n", "broke off"),
        (answer(503, {"detail": "given up", "kind": "interrupted"}), "given up"),
        (answer(409, {"detail": "It is so.", "hint": "do this", "kind": "conflict"}), r"^It is so\. do this$"),
        (None, r"within 0\.2 s"),
    ],
)
async def test_what_is_no_answer_ends_no_life_and_what_broke_off_is_asked_for_once_more(
    short_tmp: Path, said: bytes | None, words: str
) -> None:
    seconds, is_asked_again = 0.2 if said is None else 60.0, words in ("broke off", "given up")
    async with daemon(short_tmp, said, *([said] if is_asked_again else [])) as (way, heard):
        with pytest.raises(DaemonError, match=words) as told:
            await way.ask("POST", "/api/x", seconds=seconds)
        assert (told.value.is_gone, len(heard)) == (False, 1 + is_asked_again)
    (short_tmp / "s").unlink(missing_ok=True)
    with pytest.raises(DaemonError, match="pxctl daemon start") as told:
        await way.ask("GET", "/")
    assert told.value.is_gone, "nobody listens"
    if is_asked_again:
        async with daemon(short_tmp, said, answer(200, {"a": 1})) as (way, heard):
            assert await way.ask("POST", "/api/x") == {"a": 1}


def test_the_socket_is_the_daemons_and_not_one_of_jupyters_service(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager's RUNTIME_DIRECTORY belongs to whom it started: Jupyter."""
    monkeypatch.delenv("PX_SOCKET", raising=False)
    monkeypatch.setenv("PX_HOME", str(short_tmp))
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/jupyter")
    assert ControlSocket().path == str(short_tmp / "run" / "pxd.sock")
    monkeypatch.setenv("PX_SOCKET", "/s")
    assert (ControlSocket().path, ControlSocket("/else").path) == ("/s", "/else")


@pytest.mark.parametrize(("script", "words"), [("echo no room >&2; exit 1", "no room"), (None, "cannot start it")])
async def test_a_daemon_that_cannot_be_started_is_told_why(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    monkeypatch.delenv("PX_AUTOSTART", raising=False)
    monkeypatch.setenv("PATH", str(short_tmp))
    monkeypatch.setattr(provisioner.sys, "executable", str(short_tmp / "bin" / "python"))
    if script is not None:
        (short_tmp / "pxctl").write_text(f"#!/bin/sh\n{script}\n")
        (short_tmp / "pxctl").chmod(0o755)
    with pytest.raises(DaemonError, match=words):
        await ControlSocket(str(short_tmp / "s")).ensure_running()
