"""Calls of cells against a whole daemon, as a stranger with a socket makes them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.house import DEADLINE, Answer, House, UnixConnection, until

PAGE = 4 * 1024 * 1024


@dataclass
class Stream:
    """One NDJSON answer that is read when the test wishes."""

    connection: UnixConnection
    response: http.client.HTTPResponse

    def next(self) -> dict[str, Any]:
        line = self.response.readline()
        assert line, "the stream ended without a last word"
        event: dict[str, Any] = json.loads(line)
        return event

    def until(self, name: str) -> dict[str, Any]:
        """Read on to the next event of that name; `done` and problems end every wait."""
        while True:
            event = self.next()
            if event.get("event") == name:
                return event
            assert event.get("event") not in {"done", None}, event

    def printed(self, length: int) -> str:
        """Return the next `length` characters of output, in however many pieces they come."""
        text = ""
        while len(text) < length:
            text += self.until("output")["text"]
        return text

    def rest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.response if line.strip()]

    def hang_up(self) -> None:
        self.response.close()
        self.connection.close()


@dataclass
class Later:
    """A call that is under way on a thread of its own."""

    thread: threading.Thread
    answers: list[Answer] = field(default_factory=list)

    def answer(self, seconds: float = DEADLINE) -> Answer:
        self.thread.join(seconds)
        assert self.answers, "the call has not been answered"
        return self.answers[0]

    def document(self, seconds: float = DEADLINE) -> dict[str, Any]:
        answer = self.answer(seconds)
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        return document


@dataclass
class Calls:
    """The kernels of one daemon; sessions are in `cwd` where a call names no other folder."""

    house: House
    cwd: str
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def remembered(self, name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `ask` gave when it was first asked under that name."""
        if name not in self.answers:
            self.answers[name] = ask()
        return self.answers[name]

    def body(self, code: str | list[Any], **members: Any) -> dict[str, Any]:
        code_of = {"code": code} if isinstance(code, str) else {"cells": [_cell(item) for item in code]}
        return {"cwd": self.cwd, **code_of, **members}

    def ask(self, kernel: str, code: str | list[Any], *, seconds: float = DEADLINE, **members: Any) -> Answer:
        path = f"/api/kernels/{kernel}/execute"
        return self.house.request("POST", path, self.body(code, **members), seconds=seconds)

    def run(self, kernel: str, code: str | list[Any], **members: Any) -> dict[str, Any]:
        """Return the px.exec/1 document of a call that ran."""
        answer = self.ask(kernel, code, **members)
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        assert document["schema"] == "px.exec/1", document
        return document

    def value(self, kernel: str, code: str, **members: Any) -> str:
        """Return what one good cell printed or is worth."""
        document = self.run(kernel, code, **members)
        assert document["status"] == "ok", document
        text: str = document["cells"][0]["text"]
        return text.rstrip("\n")

    def problem(self, kernel: str, code: str | list[Any], **members: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the problem document of a call that never ran."""
        answer = self.ask(kernel, code, **members)
        assert answer.status != 200, answer.body
        assert answer.headers["content-type"].startswith("application/problem+json"), answer.headers
        return answer.status, answer.json()

    def later(self, kernel: str, code: str | list[Any], **members: Any) -> Later:
        made = Later(threading.Thread(target=lambda: made.answers.append(self.ask(kernel, code, **members))))
        made.thread.daemon = True
        made.thread.start()
        return made

    @contextlib.contextmanager
    def stream(self, kernel: str, code: str | list[Any], **members: Any) -> Iterator[Stream]:
        connection = UnixConnection(self.house.socket)
        headers = {"Accept": "application/x-ndjson", "Content-Type": "application/json"}
        payload = json.dumps(self.body(code, **members)).encode()
        connection.request("POST", f"/api/kernels/{kernel}/execute", payload, headers)
        made = Stream(connection, connection.getresponse())
        try:
            yield made
        finally:
            made.hang_up()

    def interrupt(self, kernel: str) -> dict[str, Any]:
        answer = self.house.request("POST", f"/api/kernels/{kernel}/interrupt")
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        return document

    def show(self, kernel: str) -> dict[str, Any]:
        document: dict[str, Any] = self.house.get(f"/api/kernels/{kernel}")
        return document

    def listed(self) -> list[dict[str, Any]]:
        """Return all sessions."""
        kernels: list[dict[str, Any]] = self.house.get("/api/kernels")["kernels"]
        return kernels

    def known(self) -> dict[str, dict[str, Any]]:
        """Return all sessions, by name."""
        return {item["name"]: item for item in self.listed()}

    def state(self, kernel: str) -> str | None:
        found = self.known().get(kernel)
        return None if found is None else found["state"]

    def wait_state(self, kernel: str, *states: str) -> None:
        until(lambda: self.state(kernel) in states, f"{kernel} is {' or '.join(states)}")

    def wait_running(self, kernel: str) -> str:
        """Return the id of the cell that runs, once one was sent; its code may not have begun."""
        cell: str = until(lambda: (self.known().get(kernel) or {}).get("running"), f"a cell of {kernel} runs")
        return cell

    def history(self, kernel: str) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = self.house.get(f"/api/kernels/{kernel}/cells")["cells"]
        return cells

    def pages(self, kernel: str, cell: str, query: str = "", limit: int = PAGE) -> Iterator[bytes]:
        """Yield the complete output of a cell that has ended, page by page, checking each page's headers."""
        offset = 0
        while True:
            path = f"/api/kernels/{kernel}/cells/{cell}/output?offset={offset}&limit={limit}{query}"
            answer = self.house.request("GET", path)
            assert answer.status == 200, answer.body
            assert answer.headers["content-type"] == "application/octet-stream"
            assert int(answer.headers["x-offset"]) == offset
            assert len(answer.body) <= limit
            offset += len(answer.body)
            yield answer.body
            if answer.headers["x-complete"] == "true":
                assert int(answer.headers["x-total-bytes"]) == offset
                return
            assert answer.body, "an empty page of a cell that has ended"

    def output(self, kernel: str, cell: str, query: str = "", limit: int = PAGE) -> bytes:
        return b"".join(self.pages(kernel, cell, query, limit))

    def digest(self, kernel: str, cell: str) -> tuple[str, int]:
        found, size = hashlib.sha256(), 0
        for page in self.pages(kernel, cell):
            found.update(page)
            size += len(page)
        return found.hexdigest(), size

    def events(self, unit: str) -> list[dict[str, Any]]:
        answer = self.house.request("GET", f"/api/events?unit={unit}")
        assert answer.status == 200, answer.body
        return [json.loads(line) for line in answer.body.splitlines() if line.strip()]


def _cell(item: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"code": item} if isinstance(item, str) else item


def actions(cell: Mapping[str, Any]) -> list[str]:
    """Return the rungs that ended a cell, in order."""
    return [step["action"] for step in cell["steps"]]
