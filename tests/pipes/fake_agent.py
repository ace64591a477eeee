"""A stand-in for any agent CLI, which does what it is told, faults above all. Standard library only, run as a program.

    fake_agent.py [--as text|pi-new] [--version] [STEP…]

Steps come from a line `FAKE: STEP STEP` in the prompt, else from argv, else from $FAKE_AGENT; without any it answers
"done". Words are split as a shell does it. Other options (as an adapter adds them) are ignored.

    noread           leave stdin alone; otherwise all of it is read before the first step
    silent           read stdin until it is closed (which is the end of it only if somebody closes it)
    say:TEXT         some output, without an end: a delta, or a line
    answer:TEXT      the final answer                 echo         the prompt as the final answer
    stop:REASON      an answer that ends with this reason, without text
    fail:KIND        the provider's error: 401 403 404 429 quota 500 network overflow refusal
    endless          turns with a tool call until somebody stops it
    usage:IN/OUT/COST  of every answer from here on
    err:TEXT         a line on stderr                 flood-err:BYTES
    stay             say that it is done, and never exit
    env              print it as the final answer (JSON)
    sleep:SECONDS    hang      waitfile:PATH          touch:PATH
    ignore-term      from here on                     exit:CODE    kill:SIGNAL
    child:SECONDS    a child of its own               setsid:SECONDS  in a session of its own
    daemon:SECONDS   forked twice, in a session of its own
                     (each writes `STEP PID` to $FAKE_PIDS, else to $PX_OUTPUT_DIR/pids)
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

MODEL = "fake-model"
LINE = b"x" * 1023 + b"\n"
VERBS = (
    " noread silent say answer echo env stop fail endless usage err flood-err stay hang sleep "
    "waitfile touch ignore-term exit kill child setsid daemon "
)
"""What of argv is a step: an adapter adds its own options and their values."""
FAILURES = {
    "401": "401 Incorrect API key provided: fake****.",
    "403": "403 Your key has no access to this model.",
    "404": "404 The model `fake-model` does not exist or you do not have access to it.",
    "429": "429 Rate limit reached for fake-model on requests per min (RPM): Limit 3.",
    "quota": "429 insufficient_quota: You exceeded your current quota, please check your plan and billing details.",
    "500": "500 server_error: The server had an error while processing your request.",
    "network": "Connection error.",
    "overflow": "400 context_length_exceeded: This model's maximum context length is 8192 tokens.",
    "refusal": "content_filter: the answer was flagged",
}


class Text:
    """Says things as they are; failures on stderr, with exit code 1."""

    def __init__(self) -> None:
        self.usage = (1000, 50, 0.00375)
        self.said = ""
        self.code = 0

    def begin(self) -> None:
        pass

    def say(self, text: str) -> None:
        out(text.encode("utf-8", "surrogateescape"))

    def answer(self, text: str, reason: str = "stop") -> None:
        out(text.encode("utf-8", "surrogateescape") + b"\n" if reason == "stop" else b"")

    def fail(self, message: str) -> None:
        os.write(2, f"Error: {message}\n".encode())
        self.code = 1

    def turn(self, number: int) -> None:
        out(b"[tool call %d]\n" % number)

    def settle(self) -> None:
        pass


class Pi(Text):
    """`pi --mode json`."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    def begin(self) -> None:
        record("session", version=3, id="fake-session", timestamp="2026-01-01T00:00:00Z", cwd=os.getcwd())
        record("agent_start")
        record("turn_start")

    def say(self, text: str) -> None:
        self.said += text
        record("message_update", assistantMessageEvent={"type": "text_delta", "contentIndex": 0, "delta": text})

    def answer(self, text: str, reason: str = "stop") -> None:
        if text and not self.said:
            self.say(text)
        record("message_end", message=self._message(reason, text))
        record("turn_end", message=self._message(reason, text), toolResults=[])
        self.said = ""

    def fail(self, message: str) -> None:
        record("message_end", message={**self._message("error", ""), "errorMessage": message})

    def turn(self, number: int) -> None:
        call = {"toolCallId": f"call{number}", "toolName": "bash"}
        record("message_end", message=self._message("toolUse", ""))
        record("tool_execution_start", **call, args={"command": "true"})
        record("tool_execution_end", **call, result={"content": []}, isError=False)
        record("turn_end", message=self._message("toolUse", ""), toolResults=[])
        record("turn_start")

    def settle(self) -> None:
        if self.ended:
            return
        self.ended = True
        record("agent_end", messages=[self._message("stop")])
        record("agent_settled")

    def _message(self, reason: str, text: str | None = None) -> dict[str, Any]:
        read, written, cost = self.usage
        said = self.said if text is None else text
        return {
            "role": "assistant",
            "content": [{"type": "text", "text": said}] if said else [],
            "provider": "fake",
            "model": MODEL,
            "usage": {
                "input": read,
                "output": written,
                "cacheRead": 0,
                "cacheWrite": 0,
                "totalTokens": read + written,
                "cost": {"total": cost},
            },
            "stopReason": reason,
        }


