"""JupyterLab from outside: the daemon's own REST and WebSocket, and a real jupyter_server whose
kernels are ours.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from e2e.house import alive
from jupyter_house import LAUNCHED, PATIENCE, Front, Page, ask, is_reply, lab, printed
from supervisord_py.kernels.wire import V1
from waiting import eventually


def url_of(front: Front) -> str:
    return f"http://{front.house.settings['PX_API__LISTEN']}"


def token_of(front: Front) -> str:
    (file,) = front.house.home.rglob("*token*")
    return file.read_text().strip()


@pytest_asyncio.fixture
async def http(front: Front) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        url_of(front), headers={"Authorization": f"token {token_of(front)}"}
    ) as made:
        yield made


async def begin(http: aiohttp.ClientSession, front: Front) -> str:
    body = {"name": "python3", "env": {"KERNEL_WORKING_DIR": str(front.folder)}}
    return f"/api/kernels/{(await ask(http, 'POST', '/api/kernels', body, 201))['id']}"


async def test_a_kernel_is_made_shown_interrupted_restarted_and_ended(
    front: Front, http: aiohttp.ClientSession
) -> None:
    path = await begin(http, front)
    model = await ask(http, "GET", path)
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert (model["name"], model["execution_state"], model["connections"]) == ("python3", "idle", 0)
    assert uuid.UUID(model["id"])
    kernel = front.only()
    assert (kernel["owner"], kernel["jupyter_id"], kernel["cwd"]) == (
        "jupyter_api",
        model["id"],
        str(front.folder),
    )
    assert [it["id"] for it in await ask(http, "GET", "/api/kernels")] == [model["id"]]
    assert [it["id"] for it in front.house.get("/jupyter/api/kernels")] == [model["id"]], (
        "the other door has both"
    )
    assert (await ask(http, "GET", "/px/api/kernels"))["schema"] == "px.kernels/1"
    await ask(http, "POST", f"{path}/interrupt", status=204)
    async with http.ws_connect(f"{path}/channels", protocols=(V1,)) as ws:
        page = Page(ws)
        await page.run("x = 1")
        restarting = asyncio.create_task(ask(http, "POST", f"{path}/restart"))
        await page.hear(lambda it: it.state == "restarting")
        asked = await page.begin("x")  # while it comes again, perhaps: the same socket goes on
        heard = await page.hear(is_reply(asked))
        assert next(filter(is_reply(asked), heard)).content["ename"] == "NameError"
        assert (await restarting)["id"] == model["id"]
    await ask(http, "DELETE", path, status=204)
    problem = await ask(http, "GET", path, status=404)
    assert problem["message"] == f"Kernel does not exist: {model['id']}"
    with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
        await http.ws_connect(f"{path}/channels")


async def test_the_fifth_notebook_takes_no_kernel_from_anybody(
    front: Front, http: aiohttp.ClientSession
) -> None:
    """By default there are four places; what open front ends hold needs none, and a session of
    the user's keeps its.
    """
    asked = {"code": "1", "cwd": str(front.folder), "environ": {}}
    assert front.house.request("POST", "/api/kernels/default/execute", asked).status == 200
    paths = await asyncio.gather(*(begin(http, front) for _ in range(5)))
    assert len(front.living()) == 6
    assert {(await ask(http, "GET", path))["execution_state"] for path in paths} == {"idle"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/kernels", {"Authorization": "token TOKEN"}, 200),
        ("/api/kernels", {"Authorization": "Bearer TOKEN"}, 200),
        ("/api/kernels?token=TOKEN", {}, 200),
        ("/api/kernels", {}, 403),
        ("/api/kernels?token=TOKEN", {"Authorization": "token wrong"}, 403),
        ("/api/status?token=TOKEN", {}, 403),
        ("/api/kernels", {"Authorization": "token TOKEN", "Origin": "http://evil.example"}, 403),
        ("/api/kernels", {"Authorization": "token TOKEN", "Host": "evil.example"}, 403),
    ],
)
async def test_the_token_may_come_in_jupyters_ways_and_nothing_goes_without(
    front: Front, path: str, headers: dict[str, str], status: int
) -> None:
    told = {name: text.replace("TOKEN", token_of(front)) for name, text in headers.items()}
    url = url_of(front) + path.replace("TOKEN", token_of(front))
    async with aiohttp.ClientSession() as stranger, stranger.get(url, headers=told) as answer:
        assert answer.status == status


@pytest.mark.parametrize("protocols", [(), (V1,)], ids=["json", "v1"])
async def test_a_cell_runs_through_the_websocket_whatever_else_is_sent(
    front: Front, http: aiohttp.ClientSession, protocols: tuple[str, ...]
) -> None:
    path = await begin(http, front)
    async with http.ws_connect(f"{path}/channels?session_id=abc", protocols=protocols) as ws:
        assert ws.protocol == (protocols[0] if protocols else None)
        no_channel = json.dumps({"header": {"msg_type": "x"}, "channel": "y"})
        for nonsense in ("{", "[]", "null", '{"header": {}}', no_channel):
            await ws.send_str(nonsense)
        await ws.send_bytes(b"\xff" * 40)
        _, ours = await Page(ws).run("import os\nprint(os.getcwd())\n40 + 2")
        assert {it.type for it in ours} == {
            "status",
            "execute_input",
            "stream",
            "execute_result",
            "execute_reply",
        }
        assert (printed(ours), {it.channel for it in ours}) == (
            f"{front.folder}\n",
            {"iopub", "shell"},
        )
        assert (await ask(http, "GET", path))["connections"] == 1


async def test_a_websocket_gets_no_welcome_to_a_subscription(
    front: Front, http: aiohttp.ClientSession
) -> None:
    """Neither to the one made for it, nor to that of a client that joins later; twice in a row."""
    path = await begin(http, front)
    async with http.ws_connect(f"{path}/channels?session_id=first", protocols=(V1,)) as ws:
        for turn in range(2):
            async with http.ws_connect(
                f"{path}/channels?session_id=later{turn}", protocols=(V1,)
            ) as later:
                for page in (Page(later), Page(ws)):
                    asked = await page.begin("1")

                    def is_idle(message: Any, identifier: str = asked.id) -> bool:
                        return bool(message.state == "idle" and message.parent_id == identifier)

                    heard = await page.hear(is_reply(asked), is_idle)
                    assert "iopub_welcome" not in {it.type for it in heard}


async def test_a_websocket_that_comes_back_by_its_session_id_gets_what_it_missed(
    front: Front, http: aiohttp.ClientSession
) -> None:
    """Twice in a row: output, end and reply of a cell that runs meanwhile, once each; another
    client gets its own.
    """
    path = await begin(http, front)
    name = front.only()["id"]
    for turn in range(2):
        step, end = (front.folder / f"{word}{turn}" for word in ("step", "end"))
        wait = (
            "import os, time\ndef until(path):\n    while not os.path.exists(path): "
            "time.sleep(0.01)\n"
        )
        code = (
            f"{wait}print('begun', "
            f"flush=True)\nuntil({str(step)!r})\nprint('away')\nuntil({str(end)!r})\n40 + 2"
        )
        async with http.ws_connect(f"{path}/channels?session_id=S", protocols=(V1,)) as ws:
            page = Page(ws)
            asked = await page.begin(code)
            await page.hear(lambda it: it.type == "stream")
        async with http.ws_connect(
            f"{path}/channels?session_id=other{turn}", protocols=(V1,)
        ) as ws:
            step.touch()
            heard = await Page(ws).hear(lambda it: it.type == "stream")
            assert printed(heard) == "away\n"
        end.touch()
        await eventually(
            lambda: front.house.get(f"/api/kernels/{name}")["state"] == "idle", "the cell is over"
        )
        async with http.ws_connect(f"{path}/channels?session_id=S", protocols=(V1,)) as ws:
            is_idle = lambda it, asked=asked: it.state == "idle" and it.parent_id == asked.id  # noqa: E731
            heard = await Page(ws).hear(is_reply(asked), is_idle)
            ours = [it for it in heard if it.parent_id == asked.id]
            types = [it.type for it in ours]
            assert (printed(ours), types.count("execute_result"), types.count("execute_reply")) == (
                "away\n",
                1,
                1,
            )


async def test_a_websocket_that_comes_back_after_the_end_of_its_kernel_is_told_the_last_words(
    front: Front, http: aiohttp.ClientSession
) -> None:
    path = await begin(http, front)
    go = front.folder / "go"
    code = (
        f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(go)!r}): "
        "time.sleep(0.01)\n"
    )
    pid = front.only()["pid"]
    async with http.ws_connect(f"{path}/channels?session_id=S", protocols=(V1,)) as ws:
        page = Page(ws)
        await page.begin(f"{code}print('last', flush=True)\ntime.sleep(0.5)\nos._exit(3)")
        await page.hear(lambda it: it.type == "stream")
    go.touch()
    await eventually(
        lambda: {it["pid"] for it in front.living().values()} - {None, pid}, "it came again"
    )
    async with http.ws_connect(f"{path}/channels?session_id=S", protocols=(V1,)) as ws:
        heard = await Page(ws).hear(lambda it: it.state == "restarting")
        assert printed(heard) == "last\n"


async def test_two_websockets_of_one_session_id_are_one_client_and_the_newer_one_counts(
    front: Front, http: aiohttp.ClientSession
) -> None:
    path = await begin(http, front)
    async with http.ws_connect(f"{path}/channels?session_id=S", protocols=(V1,)) as first:
        await Page(first).run("1")
        async with http.ws_connect(f"{path}/channels?session_id=S", protocols=(V1,)) as second:
            _, ours = await Page(second).run("print('here')")
            assert printed(ours) == "here\n"
            assert (await first.receive()).type in {
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSED,
            }


async def test_a_jupyter_server_with_us_as_its_gateway_runs_cells(front: Front) -> None:
    async with lab(front, url=url_of(front), auth_token=token_of(front)) as client:
        assert "python3" in (await ask(client, "GET", "/api/kernelspecs"))["kernelspecs"]
        model = await ask(
            client, "POST", "/api/kernels", {"name": "python3", "path": "nb.ipynb"}, 201
        )
        path = f"/api/kernels/{model['id']}"
        async with client.ws_connect(f"{path}/channels") as ws:
            assert (
                printed((await Page(ws).run("import os\nprint(os.getcwd())"))[1])
                == f"{front.folder}\n"
            )
        await ask(client, "POST", f"{path}/interrupt", status=204)
        await ask(client, "POST", f"{path}/restart")
        assert (front.only()["jupyter_id"], front.only()["owner"]) == (model["id"], "jupyter_api")
        await ask(client, "DELETE", path, status=204)


async def settled(http: aiohttp.ClientSession, path: str) -> None:
    """Wait until the server has restarted a kernel, after which it can interrupt it.

    A page is served before. A server that is told to end in between never ends: it asks a future
    that is not done for its exception, and gives its stop up.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.post(f"{path}/interrupt") as answer:
                if answer.ok:
                    return


