"""lorenz-ode-solver: a numerical tool with FastAPI, numpy and scipy.

    python main.py --port 8000
    curl --json @test-request.json http://127.0.0.1:8000/run
    curl --json '{"plot": true}' -o lorenz.png http://127.0.0.1:8000/run
    curl -N --json '{}' -H 'Accept: text/event-stream' http://127.0.0.1:8000/stream

The sums are in lorenz.py, the drawing is in picture.py; here is what makes a tool of them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

import picture
from lorenz import IntegrationError, Problem, summary, trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
GRACE_SECONDS = 3

app = FastAPI(title=TOOL["name"], version=TOOL["version"], description=TOOL["description"])


def as_integer(value: object) -> object:
    """Take 4000.0 for 4000: JSON does not tell the two apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Input(BaseModel):
    """The input of a run: the same fields, ranges and defaults as in tool.json (a test compares the two)."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    sigma: float = Field(10.0, ge=0, le=100)
    rho: float = Field(28.0, ge=0, le=500)
    beta: float = Field(8 / 3, ge=0, le=100)
    initial: list[Annotated[float, Field(ge=-1000, le=1000)]] = Field([1.0, 1.0, 1.0], min_length=3, max_length=3)
    t_end: float = Field(40.0, gt=0, le=1000)
    steps: Annotated[int, BeforeValidator(as_integer)] = Field(4000, ge=1, le=100_000)
    rtol: float = Field(1e-10, ge=1e-13, le=0.1)
    atol: float = Field(1e-12, ge=1e-15, le=0.1)
    format: Literal["summary", "points"] = "summary"
    plot: bool = False

    def problem(self) -> Problem:
        """Return what the solver is to solve."""
        numbers = self.model_dump(exclude={"format", "plot", "initial"})
        return Problem(**numbers, initial=(self.initial[0], self.initial[1], self.initial[2]))


Given = Annotated[Input, Body(default_factory=Input)]


# --- cancelling ----------------------------------------------------------------------------------------------------


class CancelledRun(Exception):
    """Somebody asked for the end of the run."""


_under_way: dict[str, threading.Event] = {}


@contextmanager
def cancellable(request: Request) -> Iterator[threading.Event]:
    """Give a run an event that is set when it is to stop; the daemon names the run in a header."""
    name, stop = request.headers.get("x-px-run-id") or f"unnamed {id(request)}", threading.Event()
    _under_way[name] = stop
    try:
        yield stop
    finally:
        _under_way.pop(name, None)


@app.post("/cancel")
def cancel(run_id: str | None = None) -> dict[str, int]:
    """Stop the run of that name; without a name all of them. A run notices at the end of its block."""
    runs = dict(_under_way)
    if run_id in runs:
        chosen = [runs[run_id]]
    elif run_id is None or (len(runs) == 1 and next(iter(runs)).startswith("unnamed")):
        chosen = list(runs.values())
    else:
        chosen = []
    for stop in chosen:
        stop.set()
    return {"cancelled": len(chosen)}


# --- running -------------------------------------------------------------------------------------------------------


@app.get("/healthz")
def healthz() -> dict[str, bool]:
    """Say that requests are welcome."""
    return {"ok": True}


@app.get("/schema")
def schema() -> Response:
    """Give tool.json."""
    return JSONResponse(TOOL)


@app.post("/run")
def run(given: Given, request: Request) -> Response:
    """Solve, and answer with JSON or a picture. FastAPI runs this in a thread: /healthz goes on answering."""
    problem = given.problem()
    blocks = []
    with cancellable(request) as stop:
        for block in trajectory(problem):
            blocks.append(block)
            if stop.is_set():
                raise CancelledRun(f"cancelled at t = {block.points[-1, 0]:.6g}")
    points = np.concatenate([block.points for block in blocks])
    if given.plot:
        return Response(picture.draw(points[:, 1:]), media_type="image/png")
    answer = summary(problem, points, blocks[-1].evaluations)
    return JSONResponse(answer | {"points": points.tolist()} if given.format == "points" else answer)


@app.post("/stream")
def stream(given: Given, request: Request) -> Response:
    """Solve, and send points and progress as they come: server-sent events for who accepts them, else lines of JSON."""
    items = _items(given.problem(), request)
    if "text/event-stream" in request.headers.get("accept", ""):
        events = (f"event: {_kind(item)}\ndata: {json.dumps(item)}\n\n" for item in items)
        return StreamingResponse(events, media_type="text/event-stream")
    lines = (json.dumps(item) + "\n" for item in items)
    return StreamingResponse(lines, media_type="application/x-ndjson")


def _kind(item: dict[str, object]) -> str:
    return "done" if "done" in item else "error" if "error" in item else "points"


def _items(problem: Problem, request: Request) -> Iterator[dict[str, object]]:
    """Yield {t, progress, points} for each block and {done, summary} at the end; {error} when it cannot go on."""
    blocks = []
    with cancellable(request) as stop:
        try:
            for block in trajectory(problem):
                blocks.append(block)
                reached = float(block.points[-1, 0])
                yield {"t": reached, "progress": reached / problem.t_end, "points": block.points.tolist()}
                if stop.is_set():
                    yield {"error": "cancelled"}
                    return
        except IntegrationError as error:
            yield {"error": str(error)}
            return
    points = np.concatenate([block.points for block in blocks])
    yield {"done": True, "summary": summary(problem, points, blocks[-1].evaluations)}


# --- saying no -----------------------------------------------------------------------------------------------------


@app.exception_handler(RequestValidationError)
def misfit(_request: Request, error: RequestValidationError) -> Response:
    """Say what does not fit and where, as JSON pointers into the input."""
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return JSONResponse({"detail": "the body is no JSON"}, status_code=400)
    errors = [{"pointer": _pointer(item["loc"][1:]), "message": item["msg"]} for item in found]
    return JSONResponse({"detail": "the input does not fit", "errors": errors}, status_code=422)


def _pointer(path: tuple[str | int, ...]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


@app.exception_handler(IntegrationError)
def unsolvable(_request: Request, error: IntegrationError) -> Response:
    """The input fits its schema, but has no solution that floating point can hold."""
    return JSONResponse({"detail": str(error), "errors": [{"pointer": "", "message": str(error)}]}, status_code=422)


@app.exception_handler(CancelledRun)
def cancelled(_request: Request, error: CancelledRun) -> Response:
    """The run was ended from outside."""
    return JSONResponse({"detail": str(error)}, status_code=409)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=TOOL["description"])
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    # When uvicorn has stopped in good order it raises the signal once more; that is then the end, and a good one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS)


if __name__ == "__main__":
    main()
