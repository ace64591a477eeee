"""compound-interest: a complete tool in nothing but the standard library.

    python main.py --port 8000
    curl --json '{"principal": 1000, "annual_rate": 0.05, "years": 10}' http://127.0.0.1:8000/run

A tool serves on 127.0.0.1 at the port it is given:

    GET  /healthz   {"ok": true} as soon as it can work
    GET  /schema    its own tool.json
    POST /run       the input as JSON in, the answer as JSON out; 422 when the input does not fit
    POST /stream    the same, a line of JSON for each year as it is computed

It ends with exit code 0 on SIGTERM.
"""

import argparse
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
MAX_BODY = 64 * 1024
MONTHS = 12


# --- the sum -------------------------------------------------------------------------------------------------------


def yearly(principal, annual_rate, years, compounds_per_year=12, monthly_contribution=0):
    """Yield one unrounded row for each year: (year, contribution, interest, balance).

    Interest is credited `compounds_per_year` times. A month's growth factor is taken from the year's, so that a
    contribution in mid-period earns its share and the principal alone grows by exactly (1 + r/n)^n a year.
    """
    growth_of_month = (1 + annual_rate / compounds_per_year) ** (compounds_per_year / MONTHS)
    balance = principal
    for year in range(1, years + 1):
        before = balance
        for _ in range(MONTHS):
            balance = balance * growth_of_month + monthly_contribution
        contribution = MONTHS * monthly_contribution
        yield year, contribution, balance - before - contribution, balance


def rows(deposit):
    """Yield the schedule's rows as they are shown: rounded to the cent."""
    for year, contribution, interest, balance in yearly(**deposit):
        yield {
            "year": year,
            "contribution": round(contribution, 2),
            "interest": round(interest, 2),
            "balance": round(balance, 2),
        }


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


# --- the input -----------------------------------------------------------------------------------------------------


def problems(value):
    """Return what does not fit the input schema, as a list of {pointer, message}; empty when all is well.

    The daemon has checked the input before it gets here. Whoever talks to the tool directly is told the same. Only
    the words of JSON Schema that tool.json uses are known.
    """
    schema = TOOL["input"]
    if not isinstance(value, dict):
        return [{"pointer": "", "message": "must be an object"}]
    found = [{"pointer": f"/{name}", "message": "is required"} for name in schema["required"] if name not in value]
    for name, given in value.items():
        rule = schema["properties"].get(name)
        message = "is not known" if rule is None else misfit(rule, given)
        if message:
            found.append({"pointer": "/" + name.replace("~", "~0").replace("/", "~1"), "message": message})
    return found


def misfit(rule, given):
    """Return how a number breaks its rule, or None."""
    whole = isinstance(given, int) or (isinstance(given, float) and given.is_integer())
    if isinstance(given, bool) or not isinstance(given, (int, float)) or (rule["type"] == "integer" and not whole):
        return f"must be {'an integer' if rule['type'] == 'integer' else 'a number'}"
    if not rule["minimum"] <= given <= rule["maximum"]:
        return f"must be from {rule['minimum']} to {rule['maximum']}"
    return None


def as_declared(value):
    """Return the input with 10.0 as 10 where an integer is declared: JSON does not tell the two apart."""
    kinds = {name: rule["type"] for name, rule in TOOL["input"]["properties"].items()}
    return {name: int(given) if kinds[name] == "integer" else given for name, given in value.items()}


# --- the server ----------------------------------------------------------------------------------------------------


class Refusal(Exception):
    """A request that gets an error as its answer: (HTTP status, JSON body)."""


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
        try:
            deposit = self.read_input()
            if self.path == "/run":
                self.reply(200, answer(deposit))
            elif self.path == "/stream":
                self.stream(rows(deposit))
            else:
                self.reply(404, {"detail": f"there is no {self.path}"})
        except Refusal as refusal:
            self.reply(*refusal.args)

    def read_input(self):
        """Return the checked input, or raise the Refusal that says what is wrong with it."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise Refusal(411, {"detail": "a Content-Length is needed"})
        if int(length) > MAX_BODY:
            self.close_connection = True  # the body stays unread
            raise Refusal(413, {"detail": f"the input may have {MAX_BODY} bytes"})
        try:
            value = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise Refusal(400, {"detail": f"the body is no JSON: {error}"}) from None
        if errors := problems(value):
            raise Refusal(422, {"detail": "the input does not fit", "errors": errors})
        return as_declared(value)

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
