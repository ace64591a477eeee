"""A tool on http.server: echoes its input."""
# A tool as its author would write it.
# ruff: noqa: SIM115

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"ok": True} if self.path == "/healthz" else json.load(open("tool.json")))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"echo": json.loads(body), "pid": os.getpid(), "server": "http.server"})

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Echo).serve_forever()
