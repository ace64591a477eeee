"""`pxctl pipe add https://…` against servers that speak real TLS: whom it believes, and what it says of the others."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipe_texts import pipe_text, pipes_config
from supervisord_py.config.documents import MAX_FILE_BYTES
from supervisord_py.errors import ConfigError, TooLargeError
from supervisord_py.pipes import files
from supervisord_py.pipes.files import FetchError, fetch
from tls_site import Authority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl(1) to sign certificates")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> ssl.SSLContext:
    return authority.context("good")


@pytest.fixture(autouse=True)
def _trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust that authority, and nobody's proxy."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setenv("NO_PROXY", "*")


@asynccontextmanager
async def site(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Serve pipes and worse; yield the address."""
    texts = {
        "digest": pipe_text("schedule: every 5m"),
        "odd": "no front matter",
        "broken": pipe_text("schedule: evry 5m"),
    }

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == "moved":
            return web.Response(status=301, headers={"Location": request.query["to"]})
        if name == "big":
            return web.Response(text="x" * (MAX_FILE_BYTES + 1))
        if name not in texts:
            raise web.HTTPNotFound
        return web.Response(text=texts[name], content_type="text/markdown")

    app = web.Application()
    app.router.add_get("/{name}/pipe.md", answer)
    server = TestServer(app)
    await server.start_server(**({} if context is None else {"ssl": context}))
    try:
        yield f"https://localhost:{server.port}"
    finally:
        await server.close()


async def add(address: str, pipes: Path) -> str:
    installed = await files.add(address, pipes_config(pipes, pipes_dir=pipes))
    assert not installed.enabled
    return installed.name


async def test_a_pipe_is_added_from_whom_the_machine_trusts(tmp_path: Path, good: ssl.SSLContext) -> None:
    async with site(good) as here:
        assert await add(f"{here}/digest/pipe.md", tmp_path) == "digest"
        assert "enabled: false" in (tmp_path / "digest" / "pipe.md").read_text()
        other = f"{here}/digest/pipe.md".replace("localhost", "127.0.0.1")
        assert await fetch(f"{here}/moved/pipe.md?to={other}") == pipe_text("schedule: every 5m").encode()


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("absent/pipe.md", FetchError, "answered 404 Not Found"),
        ("big/pipe.md", TooLargeError, f"larger than {MAX_FILE_BYTES} bytes"),
        ("odd/pipe.md", ConfigError, "odd/pipe.md"),
        ("broken/pipe.md", ConfigError, "is no schedule"),
        ("moved/pipe.md?to={plain}/digest/pipe.md", FetchError, "is not taken: .* over https only"),
    ],
)
async def test_what_is_no_pipe_adds_nothing(
    tmp_path: Path, good: ssl.SSLContext, path: str, error: type[Exception], words: str
) -> None:
    async with site(good) as here, site(None) as plain:
        with pytest.raises(error, match=words):
            await add(f"{here}/{path.format(plain=plain.replace('https', 'http'))}", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "days", "words"), [("DNS:example.org", 1, "localhost"), ("DNS:localhost", -1, "expired")]
)
async def test_a_certificate_with_a_fault_is_refused(authority: Authority, names: str, days: int, words: str) -> None:
    async with site(authority.context(f"days{days}", names=names, days=days)) as here:
        with pytest.raises(FetchError, match=f"cannot read .*{words}") as caught:
            await fetch(f"{here}/digest/pipe.md")
    assert caught.value.status == 502
