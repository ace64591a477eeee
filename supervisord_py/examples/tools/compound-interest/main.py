"""compound-interest: a complete tool in nothing but the standard library.

    python main.py --port 8000
    curl --json '{"principal": 1000, "annual_rate": 0.05, "years": 10}' http://127.0.0.1:8000/run

A tool serves on 127.0.0.1 at the port it is given:

    GET  /healthz   {"ok": true} as soon as it can work
    GET  /schema    its own tool.json
    POST /run       the input as JSON in, the answer as JSON out
    POST /stream    the same, a line of JSON for each year as it is computed

It ends with exit code 0 on SIGTERM. The daemon has checked an input by tool.json before it gets
here.
"""

import json
import signal
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
MONTHS = 12


def rows(principal, annual_rate, years, compounds_per_year=12, monthly_contribution=0):
    """Yield one row for each year.

    Interest is credited `compounds_per_year` times. A month's growth factor is taken from the
    year's, so that a contribution in mid-period earns its share and the principal alone grows by
    exactly (1 + r/n)^n a year.
    """
    growth_of_month = (1 + annual_rate / compounds_per_year) ** (compounds_per_year / MONTHS)
    balance, contribution = principal, MONTHS * monthly_contribution
    for year in range(1, int(years) + 1):  # 10.0 is an integer, too, to JSON Schema
        before = balance
        for _ in range(MONTHS):
            balance = balance * growth_of_month + monthly_contribution
        parts = {"contribution": contribution, "interest": balance - before - contribution, "balance": balance}
        yield {"year": year} | {name: round(amount, 2) for name, amount in parts.items()}


def answer(deposit):
    """Return the whole answer of /run."""
    schedule = list(rows(**deposit))
    final = schedule[-1]["balance"]
    contributed = round(deposit["principal"] + sum(row["contribution"] for row in schedule), 2)
    interest = round(final - contributed, 2)
    return {"final_balance": final, "contributed": contributed, "interest": interest, "schedule": schedule}


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self):
        with suppress(ConnectionError):  # who asked has gone
            super().handle()

    def do_GET(self):
        answers = {"/healthz": {"ok": True}, "/schema": TOOL}
        self.reply(200 if self.path in answers else 404, answers.get(self.path))

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            deposit = json.loads(content)
            if self.path == "/stream":
                self.stream(rows(**deposit))
            else:
                self.reply(200, answer(deposit))
        except (TypeError, ValueError, KeyError) as error:
            self.reply(422, {"detail": f"the input does not fit: {error}"})

    def reply(self, status, body):
        content = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self, items):
        """Send a line of JSON for each item; the end of the connection is the end of the lines."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Connection", "close")
        self.end_headers()
        for item in items:
            self.wfile.write(json.dumps(item).encode() + b"\n")

    def log_request(self, code="-", size="-"):
        """Say nothing of requests that went well: the daemon asks often."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Requests).serve_forever()
