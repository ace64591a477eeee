"""A tool in Pixie's dialect: shows what it was sent, and streams by run id."""
# A tool as its author would write it.

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

SEEN = {}


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/stream":
            seen = SEEN[parse_qs(url.query)["run_id"][0]]
            self.answer(b"data: " + json.dumps(seen["inputs"]).encode() + b"\n\n", "text/event-stream")
        else:
            self.answer(b'{"ok": true}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        SEEN[body["run_id"]] = body
        there = os.path.isdir(self.headers["X-Pixie-Artefacts-Dir"])
        seen = {"body": body, "headers": dict(self.headers), "there": there, "tool": os.environ["PIXIE_TOOL_ID"]}
        self.answer(json.dumps(seen).encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Echo).serve_forever()
