"""A tool on aiohttp."""
# A tool as its author would write it.

import argparse
import os

from aiohttp import web


async def healthz(request):
    return web.json_response({"ok": True})


async def run(request):
    return web.json_response({"echo": await request.json(), "pid": os.getpid(), "server": "aiohttp"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.post("/run", run)])
    web.run_app(app, host="127.0.0.1", port=parser.parse_args().port, print=None)
