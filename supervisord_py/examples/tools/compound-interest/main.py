"""compound-interest: a complete tool in nothing but the standard library.

    python main.py --port 8000
    curl --json '{"principal": 1000, "annual_rate": 0.05, "years": 10}' http://127.0.0.1:8000/run

A tool serves on 127.0.0.1 at the port it is given:

    GET  /healthz   {"ok": true} as soon as it can work
    GET  /schema    its own tool.json
    POST /run       the input as JSON in, the answer as JSON out
    POST /stream    the same, a line of JSON for each year as it is computed

It ends with exit code 0 on SIGTERM. The daemon has checked an input by tool.json before it gets here.
"""

import argparse
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
MONTHS = 12


# --- the sum -------------------------------------------------------------------------------------------------------


def yearly(principal, annual_rate, years, compounds_per_year=12, monthly_contribution=0):
    """Yield one unrounded row for each year: (year, contribution, interest, balance).

    Interest is credited `compounds_per_year` times. A month's growth factor is taken from the year's, so that a
    contribution in mid-period earns its share and the principal alone grows by exactly (1 + r/n)^n a year.
    """
    growth_of_month = (1 + annual_rate / compounds_per_year) ** (compounds_per_year / MONTHS)
    balance = principal
    for year in range(1, int(years) + 1):  # 10.0 is an integer, too, to JSON Schema
        before = balance
        for _ in range(MONTHS):
            balance = balance * growth_of_month + monthly_contribution
        contribution = MONTHS * monthly_contribution
        yield year, contribution, balance - before - contribution, balance


def rows(deposit):
    """Return the schedule's rows as they are shown: rounded to the cent."""
    return (
        {
            "year": year,
            "contribution": round(contribution, 2),
            "interest": round(interest, 2),
            "balance": round(balance, 2),
        }
        for year, contribution, interest, balance in yearly(**deposit)
    )


def answer(deposit):
    """Return the whole answer of /run."""
    schedule = list(rows(deposit))
    contributed = deposit["principal"] + sum(row["contribution"] for row in schedule)
    final = schedule[-1]["balance"]
    return {
        "final_balance": final,
        "contributed": round(contributed, 2),
        "interest": round(final - contributed, 2),
        "schedule": schedule,
    }


# --- the server ----------------------------------------------------------------------------------------------------


class Requests(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def do_GET(self):
        """Answer the two questions that every tool answers."""
        answers = {"/healthz": {"ok": True}, "/schema": TOOL}
        if self.path in answers:
            self.reply(200, answers[self.path])
        else:
            self.reply(404, {"detail": f"there is no {self.path}"})

    def do_POST(self):
        """Do a run, or say why not."""
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            deposit = json.loads(content)
            if self.path == "/run":
                self.reply(200, answer(deposit))
            elif self.path == "/stream":
                self.stream(rows(deposit))
            else:
                self.reply(404, {"detail": f"there is no {self.path}"})
        except json.JSONDecodeError as error:
            self.reply(400, {"detail": f"the body is no JSON: {error}"})
        except TypeError as error:
            self.reply(422, {"detail": f"the input does not fit: {error}"})

    def reply(self, status, body):
        """Send one JSON document."""
        content = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self, items):
        """Send a line of JSON for each item, each in a chunk of its own."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for item in items:
            line = json.dumps(item).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format, *args):
        """Stay silent about requests that went well; the daemon counts them."""
        if args[1:2] and str(args[1]).startswith("5"):
            super().log_message(format, *args)


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    def handle_error(self, request, client_address):
        """Print a traceback, but not for clients that hang up before they have read everything."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main():
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=TOOL["description"])
    parser.add_argument("--port", type=int, required=True)
    server = Server(("127.0.0.1", parser.parse_args().port), Requests)
    # shutdown() waits for serve_forever() to return, which runs in this thread: it has to be called from another.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    with server:
        server.serve_forever()


if __name__ == "__main__":
    main()
