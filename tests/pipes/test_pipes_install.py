"""Pipes are added whole, validated and disabled, from folders, files, addresses and the examples; or not at all."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipe_texts import pipe_text, pipes_config, write_folder
from supervisord_py.config.documents import MAX_FILE_BYTES
from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, TooLargeError
from supervisord_py.pipes import files
from supervisord_py.pipes.catalog import DiskError
from supervisord_py.pipes.files import FetchError, fetch
from supervisord_py.pipes.models import PipeDefinition
from tls_site import Authority


async def add(pipes_dir: Path, source: str, name: str | None = None) -> PipeDefinition:
    added = await files.add(source, pipes_config(pipes_dir.parent, pipes_dir=pipes_dir), name=name)
    assert not added.enabled
    return added


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


async def test_a_folder_is_copied_without_what_its_runs_left(tmp_path: Path) -> None:
    origin = write_folder(tmp_path / "from", "mine", "schedule: every 5m  # often\nenabled: yes\n")
    (origin / "agent.sh").write_text("#!/bin/sh\n")
    (origin / "agent.sh").chmod(0o755)
    (origin / ".env").write_text("KEY=1\n")
    (origin / ".env").chmod(0o644)
    (origin / "lib").mkdir()
    (origin / "lib" / "output").write_text("kept: not at the top\n")
    (origin / "link").symlink_to("agent.sh")
    for left in ("output", ".git"):
        (origin / left).mkdir()
    pipes_dir = tmp_path / "pipes"
    folder = (await add(pipes_dir, str(origin))).folder
    assert folder == pipes_dir / "mine"
    assert (folder / "pipe.md").read_text() == pipe_text("schedule: every 5m  # often\nenabled: false\n")
    assert left_in(folder) == [".env", "agent.sh", "lib", "link", "pipe.md"]
    assert left_in(folder / "lib") == ["output"]
    assert os.access(folder / "agent.sh", os.X_OK)
    assert [(folder / each).stat().st_mode & 0o777 for each in (".env", "pipe.md", ".")] == [0o600, 0o600, 0o700]
    assert left_in(pipes_dir) == ["mine"]


async def test_one_file_is_a_pipe_too(tmp_path: Path) -> None:
    path = tmp_path / "around" / "pipe.md"
    path.parent.mkdir()
    path.write_bytes(b"\xef\xbb\xbf---\r\nname: N\r\n---\r\nDo\r\nit.\r\n")
    added = await add(tmp_path / "pipes", str(path))
    written = (added.folder / "pipe.md").read_bytes()
    assert (added.name, written) == ("around", b"\xef\xbb\xbf---\r\nname: N\r\nenabled: false\r\n---\r\nDo\r\nit.\r\n")


@pytest.mark.parametrize(
    ("source", "name", "error", "words"),
    [
        ("", None, BadRequestError, "there is no file or folder"),
        ("http://example.org/x/pipe.md", None, BadRequestError, "http:// is refused"),
        ("https://example.org/x.md", "a b", BadRequestError, "is not 1 to"),
        ("{tmp}/absent", None, BadRequestError, "there is no file or folder"),
        ("{tmp}/good", "../x", BadRequestError, "is not 1 to"),
        ("{tmp}/good", "taken", ConflictError, "is there already"),
        ("https://example.org/taken/pipe.md", None, ConflictError, "is there already"),
        ("{tmp}/bad", None, ConfigError, "/bad/pipe.md, line 2"),
        ("{tmp}", "x", BadRequestError, "contains the pipes directory"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path, source: str, name: str | None, error: type[Exception], words: str
) -> None:
    write_folder(tmp_path, "good")
    write_folder(tmp_path, "bad", "schedule: continuous")
    (tmp_path / "pipe.md").write_text(pipe_text())
    write_folder(tmp_path / "pipes", "taken")
    with pytest.raises(error) as caught:
        await add(tmp_path / "pipes", source.format(tmp=tmp_path), name)
    assert words in str(caught.value)
    assert left_in(tmp_path / "pipes") == ["taken"]


async def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = write_folder(tmp_path / "from", "mine")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("supervisord_py.pipes.files.shutil.copytree", full)
    with pytest.raises(DiskError, match="No space left"):
        await add(tmp_path / "pipes", str(origin))
    assert left_in(tmp_path / "pipes") == []


def test_a_removed_pipe_is_gone_but_for_what_a_link_leads_to(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pipes", "mine")
    (tmp_path / "link").symlink_to(folder)
    files.delete(tmp_path / "link")
    assert folder.exists()
    for _ in range(2):
        files.delete(folder)
        assert left_in(tmp_path / "pipes") == []


# -- https://…: whom it believes, and what it says of the others -------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl(1) to sign certificates")
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def good(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Trust that authority, and nobody's proxy."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setenv("NO_PROXY", "*")
    return authority.context("good")


@asynccontextmanager
async def site(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Serve pipes and worse; yield the address."""
    texts = {"digest": pipe_text("schedule: every 5m"), "odd": "no front matter", "big": "x" * (MAX_FILE_BYTES + 1)}

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == "moved":
            return web.Response(status=301, headers={"Location": request.query["to"]})
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


async def test_a_pipe_is_added_from_whom_the_machine_trusts(tmp_path: Path, good: ssl.SSLContext) -> None:
    async with site(good) as here:
        assert (await add(tmp_path, f"{here}/digest/pipe.md")).name == "digest"
        other = f"{here}/digest/pipe.md".replace("localhost", "127.0.0.1")
        assert await fetch(f"{here}/moved/pipe.md?to={other}") == pipe_text("schedule: every 5m").encode()


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("absent/pipe.md", FetchError, "answered 404 Not Found"),
        ("big/pipe.md", TooLargeError, f"larger than {MAX_FILE_BYTES} bytes"),
        ("odd/pipe.md", ConfigError, "odd/pipe.md"),
        ("moved/pipe.md?to={plain}/digest/pipe.md", FetchError, "is not taken: .* over https only"),
    ],
)
async def test_what_is_no_pipe_adds_nothing(
    tmp_path: Path, good: ssl.SSLContext, path: str, error: type[Exception], words: str
) -> None:
    async with site(good) as here, site(None) as plain:
        with pytest.raises(error, match=words):
            await add(tmp_path, f"{here}/{path.format(plain=plain.replace('https', 'http'))}")
    assert left_in(tmp_path) == []


async def test_a_site_that_proves_to_be_another_is_refused(authority: Authority, good: ssl.SSLContext) -> None:
    async with site(authority.context("other", names="DNS:example.org")) as here:
        with pytest.raises(FetchError, match=r"cannot read .*localhost"):
            await fetch(f"{here}/digest/pipe.md")
