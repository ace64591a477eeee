"""The client's HTTP: however an answer is cut into reads, it parses the same."""

from __future__ import annotations

import io
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.fake_daemon import chunked, reply
from pxctl import client
from pxctl.client import Exchange, Failure, Interrupted


class Pieces(io.RawIOBase):
    """An answer that comes in these pieces, one a read."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._pieces.pop(0) if self._pieces else b""
        if len(piece) > len(buffer):
            self._pieces.insert(0, piece[len(buffer) :])
        buffer[: len(piece)] = piece[: len(buffer)]
        return min(len(piece), len(buffer))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *marks], [*marks, len(data)], strict=True)]


def parse(pieces: list[bytes]) -> tuple[int, bytes]:
    ignore = mock.Mock()
    there = SimpleNamespace(
        makefile=lambda _: io.BufferedReader(Pieces(pieces)), settimeout=ignore, sendall=ignore, close=ignore
    )
    with mock.patch.object(client, "_connect", lambda _: there), Exchange("") as exchange:
        exchange.send("GET", "/", {}, None, 30.0)
        return exchange.status, exchange.read()


bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
places = st.lists(st.integers(0, 10_000), max_size=30)


@given(bodies, places)
def test_a_chunked_answer_parses_the_same_however_it_is_cut(pieces: list[bytes], at: list[int]) -> None:
    assert parse(cut(chunked(*pieces), at)) == (200, b"".join(pieces))


@given(bodies, st.integers(0, 400))
def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(pieces: list[bytes], keep: int) -> None:
    for whole in (chunked(*pieces), reply(b"".join(pieces) + b"x")):
        with pytest.raises(Interrupted):
            parse([whole[: min(keep, len(whole) - 1)]])


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(raw: bytes) -> None:
    with pytest.raises(Failure, match="is not pxd"):
        parse([raw])


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
