"""A tool on hypercorn."""
# A tool as its author would write it.

import argparse
import asyncio
import os

from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


async def healthz(request):
    return JSONResponse({"ok": True})


async def run(request):
    return JSONResponse({"echo": await request.json(), "pid": os.getpid(), "server": "hypercorn"})


app = Starlette(routes=[Route("/healthz", healthz), Route("/run", run, methods=["POST"])])

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    config = Config()
    config.bind = [f"127.0.0.1:{parser.parse_args().port}"]
    asyncio.run(serve(app, config))