DIALECTS = {"text": Text, "pi-new": Pi}


def out(data: bytes) -> None:
    """Write all of it to stdout, unbuffered."""
    while data:
        data = data[os.write(1, data) :]


def record(kind: str, **members: Any) -> None:
    out(json.dumps({"type": kind, **members}).encode() + b"\n")


def do(step: str, dialect: Text, prompt: str) -> None:
    verb, _, argument = step.partition(":")
    match verb:
        case "noread" | "silent":
            pass  # see `main`
        case "say":
            dialect.say(argument)
        case "answer":
            dialect.answer(argument)
        case "echo":
            dialect.answer(prompt)
        case "env":
            dialect.answer(json.dumps(dict(os.environ), sort_keys=True))
        case "stop":
            dialect.answer("", argument)
        case "fail":
            dialect.fail(FAILURES[argument])
        case "endless":
            for number in itertools.count():
                dialect.turn(number)
                time.sleep(0.01)
        case "usage":
            read, written, cost = argument.split("/")
            dialect.usage = (int(read), int(written), float(cost))
        case "err":
            os.write(2, argument.encode() + b"\n")
        case "flood-err":
            for _ in range(int(argument) // len(LINE)):
                os.write(2, LINE)
        case "stay":
            dialect.settle()
            hang()
        case "hang":
            hang()
        case "sleep":
            time.sleep(float(argument))
        case "waitfile":
            while not Path(argument).exists():
                time.sleep(0.005)
        case "touch":
            Path(argument).touch()
        case "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "exit":
            os._exit(int(argument))
        case "kill":
            os.kill(os.getpid(), int(argument))
            hang()
        case "child" | "setsid" | "daemon":
            first = os.fork()
            if first == 0:
                if verb != "child":
                    leave_session()
                if verb == "daemon" and os.fork():
                    os._exit(0)
                linger(verb, argument)
            if verb == "daemon":
                os.waitpid(first, 0)
        case _:
            raise ValueError(step)


def hang() -> NoReturn:
    while True:
        signal.pause()


def leave_session() -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)


def linger(step: str, seconds: str) -> NoReturn:
    """Say who one is, stay for a while, and end without a trace."""
    target = os.environ.get("FAKE_PIDS") or os.path.join(os.environ["PX_OUTPUT_DIR"], "pids")
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{step} {os.getpid()}\n".encode())
    time.sleep(float(seconds))
    os._exit(0)


def read_stdin() -> str:
    chunks = []
    while chunk := os.read(0, 65536):
        chunks.append(chunk)
    return b"".join(chunks).decode("utf-8", "surrogateescape")


def told(words: list[str], prompt: str) -> list[str]:
    """Return the steps: of the prompt, of argv, of the environment, or the plain answer."""
    for line in prompt.splitlines():
        if line.startswith("FAKE:"):
            return shlex.split(line[5:])
    return words or shlex.split(os.environ.get("FAKE_AGENT", "")) or ["answer:done"]


def main(argv: list[str]) -> int:
    if "--version" in argv:
        print("fake-agent 1.2.3")
        return 0
    name = argv[argv.index("--as") + 1] if "--as" in argv else "text"
    words = [word for word in argv if f" {word.partition(':')[0]} " in VERBS]
    dialect, prompt = DIALECTS[name](), ""
    if not {"noread", "silent"} & {*words, *shlex.split(os.environ.get("FAKE_AGENT", ""))}:
        prompt = read_stdin()
    dialect.begin()
    for step in told(words, prompt):
        if step == "silent":
            prompt = read_stdin()
        do(step, dialect, prompt)
    dialect.settle()
    return dialect.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
