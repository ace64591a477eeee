"""A tool that binds its port by itself; with BOASTS it says READY=1 by itself, too."""
# A tool as its author would write it.

import json
import os
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Echo(BaseHTTPRequestHandler):
    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"ok": True}, 503 if "SICK" in os.environ else 200)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"echo": json.loads(body), "pid": os.getpid()})

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    HTTPServer.allow_reuse_address = "REUSES" in os.environ
    with HTTPServer(("127.0.0.1", int(sys.argv[2])), Echo) as server:
        if "BOASTS" in os.environ:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto(b"STATUS=warming up\nREADY=1", os.environ["NOTIFY_SOCKET"])
        server.serve_forever()
