"""A tool that takes every shape, on http.server: FAULT spoils the start, `do` in its input the
run.
"""
# A tool as its author would write it.
# ruff: noqa: SIM115, RET503

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULT = os.environ.get("FAULT", "")
if FAULT == "imports":  # numpy at once, something of the standard library at the first run
    import multiprocessing.process
    import random

    import numpy


class Shapes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, value, status=200, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/healthz":
            self.answer({"ok": True})
        elif self.path == "/schema":
            served = json.load(open("tool.json"))
            if FAULT == "drift":
                served["version"] = "9.9.9"
            self.answer(served)
        else:
            self.answer({"detail": "what?"}, 404)

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/cancel"):
            print("cancel", self.path, file=sys.stderr, flush=True)
            return self.answer({"ok": True}, 404 if FAULT == "no_cancel" else 200)
        value = json.loads(raw) if raw else {}
        getattr(self, f"do_{value.get('do', FAULT if FAULT == 'imports' else 'echo')}")(value)

    def do_echo(self, value):
        listen = {name: os.environ[name] for name in os.environ if name.startswith("LISTEN_")}
        self.answer(
            {"echo": value, "pid": os.getpid(), "headers": dict(self.headers), "listen": listen}
        )

    def do_imports(self, value):
        import plistlib

        self.answer(
            {
                "pid": os.getpid(),
                "random": [
                    random.random(),
                    float(numpy.random.random()),
                    multiprocessing.current_process().authkey.hex(),
                ],
                "names": sorted(os.environ),
                "solved": numpy.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).tolist(),
                "file": plistlib.__name__ and __file__,
                "main": __name__,
                # workers by "spawn" look for main.py there
                "workers_cwd": multiprocessing.process.ORIGINAL_DIR,
            }
        )

    def do_sleep(self, value):
        print("sleeping", file=sys.stderr, flush=True)
        deadline = time.monotonic() + value["number"]
        while time.monotonic() < deadline:
            time.sleep(0.01)
        self.answer({"slept": value["number"]})

    def do_die(self, value):
        print("dying words", file=sys.stderr, flush=True)
        os._exit(int(value["number"]))

    def do_status(self, value):
        print("trouble at the mill", file=sys.stderr, flush=True)
        self.answer({"detail": "no such thing"}, int(value["number"]))
        time.sleep(0.02)
        print("a traceback, once the answer is out", file=sys.stderr, flush=True)

    def do_half(self, value):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b'{"half": ' + b" " * int(value.get("number", 0)))
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_nonsense(self, value):
        self.wfile.write(b"\x00\x01 what is this\r\n\r\n")
        self.close_connection = True

    def do_notjson(self, value):
        self.answer(b"{'python': True}")

    def do_nan(self, value):
        self.answer(b'{"x": NaN}')

    def do_big(self, value):
        self.answer(b"x" * int(value["number"]), kind="application/octet-stream")

    def do_lines(self, value):
        self.do_events(value, "application/x-ndjson", b"%d\n")

    def do_events(self, value, kind="text/event-stream", form=b"data: %d\n\n"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(int(value["number"])):
            item = form % index
            self.wfile.write(b"%x\r\n%s\r\n" % (len(item), item))
            self.wfile.flush()
        if value.get("breaks"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if FAULT == "exits_seven":
        print("seven it is", file=sys.stderr, flush=True)
        os._exit(7)
    if FAULT == "never":
        threading.Event().wait()
    if FAULT == "ignores_term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while FAULT == "gated" and not os.path.exists("gate"):
        time.sleep(0.01)
    server = ThreadingHTTPServer(("127.0.0.1", port), Shapes, bind_and_activate=False)
    if "LISTEN_FDS" in os.environ:
        server.socket.close()
        server.socket = socket.socket(fileno=3)
    else:
        server.server_bind()
        server.server_activate()
    server.serve_forever()


if __name__ == "__main__":
    main()
