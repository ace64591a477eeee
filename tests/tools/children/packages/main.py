"""A tool whose start is what it imports: numpy at once, something of the standard library at its first run."""
# A tool as its author would write it.

import argparse
import json
import multiprocessing.process
import os
import random
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy

VERSION = 1


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        import plistlib

        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {
            "pid": os.getpid(),
            "version": VERSION,
            "random": [random.random(), float(numpy.random.random()), os.urandom(4).hex()],
            "solved": numpy.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).tolist(),
            "variable": os.environ.get(asked.get("variable", "")),
            "file": plistlib.__name__ and __file__,
            "main": __name__,
            "workers_cwd": multiprocessing.process.ORIGINAL_DIR,  # workers by "spawn" look for main.py there
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
HTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()
