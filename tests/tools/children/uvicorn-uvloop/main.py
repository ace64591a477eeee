"""A FastAPI tool on uvicorn with the uvloop loop."""
# A tool as its author would write it.

import argparse
import os

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


async def healthz(request):
    return JSONResponse({"ok": True})


async def run(request):
    import plistlib  # noqa: F401  as many tools do with what is large

    return JSONResponse({"echo": await request.json(), "pid": os.getpid(), "server": "uvicorn-uvloop"})


app = Starlette(routes=[Route("/healthz", healthz), Route("/run", run, methods=["POST"])])

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, loop="uvloop", log_level="warning")