@pytest.mark.deep
async def test_a_kernel_of_the_server_is_the_daemons_from_its_start_to_its_end(
    front: Front,
) -> None:
    (front.folder / "sub").mkdir(exist_ok=True)
    front.spec("dead", ["/nowhere/python", *LAUNCHED])
    async with lab(front) as http:
        assert "pxd" in (await ask(http, "GET", "/api/kernelspecs"))["kernelspecs"]
        refused = await ask(http, "POST", "/api/kernels", {"name": "dead"}, 422)
        assert "/nowhere/python" in refused["message"], "the daemon's words"
        model = await ask(http, "POST", "/api/kernels", {"name": "pxd", "path": "sub/a.ipynb"}, 201)
        path, session = f"/api/kernels/{model['id']}", front.only()
        assert (session["name"], session["cwd"]) == (
            f"jupyter-{model['id'][:8]}",
            str(front.folder / "sub"),
        )
        async with http.ws_connect(f"{path}/channels?session_id=page") as ws:
            page = Page(ws)
            assert printed((await page.run("print(6 * 7)"))[1]) == "42\n"
            asked = await page.begin("print('begun')\nwhile True: pass")
            await page.hear(lambda it: it.type == "stream")
            await ask(http, "POST", f"{path}/interrupt", status=204)
            heard = await page.hear(is_reply(asked))
            assert next(filter(is_reply(asked), heard)).content["ename"] == "KeyboardInterrupt"
            await ask(http, "POST", f"{path}/restart")
            assert (await page.run("asked"))[0]["ename"] == "NameError"
            after = front.only()
            assert (after["id"], after["pid"] != session["pid"]) == (session["id"], True)
        await settled(http, path)
        await ask(http, "DELETE", path, status=204)
        assert (alive(after["pid"]), front.living()) == (False, {})
