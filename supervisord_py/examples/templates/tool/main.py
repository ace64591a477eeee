"""A tool in nothing but the standard library.

    python main.py --port 8000
"""

import argparse
import json
import signal
import sys
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

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"ok": True})
        elif self.path == "/schema":
            self.answer(200, TOOL)
        else:
            self.answer(404, {"detail": "not found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in ("/run", "/stream"):
            self.answer(404, {"detail": "not found"})
            return
        try:
            value = (run if self.path == "/run" else stream)(**json.loads(body))
        except (TypeError, ValueError) as error:
            self.answer(422, {"detail": str(error)})
            return
        if self.path == "/run":
            self.answer(200, value)
        else:
            self.send_items(value)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_items(self, items):
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Connection", "close")
        self.end_headers()
        for item in items:
            self.wfile.write(json.dumps(item).encode() + b"\n")

    def log_request(self, code="-", size="-"):
        """Say nothing of requests that went well: the daemon asks often."""


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    def handle_error(self, request, client_address):
        """Print a traceback, but not for clients that hang up before they have read everything."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = Server(("127.0.0.1", port), Tool)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
