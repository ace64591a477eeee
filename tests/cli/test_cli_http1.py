"""The client's HTTP: an answer is read whole or not at all."""

from __future__ import annotations

import socket
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


def test_how_long_a_connection_is_waited_for_does_not_bound_the_body_that_follows(tmp_path: Path) -> None:
    """A daemon reads when it can; the kernel gives both the same time, SO_SNDTIMEO."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        with client._connect(f"{tmp_path}/s") as ours:
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == bytes(16)
