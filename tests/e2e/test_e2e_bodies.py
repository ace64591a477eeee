"""Whatever bytes a client sends, the answer is no internal error, and other clients are served
meanwhile.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from e2e.house import House, house
from supervisord_py.api.routes import ROUTES

# lists of odd bytes

PARTS = {
    "u": "tool:t", "t": "t", "k": "default", "p": "well", "name": "happens", "id": "1", "uuid": "x",
}  # fmt: skip
ENDS_THE_DAEMON = {"/api/daemon/stop", "/api/daemon/restart"}
TAKES_LONG = {"/api/kernels/{k}/restart"}  # starts a process each time
MEGABYTE = 1_000_000
PIPE = '---\nschedule: manual\nagent: command\ncommand: "/bin/true"\nallow_empty: true\n---\nhi\n'
TOOL = {"name": "t", "version": "1", "description": "x", "output": {"type": "object"}}
INPUT = {
    "type": "object",
    "properties": {
        "x": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^(?=a)(a+)+\1$"},
            "uniqueItems": True,
        },
        "y": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "boolean"}]},
    },
    "propertyNames": {"maxLength": 4},
}


def declare(home: House) -> None:
    """Write the tool and the pipe, also after a test has removed them."""
    tool, pipe = home.home / "tools" / "t", home.home / "pipes" / "well"
    for folder in (tool, pipe):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    (tool / "main.py").write_text("print('never ready', flush=True)\nraise SystemExit(3)\n")
    (tool / "tool.json").write_text(json.dumps({**TOOL, "input": INPUT}))
    (pipe / "pipe.md").write_text(PIPE)


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """A daemon with one tool and one pipe."""
    with house() as made:
        declare(made)
        made.start()
        yield made


@pytest.fixture
def daemon(shared: House) -> House:
    """The same, with tool and pipe as they were."""
    declare(shared)
    shared.post("/api/daemon/reload")
    return shared


def paths(*methods: str) -> list[tuple[str, str]]:
    """Return method and path of each route that can be asked without an end to the daemon."""
    left_out = ENDS_THE_DAEMON | TAKES_LONG
    asked = [route for route in ROUTES if route.method in methods and route.path not in left_out]
    return [(route.method, route.path.format(**PARTS)) for route in asked]


def raw(daemon: House, request: bytes) -> bytes:
    """Send bytes and return the beginning of the answer: status line and head."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(daemon.socket)
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(65536)


def head(method: bytes, path: bytes, body: bytes, *fields: bytes) -> bytes:
    lines = [
        method + b" " + path + b" HTTP/1.1",
        b"Host: px",
        b"Content-Type: application/json",
        *fields,
    ]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", b""]) + body


BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"\xef\xbb\xbf{}",
            b"\xef\xbb\xbf",
            b'{"name":"\xff"}',
            b'{"years":"\xff"}',
            b"\0",
            b'{"a":"\\ud800"}',
            b'{"\\ud800":1}',
            b'{"name":"\\ud800"}',
            b'{"code":"\\udfff"}',
            b'{"source":"/\\u0000"}',
            b'{"name":"\\u0000"}',
            b'{"source":"/\\ud800"}',
            b'{"timeout":NaN}',
            b'{"timeout":1e999}',
            b'{"timeout":-Infinity}',
            b'{"timeout":1' + b"0" * 400 + b"}",
            b'{"data":{"x":1' + b"0" * 5000 + b"}}",
            b'{"name":"a","name":"b"}',
            b"[" * 5000,
            b'{"data":' * 2000,
            b'{"data":{"x":' + b"[" * 900 + b"]" * 900 + b"}}",
            b'{"context":{"x":' + b"[" * 900 + b"]" * 900 + b"}}",
            b'{"cwd":"\\u0000"}',
            b'{"interpreter":"\\ud800"}',
            b'{"env":{"A=B":"\\u0000"}}',
            b'{"notebook":"{"}',
            b'{"notebook":"{\\"cells\\":1}"}',
            b'{"source":"example:\\ud800"}',
            b'{"schedule":"\\ud800"}',
            b"{}",
            b"null",
            b"1",
            b'{"source":"https://\\u0000"}',
            b'{"source":"/' + b"a" * 300 + b'"}',
            b'{"name":"' + b"a" * 300 + b'"}',
            b'{"key":"\\ud800"}',
            b'{"data":{"\\ud800":"\\udfff"}}',
            b'{"context":{"\\ud800":"\\udfff"}}',
            b'{"": null}',
        ]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.dictionaries(
            st.sampled_from(["name", "source", "code", "cells", "env", "data", "context", "key"]),
            inner,
        ),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
)
FIELDS = st.sampled_from(
    [
        b"X-Other: \xff",
        b"Accept: \xff",
        b"Last-Event-ID: \xff",
        b"Last-Event-ID: " + b"9" * 400,
        b"Idempotency-Key: \xff",
        b"Idempotency-Key: k",
        b"Accept-Language: \xe9",
        b"Content-Encoding: gzip",
        b"Content-Encoding: deflate",
        b"Content-Encoding: br",
        b"Content-Encoding: \xff",
        b"Cookie: \xff",
        b"User-Agent: \xff\xfe",
        b"Expect: 100-continue",
        b"Range: bytes=\xff",
        b"Range: bytes=5-2",
        b"If-Modified-Since: \xff",
        b"If-Range: \xff",
        b"Origin: \xff",
        b"Accept: text/event-stream",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
        b"13\r\nSec-WebSocket-Key: \xff",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
        b"\xff\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        b"Upgrade: \xff",
        b"Sec-WebSocket-Protocol: \xff",
        b"Content-Type: application/json; charset=\xff",
        b"X-Request-Id: \xff",
    ]
)
QUERIES = st.sampled_from([
    b"", b"?timeout=\xff", b"?timeout=%FF", b"?%FF=1", b"?timeout=nan", b"?timeout=1e999",
    b"?wait=0&wait=1", b"?=x", b"?a", b"?&&",
    b"?cursor=" + b"9" * 4400, b"?since=%00", b"?since=%ED%A0%80", b"?unit=%ED%A0%80", b"?unit=[",
    b"?unit=%00", b"?cwd=/%00",
    b"?cwd=/%ED%A0%80", b"?cwd=/" + b"a" * 300, b"?limit=1&offset=9223372036854775807",
    b"?pipe=%ED%A0%80", b"?since=9999999999999d",
])  # fmt: skip
ENDS = st.sampled_from(
    [b"", b"", b"%FF", b"\xff", b"%00", b"%ED%A0%80", b"%2F..%2F", b"[", b"/" + b"a" * 300]
)


