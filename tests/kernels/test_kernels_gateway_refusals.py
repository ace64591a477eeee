"""Servers that refuse, are not there, or are something else: each is told so, and no secret is in the telling."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kernels.gateway_fake import answer_and_hang_up, fake_server
from kernels.kernel_rig import kernel_house
from supervisord_py.errors import (
    ConfigError,
    InvalidInputError,
    OverloadedError,
    PxError,
    StartFailedError,
    UnknownUnitError,
)
from supervisord_py.kernels.config import GatewayConfig
from supervisord_py.kernels.gateway import GatewayExternal, init_code
from supervisord_py.kernels.gateway_client import GatewayClient
from supervisord_py.kernels.gateway_local import listens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernels.kernel_rig import KernelRig

SECRET = "s3cr3t-t0ken"  # noqa: S105 - of nothing


@asynccontextmanager
async def client_of(url: str, token: str | None = SECRET) -> AsyncIterator[GatewayClient]:
    made = GatewayClient(url, token, "kernels.gateway_token")
    try:
        yield made
    finally:
        await made.close()


async def refusal(url: str, token: str | None = SECRET, seconds: float = 60.0) -> PxError:
    """Return the error that a preflight ends with; it holds no secret."""
    async with client_of(url, token) as client:
        with pytest.raises(PxError) as caught:
            await client.preflight(seconds)
    assert SECRET not in str(caught.value.problem())
    return caught.value


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_a_token_names_the_setting(status: int) -> None:
    async with fake_server(answers={"GET /api/kernelspecs": (status, "")}) as server:
        missing, wrong = await refusal(server.url, None), await refusal(server.url)
    assert isinstance(missing, ConfigError)
    assert "requires authentication" in missing.detail
    assert "does not accept the token of kernels.gateway_token" in wrong.detail
    for error in (missing, wrong):
        assert "PX_KERNELS__GATEWAY_TOKEN" in str(error.hint)
        assert "PI_PYTHON_GATEWAY_TOKEN" in str(error.hint)
        assert error.extra["setting"] == "kernels.gateway_token"


@pytest.mark.parametrize(("query", "token"), [("", SECRET), (f"/?token={SECRET}", None)])
async def test_the_token_travels_in_a_header_and_in_no_address(query: str, token: str | None) -> None:
    """Also one in the address, as Jupyter prints it."""
    async with fake_server() as server:
        async with client_of(server.url + query, token) as client:
            await client.preflight()
            assert server.headers["Authorization"] == f"token {SECRET}"
            assert client.shown == server.url
            channel = await client.connect("k-1", "sess", 60)
            await channel.close()
        assert server.headers["Authorization"] == f"token {SECRET}"
        assert not any(SECRET in each for each in server.asked)


async def test_nobody_there_is_told_with_the_address_and_what_to_try() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        error = await refusal(url.replace("//", f"//me:{SECRET}@") + f"/?token={SECRET}", None)
        probe.listen()
        silent = await refusal(url, seconds=0.05)
    assert "(timeout: no answer within 0.05 s)" in silent.detail
    assert isinstance(error, StartFailedError)
    assert f"The gateway at {url} is not reachable" in error.detail
    assert f"curl {url}/api" in str(error.hint)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "its answer broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>", "no Jupyter server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "no Jupyter server"),
    ],
    ids=["nothing", "ssh", "cut", "page", "list"],
)
async def test_what_is_no_jupyter_server_is_told_so(answer: bytes, words: str) -> None:
    server = await asyncio.start_server(partial(answer_and_hang_up, answer=answer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert words in (await refusal(f"http://127.0.0.1:{port}")).detail


@pytest.mark.parametrize("url", ["localhost:8888", "ftp://h", "http://", "not an address", "http://h:port"])
def test_an_address_that_is_none_is_an_error_of_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"kernels\.gateway_url"):
        GatewayClient(url, None, "kernels.gateway_token")


# -- through the backend -----------------------------------------------------------------------------------------------


def external(rig: KernelRig, url: str | None, token: str | None = None) -> GatewayExternal:
    gateway = GatewayConfig(dir=rig.folder / "gateway", url=url, token=token)
    return GatewayExternal(replace(rig.config, gateway=gateway), daemon=rig.keeper.daemon_id)


async def test_an_unknown_kernelspec_is_told_with_the_nearest(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, fake_server() as server:
        backend = external(rig, server.url)
        with pytest.raises(InvalidInputError) as caught:
            await rig.start(backend, rig.launch(kernelspec="pyton3"))
        await backend.close(stop=True)
    assert "python3" in str(caught.value.hint)
    assert caught.value.extra["errors"][0]["pointer"] == "/kernelspec"
    assert "POST /api/kernels" not in server.asked


async def test_a_full_server_is_an_overload_and_no_kernel_is_left(short_tmp: Path) -> None:
    full = (403, '{"reason": "Forbidden", "message": "Resource Limit"}')
    async with kernel_house(short_tmp) as rig, fake_server(answers={"POST /api/kernels": full}) as server:
        backend = external(rig, server.url)
        with pytest.raises(OverloadedError):
            await rig.start(backend, rig.launch())
        await backend.close(stop=True)
        assert await backend.held() == ()


async def test_a_kernel_that_does_not_answer_in_time_is_deleted_again(short_tmp: Path) -> None:
    """The websocket never opens: the start ends at its deadline, and the server's kernel with it."""
    async with kernel_house(short_tmp) as rig, fake_server(is_mute=True) as server:
        backend = external(rig, server.url)
        launch = rig.launch()
        with pytest.raises(StartFailedError, match="not reachable"):
            await backend.start(launch, None, deadline=rig.deadline(3.0))
        await backend.close(stop=True)
        assert any(each.endswith("/channels") for each in server.asked)
        assert server.state is None, "it was deleted"
        assert await backend.held() == ()


