"""A tool with FastAPI. `pxctl tools sync` installs what requirements.txt names.

    python main.py --port 8000
"""

import argparse
import json
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
app = FastAPI(title=TOOL["name"])


class Input(BaseModel):
    text: str
    times: int = 2


@app.get("/healthz")
def healthz():
    return {"ok": True}


@app.get("/schema")
def schema():
    return TOOL


@app.post("/run")
def run(request: Input):
    result = request.text * request.times
    return {"result": result, "length": len(result)}


@app.post("/stream")
def stream(request: Input):
    """The same in steps, for `pxctl run --stream`: one JSON value a line."""
    steps = ({"step": step, "result": request.text * step} for step in range(1, request.times + 1))
    return StreamingResponse((json.dumps(each) + "\n" for each in steps), media_type="application/x-ndjson")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, access_log=False)
