"""Answers of tools that are not simply JSON with status 200: redirects, encodings, NaN, late
ones and none.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.house import NDJSON, SSE, House, Later, house, server, until

SERVER = """
import base64, json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Tool(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/healthz":
            return self.answer(200, b"{}", Content_Type="application/json")
        if path == "/again":
            return self.answer(307, b"", Location="/there")
        if path == "/refuses":
            return self.answer(405, b"not so")
        if path not in ("/run", "/stream") or not body:
            seen = {"method": self.command, "path": self.path, "body": body.decode()}
            seen["run"] = self.headers["X-Px-Run-Id"]
            return self.answer(200, json.dumps(seen).encode(), Content_Type="application/json")
        asked = json.loads(body)
        asked = asked.get("inputs", asked)
        if "status" in asked:
            place = {"Location": asked["to"].replace("PORT", str(port))} if "to" in asked else {}
            return self.answer(asked["status"], b"", **place)
        headers = {"Content_Encoding": asked["coding"]} if "coding" in asked else {}
        self.answer(asked.get("code", 200), base64.b64decode(asked["base64"]), Content_Type=asked["type"], **headers)
    do_GET = do_POST = handle_any

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Tool).serve_forever()
"""
PIXIE = {
    "schema_version": "1",
    "id": "pixie-answers",
    "name": "Answers",
    "version": "1.0",
    "description": "a test tool",
    "category": "test",
    "icon": "x",
    "inputs": [
        {"key": "status", "label": "s", "type": "number"},
        {"key": "to", "label": "t", "type": "text"},
    ],
    "outputs": [{"key": "o", "label": "o", "type": "markdown", "streams": True}],
}


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    with house({"PX_TOOLS__WARM_KEEP_MAX": "50"}, start=True) as made:
        made.tool("answers", SERVER)
        yield made


# -- redirects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize(
    ("status", "to", "seen"),
    [
        (307, "/run/", ("POST", "/run/", "all")),
        (308, "http://127.0.0.1:PORT/run/?a=b%20c", ("POST", "/run/?a=b%20c", "all")),
        (308, "http://localhost:PORT/elsewhere#here", ("POST", "/elsewhere", "all")),
        (307, "sub/dir", ("POST", "/sub/dir", "all")),
        (303, "/result/7", ("GET", "/result/7", "")),
        (302, "/result?of=7", ("GET", "/result?of=7", "")),
        (301, "/result", ("GET", "/result", "")),
    ],
)
def test_redirect_within_the_tool_is_followed(
    shared: House, verb: str, status: int, to: str, seen: tuple[str, str, str]
) -> None:
    """307 and 308 repeat the request; the others ask with GET, as browsers do."""
    sent = json.dumps({"status": status, "to": to})
    answer = shared.request("POST", f"/api/tools/answers/{verb}", sent.encode())
    found = answer.json()
    assert (answer.status, found["method"], found["path"]) == (200, seen[0], seen[1])
    assert found["body"] == (sent if seen[2] else "")
    assert found["run"] == answer.headers["x-px-run-id"]


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize(
    ("status", "to", "words"),
    [
        (307, "http://127.0.0.1:1/run", "leads out of the tool, to http://127.0.0.1:1/run"),
        (307, "http://example.com/run", "leads out of the tool"),
        (307, "//example.com/run", "leads out of the tool"),
        (308, "https://127.0.0.1:PORT/run", "leads out of the tool"),
        (302, "http://[", "leads out of the tool"),
        (307, "/again", "and 307 there again"),
        (302, "/{verb}/", "the input would be lost"),
        (301, "http://localhost:PORT/{verb}/", "the input would be lost"),
        (303, "/refuses", "answered 405 to GET /refuses, where a redirect led: not so"),
        (307, None, "which is no answer"),
        (304, None, "which is no answer"),
        (300, "/there", "which is no answer"),
    ],
)
def test_other_redirects_are_errors(
    shared: House, verb: str, status: int, to: str | None, words: str
) -> None:
    asked: dict[str, Any] = {"status": status}
    if to is not None:
        asked["to"] = to.replace("{verb}", verb)
    problem = shared.request("POST", f"/api/tools/answers/{verb}", asked).json()
    assert (problem["kind"], words in problem["detail"]) == ("tool_failed", True), problem
    assert (problem["status"] >= 400, bool(problem["hint"])) == (True, True)


def test_redirect_is_an_error_to_the_client_and_saves_nothing(shared: House) -> None:
    words = ["run", "answers", "status:=307", "to=http://example.com/"]
    done = shared.pxctl(*words, "-o", "answer.json")
    assert (done.returncode, done.stdout, (shared.home / "answer.json").exists()) == (1, "", False)
    assert "cannot run tool:answers: tool:answers answered 307 to POST /run" in done.stderr
    done = shared.pxctl("run", "answers", "status:=307", "to=/run/", "-o", "answer.json")
    saved = json.loads((shared.home / "answer.json").read_text())
    assert (done.returncode, saved["path"]) == (0, "/run/")
    ended = shared.events("tool:answers", "run")[-2:]
    assert [event["outcome"] for event in ended] == ["failed", "completed"]


def test_redirect_of_a_pixie_tool(shared: House) -> None:
    folder = shared.tool("pixie-answers", SERVER)
    (folder / "tool.json").write_text(json.dumps(PIXIE))
    for verb, path in (("run", "/run/"), ("stream", "/stream")):
        answer = shared.request(
            "POST", f"/api/tools/pixie-answers/{verb}", {"status": 307, "to": "/run/"}
        )
        assert (answer.status, answer.json().get("path", "").partition("?")[0]) == (200, path), (
            answer
        )
    problem = shared.run("pixie-answers", {"status": 307, "to": "http://example.com/"}).json()
    assert (problem["status"], "leads out of the tool" in problem["detail"]) == (502, True)


# -- encodings -------------------------------------------------------------------------------------


def encoded(
    body: bytes, coding: str | None = None, kind: str = "application/json"
) -> dict[str, Any]:
    asked = {"base64": base64.b64encode(body).decode(), "type": kind}
    return asked if coding is None else {**asked, "coding": coding}


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


WHOLE = json.dumps({"text": "ä" * 1000}).encode()
LARGE = os.urandom(1000) * 5000


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(WHOLE)),
        ("GZip", gzip.compress(WHOLE)),
        ("x-gzip", gzip.compress(WHOLE[:50]) + gzip.compress(WHOLE[50:])),
        ("deflate", zlib.compress(WHOLE)),
        ("deflate", raw_deflate(WHOLE)),
        ("deflate, gzip", gzip.compress(zlib.compress(WHOLE))),
        ("identity", WHOLE),
    ],
    ids=["gzip", "GZip", "two members", "deflate", "raw deflate", "two codings", "identity"],
)
def test_unasked_encoding_is_decoded(shared: House, verb: str, coding: str, body: bytes) -> None:
    answer = shared.request("POST", f"/api/tools/answers/{verb}", encoded(body, coding))
    assert (answer.status, answer.body, "content-encoding" in answer.headers) == (200, WHOLE, False)
    done = shared.pxctl("run", "answers", "--input", json.dumps(encoded(body, coding)))
    assert json.loads(done.stdout) == json.loads(WHOLE)


def test_large_and_streamed_answers_are_decoded(shared: House) -> None:
    answer = shared.run(
        "answers", encoded(gzip.compress(LARGE), "gzip", "application/octet-stream")
    )
    assert (answer.status, answer.body == LARGE) == (200, True)
    lines = b'{"n": 1}\n{"n": 2}\n'
    for kind, wanted in ((NDJSON, lines), (SSE, b'data: {"n": 1}\n\ndata: {"n": 2}\n\n')):
        asked = encoded(gzip.compress(lines), "gzip", NDJSON)
        answer = shared.request(
            "POST", "/api/tools/answers/stream", asked, headers={"Accept": kind}
        )
        assert (answer.status, answer.body) == (200, wanted)
    asked = {**encoded(gzip.compress(b"out of stock"), "gzip", "text/plain"), "code": 409}
    assert "answered 409: out of stock" in shared.run("answers", asked).json()["detail"]


@pytest.mark.parametrize(
    ("coding", "body", "words", "kind"),
    [
        (
            "br",
            b"\x8b\x01\x80abc\x03",
            "has the Content-Encoding 'br', which pxd cannot decode",
            "application/json",
        ),
        ("zstd", b"abc", "has the Content-Encoding 'zstd'", NDJSON),
        ("gzip, secret", b"abc", "has the Content-Encoding 'secret'", SSE),
        ("gzip", WHOLE, "is not gzip", "application/json"),
        ("gzip", gzip.compress(WHOLE)[:-9], "breaks off in the middle of its gzip", "text/plain"),
    ],
    ids=["br", "zstd", "unknown", "not gzip", "half of it"],
)
def test_unsound_encoding_is_an_error(
    shared: House, coding: str, body: bytes, words: str, kind: str
) -> None:
    problem = shared.run("answers", encoded(body, coding, kind)).json()
    assert (problem["status"], words in problem["detail"], bool(problem["hint"])) == (
        502,
        True,
        True,
    ), problem


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_nan_is_passed_on_with_a_notice(shared: House, value: str) -> None:
    asked = encoded(b'{"x": [1, %s]}' % value.encode())
    answer = shared.run("answers", asked)
    assert (answer.status, answer.body) == (200, b'{"x": [1, %s]}' % value.encode())
    assert value in answer.headers["x-px-notice"]
    done = shared.pxctl("run", "answers", "--input", json.dumps(asked))
    assert (done.returncode, json.loads(done.stdout)["x"][0]) == (0, 1)
    assert f"the answer contains {value}, which JSON does not have" in done.stderr
    assert "x-px-notice" not in shared.run("answers", encoded(WHOLE)).headers


# -- no content ------------------------------------------------------------------------------------

NO_CONTENT = server("return body").replace(
    'if self.path == "/run": self.answer(run(body))',
    """if self.path in ("/run", "/stream"):
            self.send_response(body["status"])
            for name, value in body.get("headers", {}).items():
                self.send_header(name, value)
            self.end_headers()""",
)


def test_answer_without_content_is_an_empty_one(shared: House) -> None:
    shared.tool("no-content", NO_CONTENT)
    of_json, of_lines = (
        f'headers:={{"Content-Type": "{kind}"}}' for kind in ("application/json", NDJSON)
    )
    for arguments in (["status:=204"], ["status:=205", of_lines], ["status:=204", of_json]):
        for options in ([], ["--json"], ["--stream"]):
            done = shared.pxctl("run", "no-content", *arguments, *options, "--timeout", "10")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (arguments, options)
    done = shared.pxctl("run", "no-content", "status:=204", "-o", "saved")
    assert (done.returncode, (shared.home / "saved").read_bytes()) == (0, b""), done
    assert shared.run("no-content", {"status": 204}).status == 204
    refused = shared.pxctl("run", "no-content", "status:=304")
    assert (
        refused.returncode,
        "answered 304 to POST /run, which is no answer" in refused.stderr,
    ) == (1, True)


# -- late answers and none -------------------------------------------------------------------------

SLOW = server("time.sleep(body.get('seconds', 0)); return {'pid': os.getpid()}")
SERIAL = SLOW.replace("ThreadingHTTPServer", "HTTPServer")


def test_tool_whose_call_timed_out_is_not_called_ready_before_it_answers(shared: House) -> None:
    shared.tool("hangs", SLOW)
    pid = shared.run("hangs").json()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert shared.pxctl("run", "hangs", "--timeout", "0.3").returncode == 7
        seen, why = shared.status("hangs"), shared.json("why", "hangs")
        assert (seen["state"], seen["reason"], seen["pid"]) == ("unresponsive", "watchdog", pid)
        assert "is unresponsive: it stopped giving signs of life" in why["summary"]
        assert (why["next_step"], seen["warnings"] != []) == ("pxctl restart tool:hangs", True)
        checks = {check["name"]: check for check in shared.json("doctor", code=1)["checks"]}
        assert checks["tool:hangs"]["repair"] == "pxctl restart hangs"
        shared.kill_brain()
        assert shared.status("hangs")["state"] == "unresponsive", (
            "the next control plane knows it, too"
        )
        started = shared.pxctl("start", "hangs", "--timeout", "0.5")
        assert (
            started.returncode,
            "has answered neither a call nor GET /healthz" in started.stderr,
        ) == (7, True)
        assert shared.pxctl("wait", "hangs", "--timeout", "0.5").returncode == 7
        waiting = Later(lambda: shared.pxctl("wait", "hangs"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert waiting.result().returncode == 0
    assert (shared.status("hangs")["state"], shared.status("hangs")["warnings"]) == ("ready", [])
    assert shared.run("hangs").json()["pid"] == pid


def test_unresponsive_tool_is_named_as_the_cause(shared: House) -> None:
    shared.tool("stopped", SLOW, max_runtime_seconds=600)
    pid = shared.run("stopped").json()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        found = [
            case for case in shared.json("tools", "debug", "stopped")["cases"] if case["found"]
        ]
        assert [case["case"] for case in found] == ["unresponsive"], (
            "before a call was given up, too"
        )
        assert "GET /healthz" in found[0]["evidence"]
        assert shared.pxctl("run", "stopped", "--timeout", "0.3").returncode == 7
        for _ in range(2):
            late = shared.pxctl("run", "stopped", "--timeout", "0.3")
            assert (late.returncode, "it is unresponsive" in late.stderr) == (7, True), late.stderr
            assert "has answered neither a call nor GET /healthz since 20" in late.stderr
            assert late.stderr.splitlines()[-1] == "hint: Run `pxctl restart stopped`."
            found = [
                case for case in shared.json("tools", "debug", "stopped")["cases"] if case["found"]
            ]
            assert [case["case"] for case in found] == ["unresponsive"]
            assert found[0]["next_step"] == "pxctl restart stopped"
            shared.kill_brain()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_call_that_was_given_up_is_no_run_beside_another(shared: House) -> None:
    """A server that works on many at a time is healthy at once."""
    shared.tool("beside", SLOW)
    for _ in range(2):
        late = shared.pxctl("run", "beside", "seconds:=3", "--timeout", "0.3")
        assert late.stderr.splitlines()[-1] == "hint: Ask with a longer --timeout."


def test_tool_that_answers_after_a_late_call_is_ready_again(shared: House) -> None:
    shared.tool("is-slow", SLOW)
    shared.run("is-slow")
    assert shared.pxctl("run", "is-slow", "seconds:=5", "--timeout", "0.2").returncode == 7
    until(lambda: shared.status("is-slow")["state"] == "ready", "it has answered")
    assert shared.pxctl("wait", "is-slow").returncode == 0


def test_tool_that_answers_nothing_is_stopped_after_the_time_of_a_run(shared: House) -> None:
    shared.tool("is-dead", SLOW, max_runtime_seconds=1, stop_timeout_seconds=0.2)
    pid = shared.run("is-dead").json()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert shared.pxctl("run", "is-dead", "--timeout", "0.2").returncode == 7
    until(lambda: shared.status("is-dead")["state"] == "cold", "it was stopped")
    assert shared.status("is-dead")["reason"] == "watchdog"
    assert shared.run("is-dead").json()["pid"] != pid


@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/1.1"])
def test_wait_in_a_serial_server_is_not_charged_to_the_run(shared: House, protocol: str) -> None:
    """Six calls of 0.3 s to a server that works on one connection at a time, with a limit of 1.2
    s.
    """
    name = f"serial-{protocol[-1]}"
    shared.tool(name, SERIAL.replace("HTTP/1.1", protocol), max_runtime_seconds=1.2)
    pid = shared.run(name).json()["pid"]
    calls = [Later(lambda: shared.run(name, {"seconds": 0.3})) for _ in range(6)]
    assert [call.result().json() for call in calls] == [{"pid": pid}] * 6


def test_wait_for_a_call_that_was_given_up_is_not_charged_to_the_next(shared: House) -> None:
    shared.tool(
        "goes-on", SERIAL.replace("HTTP/1.1", "HTTP/1.0"), max_runtime_seconds=1.5, concurrency=1
    )
    pid = shared.run("goes-on").json()["pid"]
    assert (
        shared.request("POST", "/api/tools/goes-on/run?timeout=0.2", {"seconds": 1.3}).status == 504
    )
    assert shared.run("goes-on", {"seconds": 0.6}).json() == {"pid": pid}


def test_run_that_is_too_long_beside_others_is_ended_and_the_cure_is_named(shared: House) -> None:
    shared.tool("too-long", SLOW, max_runtime_seconds=2)
    shared.run("too-long")
    first = Later(lambda: shared.run("too-long", {"seconds": 0.3}))
    until(lambda: shared.status("too-long")["in_flight"], "it has the first one")
    problem = shared.run("too-long", {"seconds": 600}).json()
    assert first.result().status == 200
    assert (problem["reason"], '"concurrency": 1' in problem["hint"]) == ("runtime_limit", True)
