"""A tool in nothing but the standard library.

python main.py --port 8000
"""

import json
import signal
import sys
import traceback
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))


def run(text, times=2):
    """The work itself: input members come as arguments, the answer is any JSON value."""
    result = text * times
    return {"result": result, "length": len(result)}


def stream(text, times=2):
    """The same in steps, for `pxctl run --stream`: yields JSON values."""
    for step in range(1, times + 1):
        yield {"step": step, **run(text, step)}


class Tool(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    has_begun = False  # the head of the answer is sent

    def handle(self):
        with suppress(ConnectionError):  # who asked has gone
            super().handle()

    def do_GET(self):
        answers = {"/healthz": {"ok": True}, "/schema": TOOL}
        self.answer(200 if self.path in answers else 404, answers.get(self.path))

    def do_POST(self):
        self.has_begun = False
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            given = json.loads(body)
            if self.path == "/stream":
                self.stream(stream(**given))
            else:
                self.answer(200, run(**given))
        except ConnectionError:
            raise
        except Exception as error:
            traceback.print_exc()  # pxctl names the line
            if self.has_begun:
                # in the middle: nobody takes the stream for a whole one
                self.close_connection = True
            else:
                self.answer(500, {"detail": f"{type(error).__name__}: {error}"})

    def answer(self, status, value):
        content = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self, values):
        """Send a line of JSON for each value, each as a chunk."""
        for value in values:
            line = json.dumps(value).encode() + b"\n"
            self.begin_stream()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.begin_stream()
        self.wfile.write(b"0\r\n\r\n")

    def begin_stream(self):
        if not self.has_begun:
            self.has_begun = True
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

    def log_request(self, code="-", size="-"):
        """Say nothing of requests that went well: the daemon asks often."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Tool).serve_forever()