@given(
    route=st.sampled_from(paths("GET", "POST", "PUT", "DELETE")),
    end=ENDS,
    query=QUERIES,
    fields=st.lists(FIELDS, max_size=2),
    body=BODIES,
)
@example(("POST", "/jupyter/api/kernels"), b"", b"", [], b"\xef\xbb\xbf[]")
@example(("POST", "/api/pipes/well/config"), b"", b"", [], b"\xef\xbb\xbf{}")
@example(("POST", "/api/tools/t/run"), b"", b"", [], b'{"years":"\xff"}')
@example(("POST", "/api/tools/add"), b"", b"", [], b'{"source":"/' + b"a" * 300 + b'"}')
def test_no_bytes_make_an_internal_error(
    shared: House,
    route: tuple[str, str],
    end: bytes,
    query: bytes,
    fields: list[bytes],
    body: bytes,
) -> None:
    method, path = route
    if method == "GET" and (b"follow" in query or path.endswith(("/lease", "/channels", "/wait"))):
        return
    if path == "/jupyter/api/kernels" and method == "POST" and body[:1] == b"{":
        return  # it starts kernels, whatever else is said
    answer = raw(shared, head(method.encode(), path.encode() + end + query, body, *fields))
    assert not answer.startswith((b"HTTP/1.1 500", b"HTTP/1.0 500")), (
        route,
        end,
        query,
        fields,
        body,
        answer,
    )


