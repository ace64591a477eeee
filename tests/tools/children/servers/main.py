"""A tool on the server that SERVER names, as its author would write it."""

import argparse
import asyncio
import os

SERVER = os.environ.get("SERVER", "asyncio")


def starlette():
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def healthz(request):
        return JSONResponse({"ok": True})

    async def run(request):
        import plistlib  # noqa: F401  as many tools do with what is large

        return JSONResponse({"echo": await request.json(), "pid": os.getpid()})

    return Starlette(routes=[Route("/healthz", healthz), Route("/run", run, methods=["POST"])])


def serve_flask(port):
    from flask import Flask, request

    app = Flask("tool")
    app.post("/run")(lambda: {"echo": request.json, "pid": os.getpid()})
    app.run("127.0.0.1", port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if SERVER == "flask":
        serve_flask(port)
    elif SERVER == "hypercorn":
        from hypercorn.asyncio import Config, serve

        asyncio.run(serve(starlette(), Config.from_mapping(bind=f"127.0.0.1:{port}")))
    else:
        import uvicorn

        uvicorn.run(starlette(), host="127.0.0.1", port=port, loop=SERVER, log_level="warning")
