"""The client's HTTP: an answer is read whole or not at all."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.fake_daemon import chunked, reply
from pxctl import client
from pxctl.client import Exchange, Failure, Interrupted


def parse(data: bytes) -> tuple[int, bytes]:
    """Return what the client reads of an answer after which the daemon is gone."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
    with mock.patch.object(client, "_connect", lambda _: ours), Exchange("") as exchange:
        exchange.send("GET", "/", {}, None, 30.0)
        return exchange.status, exchange.read()


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(0, 400))
def test_an_answer_is_read_whole_and_one_that_breaks_off_is_never_taken_for_it(pieces: list[bytes], keep: int) -> None:
    content = b"".join(pieces) + b"x"
    for whole in (chunked(*pieces, b"x"), reply(content)):
        assert parse(whole) == (200, content)
        with pytest.raises(Interrupted):
            parse(whole[: min(keep, len(whole) - 1)])


@pytest.mark.parametrize("raw", ["SSH-2.0-OpenSSH_9.2", "HTTP/1.1 2x0 OK", "HTTP/1.1 200 OK\r\nno colon"])
def test_what_is_not_http_is_refused(raw: str) -> None:
    with pytest.raises(Failure, match="is not pxd"):
        parse(f"{raw}\r\n\r\n".encode())


def test_a_daemon_that_takes_its_time_gets_a_large_body(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 1)
    body, path = bytes(4_000_000), f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            time.sleep(2.5)  # a send that has moved something is given the time once more
            left = len(body)
            while left > 0 and (piece := connection.recv(1_000_000)):
                left -= len(piece)
            connection.sendall(reply(b"{}"))
            connection.close()

        there = threading.Thread(target=answer)
        there.start()
        with Exchange(path) as exchange:
            exchange.send("POST", "/", {}, body, None)
            assert exchange.status == 200
        there.join()
