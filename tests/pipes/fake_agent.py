"""A stand-in for any agent CLI, which does what it is told, faults above all. Standard library only, run as a program.

    fake_agent.py [--as text|pi-new|pi-old] [--version] [STEP…]

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
    err:TEXT         a line on stderr                 flood-err:BYTES  flood-out:BYTES  bad-utf8
    stay             say that it is done, and never exit
    env              print it as the final answer (JSON)
    sleep:SECONDS    hang      waitfile:PATH          touch:PATH
    ignore-term      from here on                     exit:CODE    kill:SIGNAL
    child:SECONDS    a child of its own               setsid:SECONDS  in a session of its own
    daemon:SECONDS   forked twice, in a session of its own
                     (each writes `STEP PID` to $FAKE_PIDS, else to $PX_OUTPUT_DIR/pids)
"""

from __future__ import annotations

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

    def flood(self, size: int) -> None:
        for _ in range(size // len(LINE)):
            out(LINE)
        out(LINE[: size % len(LINE)])

    def settle(self) -> None:
        pass


class Json(Text):
    """What JSON agents share: a record is a line, a flood is many deltas."""

    def flood(self, size: int) -> None:
        for _ in range(size // len(LINE)):
            self.say(LINE.decode())
        self.answer(self.said)


class Pi(Json):
    """`pi --mode json`. Old ones repeat the whole message with every delta, and never say that they are settled."""

    def __init__(self, *, old: bool) -> None:
        super().__init__()
        self.old = old
        self.ended = False

    def begin(self) -> None:
        record("session", version=3, id="fake-session", timestamp="2026-01-01T00:00:00Z", cwd=os.getcwd())
        record("agent_start")
        record("turn_start")

    def say(self, text: str) -> None:
        self.said += text
        event = {"type": "text_delta", "contentIndex": 0, "delta": text}
        if self.old:
            event["partial"] = self._message("stop")
            record("message_update", assistantMessageEvent=event, message=self._message("stop"))
        else:
            record("message_update", assistantMessageEvent=event)

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
        if not self.old:
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


DIALECTS = {"text": Text, "pi-new": lambda: Pi(old=False), "pi-old": lambda: Pi(old=True)}


def out(data: bytes) -> None:
    """Write all of it to stdout, unbuffered."""
    while data:
        data = data[os.write(1, data) :]


def record(kind: str, **members: Any) -> None:
    out(json.dumps({"type": kind, **members}).encode() + b"\n")


class Agent:
    """Does the steps."""

    def __init__(self, dialect: Text) -> None:
        self.dialect = dialect
        self.prompt = ""

    def do(self, step: str) -> None:
        verb, _, argument = step.partition(":")
        getattr(self, f"do_{verb.replace('-', '_')}")(argument)

    def do_noread(self, _: str) -> None:
        pass

    def do_silent(self, _: str) -> None:
        self.prompt = read_stdin()

    def do_say(self, text: str) -> None:
        self.dialect.say(text)

    def do_answer(self, text: str) -> None:
        self.dialect.answer(text)

    def do_echo(self, _: str) -> None:
        self.dialect.answer(self.prompt)

    def do_stop(self, reason: str) -> None:
        self.dialect.answer("", reason)

    def do_fail(self, kind: str) -> None:
        self.dialect.fail(FAILURES[kind])

    def do_endless(self, _: str) -> None:
        number = 0
        while True:
            self.dialect.turn(number)
            number += 1
            time.sleep(0.01)

    def do_usage(self, numbers: str) -> None:
        read, written, cost = numbers.split("/")
        self.dialect.usage = (int(read), int(written), float(cost))

    def do_err(self, text: str) -> None:
        os.write(2, text.encode() + b"\n")

    def do_flood_err(self, size: str) -> None:
        for _ in range(int(size) // len(LINE)):
            os.write(2, LINE)

    def do_flood_out(self, size: str) -> None:
        self.dialect.flood(int(size))

    def do_bad_utf8(self, _: str) -> None:
        out(b"caf\xe9 \xff\xfe\n")

    def do_stay(self, _: str) -> None:
        self.dialect.settle()
        self.do_hang("")

    def do_hang(self, _: str) -> None:
        while True:
            signal.pause()

    def do_env(self, _: str) -> None:
        self.dialect.answer(json.dumps(dict(os.environ), sort_keys=True))

    def do_sleep(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def do_waitfile(self, path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.005)

    def do_touch(self, path: str) -> None:
        Path(path).touch()

    def do_ignore_term(self, _: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_exit(self, code: str) -> NoReturn:
        os._exit(int(code))

    def do_kill(self, number: str) -> None:
        os.kill(os.getpid(), int(number))
        self.do_hang("")

    def do_child(self, seconds: str) -> None:
        if os.fork() == 0:
            linger("child", seconds)

    def do_setsid(self, seconds: str) -> None:
        if os.fork() == 0:
            leave_session()
            linger("setsid", seconds)

    def do_daemon(self, seconds: str) -> None:
        first = os.fork()
        if first == 0:
            leave_session()
            if os.fork() == 0:
                linger("daemon", seconds)
            os._exit(0)
        os.waitpid(first, 0)


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
    words = [word for word in argv if not word.startswith("-") and word != name]
    known = [word for word in words if hasattr(Agent, f"do_{word.partition(':')[0].replace('-', '_')}")]
    agent = Agent(DIALECTS[name]())
    if not {"noread", "silent"} & {*known, *shlex.split(os.environ.get("FAKE_AGENT", ""))}:
        agent.prompt = read_stdin()
    agent.dialect.begin()
    for step in told(known, agent.prompt):
        agent.do(step)
    agent.dialect.settle()
    return agent.dialect.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
