"""A tool that knows the LISTEN_FDS protocol."""
# A tool as its author would write it.

import json
import os
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer


class Echo(BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"ok": True})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        names = {key: value for key, value in os.environ.items() if key.startswith("LISTEN_")}
        self.answer({"echo": json.loads(body), "pid": os.getpid(), "listen": names})

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", 0), Echo, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=3)
    server.serve_forever()