# -- pure decisions ----------------------------------------------------------------------------------------------------

URL = "http://user:secret@h:1/base/?token=hidden#x"
PLACE = GatewayClient(URL, None, "kernels.gateway_token")
OURS = GatewayClient(URL, "hidden", "", is_ours=True)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (403, '{"reason": "Forbidden", "message": "Resource Limit"}', OverloadedError, "limit of kernels"),
        (404, "", UnknownUnitError, "status 404"),
        (500, '{"message": "broken"}', StartFailedError, "failed to start a kernel: it returned status 500: broken"),
        (400, '{"message": "broken"}', StartFailedError, "refused to start a kernel: it returned status 400: broken"),
        (301, "", ConfigError, "sends us elsewhere"),
        (302, "/login?next=", ConfigError, "does not accept the token"),
    ],
)
def test_every_status_is_told(status: int, body: str, kind: type[PxError], words: str) -> None:
    error = PLACE.refused(status, body, "start a kernel")
    assert isinstance(error, kind)
    assert words in error.detail


@given(st.sampled_from((301, 302, 400, 401, 403, 404, 500, 503)), st.sampled_from((PLACE, OURS)))
def test_no_refusal_shows_a_secret_and_our_own_gateway_asks_nobody_for_a_token(status: int, at: GatewayClient) -> None:
    for error in (at.refused(status, "", "start a kernel"), at.unreachable("timeout")):
        text = json.dumps(error.problem())
        assert "secret" not in text
        assert "hidden" not in text
    if at is OURS and status in (401, 403, 500):
        assert at.refused(status, "", "start a kernel").hint == "pxctl logs kernel:gateway"


NAMES = st.from_regex(r"(PI_|LC_|LANG|TZ|TERM|KERNEL_|PX_|HOME)?[A-Z_]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_nothing_that_looks_like_a_secret_leaves_this_machine(env: dict[str, str]) -> None:
    told = re.findall(r"'([A-Z_]+)': ", init_code("/w", env, "d.1", "kernel:s"))
    for name in told:
        assert not any(word in name.upper() for word in ("TOKEN", "SECRET", "PASSW", "KEY", "COOKIE", "CREDENTIAL"))
    assert set(told) - {"PX_INSTANCE", "PX_UNIT"} <= {each for each in env if not each.startswith(("HOME", "KERNEL"))}


def test_a_listener_is_known_by_its_process() -> None:
    """D9: the token goes to nobody but the gateway's own process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not listens(os.getpid(), port), "bound is not listening"
        listener.listen()
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)
