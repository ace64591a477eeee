"""A tool in nothing but the standard library.

python main.py --port 8000
"""

import json
import signal
import sys
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
    def handle(self):
        with suppress(ConnectionError):  # who asked has gone
            super().handle()

    def do_GET(self):
        answers = {"/healthz": {"ok": True}, "/schema": TOOL}
        self.answer(200 if self.path in answers else 404, [answers.get(self.path)])

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            given = json.loads(body)
            if self.path == "/stream":
                self.answer(200, stream(**given), "application/x-ndjson")
            else:
                self.answer(200, [run(**given)])
        except (TypeError, ValueError) as error:
            self.answer(422, [{"detail": str(error)}])

    def answer(self, status, values, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        for value in values:
            self.wfile.write(json.dumps(value).encode() + b"\n")

    def log_request(self, code="-", size="-"):
        """Say nothing of requests that went well: the daemon asks often."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Tool).serve_forever()
