"""lorenz-ode-solver: a numerical tool with FastAPI, numpy and scipy.

    python main.py --port 8000
    curl --json @test-request.json http://127.0.0.1:8000/run
    curl --json '{"plot": true}' -o lorenz.png http://127.0.0.1:8000/run
    curl -N --json '{}' http://127.0.0.1:8000/stream

The sums are in lorenz.py, the drawing is in picture.py; here is what makes a tool of them. The
daemon has checked an input by tool.json before it gets here.
"""

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

import picture
from lorenz import IntegrationError, summary, trajectory

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
DEFAULTS = {name: member["default"] for name, member in TOOL["input"]["properties"].items()}

app = FastAPI(title=TOOL["name"], version=TOOL["version"], description=TOOL["description"])
Asked = Annotated[dict[str, Any], Body(default_factory=dict)]
under_way: dict[str, threading.Event] = {}


class CancelledRun(Exception):
    """Somebody asked for the end of the run."""


@app.post("/cancel")
def cancel(run_id: str | None = None):
    """Stop the run of that name; without a name all of them.

    A run notices at the end of its block.
    """
    runs = dict(under_way)
    for name in runs if run_id is None else runs.keys() & {run_id}:
        runs[name].set()
    return {"ok": True}


@app.get("/healthz")
def healthz():
    return {"ok": True}


@app.get("/schema")
def schema():
    return TOOL


def blocks(given: dict[str, Any], request: Request):
    """Yield the trajectory until somebody cancels it; the daemon names the run in a header."""
    problem = {name: value for name, value in given.items() if name not in ("format", "plot")}
    name = request.headers.get("x-px-run-id", str(id(request)))
    under_way[name] = stop = threading.Event()
    try:
        for block in trajectory(**problem):
            yield block
            if stop.is_set():
                raise CancelledRun(f"cancelled at t = {block[-1, 0]:.6g}")
    finally:
        del under_way[name]


@app.post("/run")
def run(asked: Asked, request: Request):
    """Solve, and answer with JSON or a picture.

    FastAPI runs this in a thread: /healthz goes on answering.
    """
    given = DEFAULTS | asked
    points = np.concatenate(list(blocks(given, request)))
    if given["plot"]:
        return Response(picture.draw(points[:, 1:]), media_type="image/png")
    answer = summary(points)
    return answer | {"points": points.tolist()} if given["format"] == "points" else answer


@app.post("/stream")
def stream(asked: Asked, request: Request):
    """Solve, and send points and progress as they come, a line of JSON for each block, and the
    summary at the end.
    """
    given = DEFAULTS | asked

    def lines():
        known = []
        try:
            for block in blocks(given, request):
                known.append(block)
                reached = float(block[-1, 0])
                item = {"t": reached, "progress": reached / given["t_end"], "points": block.tolist()}
                yield json.dumps(item) + "\n"
            answer = {"done": True, "summary": summary(np.concatenate(known))}
        except (IntegrationError, CancelledRun) as error:
            answer = {"error": str(error)}
        yield json.dumps(answer) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@app.exception_handler(IntegrationError)
@app.exception_handler(CancelledRun)
def refused(_request: Request, error: Exception):
    """The input has no solution that floating point can hold, or the run was ended from outside."""
    return JSONResponse({"detail": str(error)}, status_code=409 if isinstance(error, CancelledRun) else 422)


if __name__ == "__main__":
    # When uvicorn has stopped in good order it raises the signal once more; that is then the end,
    # and a good one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = int(sys.argv[sys.argv.index("--port") + 1])
    uvicorn.run(app, port=port, log_level="warning", timeout_graceful_shutdown=3)
