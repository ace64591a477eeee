"""A stand-in for `pi --mode json`, which does what it is told, faults above all. Standard library
only; a program.

Steps come from a line `FAKE: STEP STEP` in the prompt, split as a shell does it; without any it
answers "done". What an adapter adds to its argv is ignored. All of stdin is read before the first
step.

    say:TEXT         a delta               answer:TEXT    the final answer; a delta, too, where none was said before
    env              its environment as the final answer (JSON)
    fail:KIND        the provider's error: 401 404 429
    endless          turns with a tool call until somebody stops it
    usage:IN/OUT/COST  of every answer from here on
    stay             say that it is done, and never exit
    hang             sleep:SECONDS      waitfile:PATH      touch:PATH
    ignore-term      from here on       exit:CODE          kill:SIGNAL
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

FAILURES = {
    "401": "401 Incorrect API key provided: fake****.",
    "404": "404 The model `fake-model` does not exist or you do not have access to it.",
    "429": "429 Rate limit reached for fake-model on requests per min (RPM): Limit 3.",
}


def out(kind: str, **members: Any) -> None:
    """Write a record to stdout, unbuffered and whole."""
    data = json.dumps({"type": kind, **members}).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


class Agent:
    usage = (1000, 50, 0.00375)
    has_said = is_settled = False

    def message(self, reason: str, text: str = "", **more: Any) -> dict[str, Any]:
        read, written, cost = self.usage
        usage = {
            "input": read,
            "output": written,
            "totalTokens": read + written,
            "cost": {"total": cost},
        }
        content = [{"type": "text", "text": text}] if text else []
        return {
            "role": "assistant",
            "content": content,
            "usage": usage,
            "stopReason": reason,
            **more,
        }

    def say(self, text: str) -> None:
        self.has_said = True
        out(
            "message_update",
            assistantMessageEvent={"type": "text_delta", "contentIndex": 0, "delta": text},
        )

    def answer(self, text: str) -> None:
        if not self.has_said:
            self.say(text)
        self.has_said = False
        out("message_end", message=self.message("stop", text))
        out("turn_end", message=self.message("stop", text), toolResults=[])

    def settle(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            out("agent_end", messages=[self.message("stop")])
            out("agent_settled")

    def do(self, step: str) -> None:
        verb, _, argument = step.partition(":")
        match verb:
            case "say":
                self.say(argument)
            case "answer":
                self.answer(argument)
            case "env":
                self.answer(json.dumps(dict(os.environ), sort_keys=True))
            case "fail":
                out("message_end", message=self.message("error", errorMessage=FAILURES[argument]))
            case "endless":
                for number in itertools.count():
                    out("message_end", message=self.message("toolUse"))
                    out(
                        "tool_execution_end",
                        toolCallId=f"call{number}",
                        toolName="bash",
                        isError=False,
                    )
                    out("turn_start")
                    time.sleep(0.01)
            case "usage":
                read, written, cost = argument.split("/")
                self.usage = (int(read), int(written), float(cost))
            case "stay":
                self.settle()
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
                fork(verb, float(argument))
            case _:
                raise ValueError(step)


def hang() -> NoReturn:
    while True:
        signal.pause()


def fork(verb: str, seconds: float) -> None:
    """Have a child that says who it is, stays for a while, and ends without a trace."""
    first = os.fork()
    if first:
        if verb == "daemon":
            os.waitpid(first, 0)
        return
    if verb != "child":
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
    if verb == "daemon" and os.fork():
        os._exit(0)
    target = os.environ.get("FAKE_PIDS") or os.path.join(os.environ["PX_OUTPUT_DIR"], "pids")
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{verb} {os.getpid()}\n".encode())
    time.sleep(seconds)
    os._exit(0)


def main() -> None:
    agent, prompt = Agent(), sys.stdin.buffer.read().decode("utf-8", "replace")
    out("session", version=3, id="fake-session")
    out("agent_start")
    out("turn_start")
    told = next(
        (line[5:] for line in prompt.splitlines() if line.startswith("FAKE:")), "answer:done"
    )
    for step in shlex.split(told):
        agent.do(step)
    agent.settle()


if __name__ == "__main__":
    main()
