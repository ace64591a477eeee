"""The least that a relay in aiohttp does: `relay.py SOCKET PORT` hands every POST on to /run of
that port.
"""

import asyncio
import sys

import aiohttp
from aiohttp import web


async def main(path: str, port: int) -> None:
    """Serve until killed."""
    session = aiohttp.ClientSession(f"http://127.0.0.1:{port}", cookie_jar=aiohttp.DummyCookieJar())

    async def run(request: web.Request) -> web.Response:
        async with session.post(
            "/run", data=await request.read(), headers={"Content-Type": "application/json"}
        ) as answer:
            return web.Response(
                body=await answer.read(), status=answer.status, content_type="application/json"
            )

    app = web.Application()
    app.router.add_post("/api/tools/{tool}/run", run)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
