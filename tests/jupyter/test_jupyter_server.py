"""A real jupyter_server whose kernels are the daemon's: as JupyterLab uses it, over REST and a WebSocket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from e2e.house import alive, until
from jupyter_house import LAUNCHED, PATIENCE, Front, Lab, Page, ask, gone, is_reply, lab, printed

pytestmark = pytest.mark.deep


@pytest_asyncio.fixture
async def server(front: Front) -> AsyncIterator[Lab]:
    async with lab(front) as made:
        yield made


@asynccontextmanager
async def opened(server: Lab, **body: Any) -> AsyncIterator[tuple[str, Page]]:
    """Start a kernel, and open a page of it; yields its path, too."""
    model = await ask(server.http, "POST", "/api/kernels", {"name": "pxd", **body}, 201)
    path = f"/api/kernels/{model['id']}"
    async with server.http.ws_connect(f"{path}/channels?session_id=page") as socket:
        yield path, Page(socket)


async def settled(server: Lab, path: str) -> None:
    """Wait until the server has restarted a kernel, after which it can interrupt it.

    A page is served before. A server that is told to end in between never ends: it asks a future that is not done
    for its exception, and gives its stop up.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            async with server.http.post(f"{path}/interrupt") as answer:
                if answer.ok:
                    return


async def test_a_kernel_of_the_server_is_the_daemons_from_its_start_to_its_end(front: Front, server: Lab) -> None:
    (front.folder / "sub").mkdir(exist_ok=True)
    assert "pxd" in (await ask(server.http, "GET", "/api/kernelspecs"))["kernelspecs"]
    async with opened(server, path="sub/a.ipynb") as (path, page):
        ((_, session),) = front.living().items()
        assert session["name"] == f"jupyter-{path.rpartition('/')[2][:8]}"
        assert session["cwd"] == str(front.folder / "sub")
        assert printed((await page.run("print(6 * 7)"))[1]) == "42\n"
        asked = await page.begin("print('begun')\nwhile True: pass")
        await page.hear(lambda it: it.type == "stream")
        await ask(server.http, "POST", f"{path}/interrupt", status=204)
        heard = await page.hear(is_reply(asked))
        assert next(filter(is_reply(asked), heard)).content["ename"] == "KeyboardInterrupt"
        await ask(server.http, "POST", f"{path}/restart")
        assert (await page.run("asked"))[0]["ename"] == "NameError"
        ((_, after),) = front.living().items()
        assert (after["id"], after["pid"] != session["pid"]) == (session["id"], True)
    await settled(server, path)
    await ask(server.http, "DELETE", path, status=204)
    assert not alive(after["pid"])
    assert front.living() == {}


async def test_a_crash_is_told_to_the_page_which_goes_on_with_the_next_kernel(front: Front, server: Lab) -> None:
    async with opened(server) as (path, page):
        assert (await page.run("x = 1"))[0]["status"] == "ok"
        ((_, session),) = front.living().items()
        os.kill(session["pid"], signal.SIGKILL)
        gone(session["pid"])
        await page.hear(lambda it: it.state == "restarting")
        await page.hear(lambda it: it.type == "iopub_welcome")  # it hears the next kernel
        assert (await page.run("x"))[0]["ename"] == "NameError"
    assert len(front.living()) == 1
    await settled(server, path)


async def test_a_kernel_that_cannot_be_started_is_told_with_the_daemons_words(front: Front, server: Lab) -> None:
    front.spec("dead", ["/nowhere/python", *LAUNCHED])
    refused = await ask(server.http, "POST", "/api/kernels", {"name": "dead"}, 422)
    assert "/nowhere/python" in refused["message"]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_kernels_outlive_a_server_that_is_killed_and_end_with_one_that_ends_in_order(
    front: Front, server: Lab, *, is_killed: bool
) -> None:
    await ask(server.http, "POST", "/api/kernels", {"name": "pxd"}, 201)
    ((_, session),) = front.living().items()
    server.process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
    await asyncio.to_thread(server.process.wait, PATIENCE)
    if is_killed:
        assert alive(session["pid"])
        assert front.living()[session["id"]]["instance"] == session["instance"]
    else:
        gone(session["pid"])
        until(lambda: front.living() == {}, "the daemon has it down")