@pytest.mark.parametrize("field", [b"Key", b"Version"])
@pytest.mark.parametrize(
    "path", ["/jupyter/api/kernels/x/channels", "/api/pipes/well/executions/1/tail"]
)
def test_an_upgrade_with_bytes_that_are_no_text_is_refused(
    daemon: House, path: str, field: bytes
) -> None:
    daemon.post("/api/pipes/well/run?wait=1", {})
    key = {b"Key": b"AAAAAAAAAAAAAAAAAAAAAA==", b"Version": b"13", field: b"\xff"}
    lines = [b"Sec-WebSocket-%s: %s" % pair for pair in key.items()]
    request = head(
        b"GET", path.encode(), b"", b"Upgrade: websocket", b"Connection: Upgrade", *lines
    )
    assert raw(daemon, request).split(b" ")[1] == b"400"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        # ids of tests may not depend on the time
        ("gzip", gzip.compress(b'{"name":"x"}', mtime=0)[:-4]),
        ("gzip", gzip.compress(b'{"name":"x"}', mtime=0)[:12]),
        ("gzip", b"{}"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"{}"),
        ("deflate", zlib.compress(b'{"name":"x"}')[:-2]),
        ("deflate", zlib.compress(b"{}") + b"x"),
        ("br", b"{}"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_refused(
    daemon: House, encoding: str, body: bytes
) -> None:
    for path in ("/api/tools/new", "/api/tools/t/run"):
        answer = raw(
            daemon, head(b"POST", path.encode(), body, b"Content-Encoding: " + encoding.encode())
        )
        assert answer.split(b" ")[1] == b"400", answer


def test_a_compressed_body_is_read_and_bounded(daemon: House) -> None:
    body = gzip.compress(b'{"cwd":1}') + gzip.compress(b" ")
    answer = raw(daemon, head(b"POST", b"/api/kernels", body, b"Content-Encoding: gzip"))
    assert b"must be a string" in answer
    bomb = gzip.compress(bytes(300 * MEGABYTE))
    answer = raw(daemon, head(b"POST", b"/api/kernels", bomb, b"Content-Encoding: gzip"))
    assert answer.split(b" ")[1] == b"413"


# -- large ones ------------------------------------------------------------------------------------


def large_bodies(size: int) -> dict[str, bytes]:
    """Return bodies of about so many bytes, each of which is slow to read, to check or to
    explain.
    """
    letters, names = b"a" * size, [b'"%d":0' % number for number in range(min(size // 10, 100_000))]
    return {
        "numbers": b'{"x":[' + b"0," * (size // 2) + b"0]}",
        "data": b'{"data":{"x":[' + b"0," * (size // 2) + b"0]}}",
        "context": b'{"context":{"x":[' + b"0," * (size // 2) + b"0]}}",
        "either": b'{"y":[' + b"0," * (size // 2) + b"0]}",
        "lists": b'{"x":[' + b"[]," * (size // 3) + b"0]}",
        "names": b"{" + b",".join(names) + b"}",
        "patterns": b'{"x":['
        + b",".join(b'"%s%db"' % (b"a" * 20, number) for number in range(size // 30))
        + b"]}",
        "environment": b'{"env":{'
        + b",".join(name.replace(b"0", b'"0"') for name in names[:1])
        + b"}}",
        "arguments": b'{"arguments":[' + b'"a",' * (size // 4) + b'"a"]}',
        "long name": b'{"' + letters + b'":1}',
        "long value": b'{"name":"' + letters + b'"}',
        "long source": b'{"source":"/' + letters + b'"}',
        "script": b'{"script":"' + b"# %%\\n1\\n" * (size // 9) + b'"}',
        "notebook": b'{"notebook":"{\\"cells\\":[' + b"{}," * (size // 3) + b'{}]}"}',
        "cells": b'{"cells":[' + b'{"code":"1"},' * (size // 13) + b'{"code":"1"}]}',
        "whole number": b'{"timeout":' + b"1" * size + b"}",
        "whole numbers": b'{"x":[' + b",".join([b"1" * 4300] * (size // 4301 + 1)) + b"]}",
        "depth": b'{"data":' + b"[" * size,
        "quotes": b'"' * size,
        "open string": b'{"x":"' + b'\\"' * (size // 2),
        "no text": b'{"x":"' + letters + b'\xff"}',
        "spaces": b" " * size,
        "zeros": bytes(size),
    }


class Other:
    """A client that asks again and again until the end of the block, and counts."""

    def __init__(self, daemon: House) -> None:
        self._daemon, self._is_over = daemon, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answers = 0
        self.failures: list[Any] = []

    def __enter__(self) -> Other:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._is_over.is_set():
            answer = self._daemon.request("GET", "/api/health")
            self.answers += 1
            if answer.status != 200:
                self.failures.append(answer)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/kernels", "arguments"),
        ("/api/kernels/default/execute", "cells"),
        ("/api/tools/new", "numbers"),
    ],
)
def test_an_order_with_too_many_values_is_refused_unread(
    daemon: House, path: str, name: str
) -> None:
    """Each of its values would be checked on the event loop: a million took a second."""
    problem = daemon.request("POST", path, large_bodies(MEGABYTE)[name]).refused(413)
    assert "150,000 values" in problem["hint"]


def test_a_script_of_too_many_lines_is_refused(daemon: House) -> None:
    problem = daemon.request(
        "POST", "/api/kernels/default/execute", {"script": "1\n" * 200_001}
    ).refused(422)
    assert "more than 200,000 lines" in problem["detail"]


@pytest.mark.parametrize("name", large_bodies(0))
def test_a_large_body_holds_up_nobody(daemon: House, name: str) -> None:
    """Before the bounds, one of 3 MB held up all clients for half a minute, or took all memory."""
    body, pids = large_bodies(3 * MEGABYTE)[name], daemon.pids()
    with Other(daemon) as other:
        for method, path in paths("POST", "PUT", "DELETE"):
            if path == "/jupyter/api/kernels" and name not in {
                "depth",
                "quotes",
                "zeros",
                "spaces",
            }:
                continue  # unknown members are no mistake there: it starts a kernel
            began, before = time.monotonic(), other.answers
            answer = daemon.request(method, path, body)
            was_long = time.monotonic() - began > 5
            assert answer.status != 500, (path, answer.body)
            assert not was_long or other.answers > before, f"{path} held up another client"
    assert (daemon.pids(), other.failures) == (pids, [])
    assert "control_hung" not in daemon.said()
