"""A tool on Flask's own server."""
# A tool as its author would write it.

import argparse
import os

from flask import Flask, request

app = Flask(__name__)


@app.get("/healthz")
def healthz():
    return {"ok": True}


@app.post("/run")
def run():
    return {"echo": request.get_json(), "pid": os.getpid(), "server": "flask"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app.run(host="127.0.0.1", port=parser.parse_args().port)
