"""Pipes are added whole, validated and disabled, from folders, files, addresses and the examples; or not at all."""

from __future__ import annotations

import errno
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from pipe_texts import LIMIT, pipe_text, write_folder
from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, TooLargeError, UnknownUnitError
from supervisord_py.pipes.declaring.fetch import FetchError, https_fetch, is_https
from supervisord_py.pipes.declaring.fetch_words import told
from supervisord_py.pipes.declaring.files import DiskError
from supervisord_py.pipes.declaring.install import install
from supervisord_py.pipes.declaring.pipe_file import read_pipe
from supervisord_py.pipes.declaring.removal import remove
from supervisord_py.pipes.declaring.scaffold import scaffold
from supervisord_py.pipes.declaring.source import is_address, name_from_address, name_from_file
from supervisord_py.pipes.definition import PipeDefinition
from supervisord_py.pipes.scheduling.schedule import Manual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from supervisord_py.pipes.declaring.install import Installed

EXAMPLES = Path(__file__).parents[2] / "supervisord_py" / "examples" / "pipes"


async def nowhere(address: str) -> bytes:
    raise AssertionError(address)


async def add(pipes_dir: Path, source: str, name: str | None = None) -> Installed:
    return await install(source, pipes_dir, EXAMPLES, name=name, fetch=nowhere, limit_bytes=LIMIT)


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
    os.mkfifo(origin / "fifo")
    for left in ("output", "logs", ".git"):
        (origin / left).mkdir()
    pipes_dir = tmp_path / "pipes"
    added = await add(pipes_dir, str(origin))
    folder = pipes_dir / "mine"
    assert added.definition.folder == folder
    assert not added.definition.enabled
    assert (folder / "pipe.md").read_text() == pipe_text("schedule: every 5m  # often\nenabled: false\n")
    assert left_in(folder) == [".env", "agent.sh", "lib", "link", "pipe.md"]
    assert left_in(folder / "lib") == ["output"]
    assert os.access(folder / "agent.sh", os.X_OK)
    assert [(folder / each).stat().st_mode & 0o777 for each in (".env", "pipe.md", ".")] == [0o600, 0o600, 0o700]
    assert left_in(pipes_dir) == ["mine"]
    assert (origin / "pipe.md").read_text().count("enabled: yes") == 1


async def test_the_original_behind_a_link_is_not_touched(tmp_path: Path) -> None:
    real = write_folder(tmp_path / "dotfiles", "real") / "pipe.md"
    origin = tmp_path / "from" / "mine"
    origin.mkdir(parents=True)
    (origin / "pipe.md").symlink_to(real)
    added = await add(tmp_path / "pipes", str(origin), "other")
    assert added.definition.name == "other"
    assert not (added.definition.folder / "pipe.md").is_symlink()
    assert real.read_text() == pipe_text()


@pytest.mark.parametrize(("file", "name"), [("notes.md", "notes"), ("pipe.md", "around"), ("Two words.md", "around")])
async def test_one_file_is_a_pipe_too(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / "around" / file
    path.parent.mkdir()
    path.write_bytes(b"\xef\xbb\xbf---\r\nname: N\r\n---\r\nDo\r\nit.\r\n")
    added = await add(tmp_path / "pipes", str(path))
    assert added.definition.name == name
    written = (added.definition.folder / "pipe.md").read_bytes()
    assert written == b"\xef\xbb\xbf---\r\nname: N\r\nenabled: false\r\n---\r\nDo\r\nit.\r\n"


async def test_the_examples_are_added_by_name(tmp_path: Path) -> None:
    added = await add(tmp_path, "example:disk-digest")
    assert added.definition.agent == "command"
    assert os.access(added.definition.folder / "digest.sh", os.X_OK)
    with pytest.raises(UnknownUnitError, match="did you mean 'disk-digest'"):
        await add(tmp_path, "example:disk-digets")
    with pytest.raises(UnknownUnitError) as caught:
        await install("example:x", tmp_path, tmp_path / "absent", fetch=nowhere, limit_bytes=LIMIT)
    assert caught.value.hint == "examples: none"


@pytest.mark.parametrize(
    ("source", "name", "error", "words"),
    [
        ("", None, BadRequestError, "a pipe comes from"),
        ("a\0b", None, BadRequestError, "a pipe comes from"),
        ("http://example.org/x/pipe.md", None, BadRequestError, "http:// is refused"),
        ("ftp://example.org/x", None, BadRequestError, "ftp:// is refused"),
        ("https://example.org/pipe.md", None, BadRequestError, "no name can be made"),
        ("https://example.org/x.md", "a b", BadRequestError, "holds ' '"),
        ("{tmp}/absent", None, BadRequestError, "there is no file or folder"),
        ("{tmp}/empty", None, BadRequestError, "No such file"),
        ("{tmp}/good", "../x", BadRequestError, "holds '/'"),
        ("{tmp}/good", "queue", BadRequestError, "is reserved"),
        ("{tmp}/good", "taken", ConflictError, "is there already"),
        ("https://example.org/taken/pipe.md", None, ConflictError, "is there already"),
        ("{tmp}/bad", None, ConfigError, "'continuous' is no schedule"),
        ("{tmp}", "x", BadRequestError, "contains the pipes directory"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path, source: str, name: str | None, error: type[Exception], words: str
) -> None:
    write_folder(tmp_path, "good")
    write_folder(tmp_path, "bad", "schedule: continuous")
    (tmp_path / "pipe.md").write_text(pipe_text())
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "pipes", "taken")
    with pytest.raises(error) as caught:
        await add(tmp_path / "pipes", source.format(tmp=tmp_path), name)
    assert words in str(caught.value)
    assert left_in(tmp_path / "pipes") == ["taken"]
    if isinstance(caught.value, ConfigError):
        assert caught.value.detail.startswith(f"{tmp_path}/bad/pipe.md:2:")
        assert "add it again" in (caught.value.hint or "")
    if isinstance(caught.value, ConflictError):
        assert "--name taken-2" in (caught.value.hint or "")


async def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = write_folder(tmp_path / "from", "mine")
    (origin / "big").write_text("x")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("supervisord_py.pipes.declaring.install.shutil.copy2", full)
    with pytest.raises(DiskError, match="No space left"):
        await add(tmp_path / "pipes", str(origin))
    assert left_in(tmp_path / "pipes") == []


async def test_one_of_two_that_add_the_same_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = write_folder(tmp_path / "from", "mine")
    rename = os.rename

    def late(source: str, target: str) -> None:
        write_folder(tmp_path / "pipes", "mine", "title: theirs")
        rename(source, target)

    monkeypatch.setattr("supervisord_py.pipes.declaring.placing.os.rename", late)
    with pytest.raises(ConflictError):
        await add(tmp_path / "pipes", str(origin))
    assert "theirs" in (tmp_path / "pipes" / "mine" / "pipe.md").read_text()
    assert left_in(tmp_path / "pipes") == ["mine"]


@pytest.fixture
async def site() -> AsyncIterator[TestServer]:
    """A site over http; `only` permits it in the place of https."""
    app = web.Application()

    async def pipe(_request: web.Request) -> web.Response:
        return web.Response(text=pipe_text("agent: hermes"), content_type="text/markdown")

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    async def big(_request: web.Request) -> web.Response:
        return web.Response(text="x" * 5000)

    async def moved(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.query["to"]})

    app.router.add_get("/my-pipe/pipe.md", pipe)
    app.router.add_get("/page", page)
    app.router.add_get("/big", big)
    app.router.add_get("/moved", moved)
    async with TestServer(app) as server:
        yield server


def only(site: TestServer, url: URL) -> bool:
    return (url.scheme, url.host, url.port) == ("http", site.host, site.port)


async def test_an_address_is_read_and_an_unknown_agent_is_only_a_warning(tmp_path: Path, site: TestServer) -> None:
    read = https_fetch(LIMIT, permitted=lambda url: only(site, url))

    async def fetch(address: str) -> bytes:
        assert address == "https://example.org/my-pipe/pipe.md"
        return await read(str(site.make_url("/moved?to=/my-pipe/pipe.md")))

    added = await install(
        "https://example.org/my-pipe/pipe.md", tmp_path, EXAMPLES, fetch=fetch, limit_bytes=LIMIT,
        knows_agent=lambda agent: agent != "hermes",
    )  # fmt: skip
    assert (added.definition.name, added.definition.enabled) == ("my-pipe", False)
    assert added.warnings == ("the agent 'hermes' is not known here; the pipe cannot run until it is",)


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("/absent", FetchError, "answered 404"),
        ("/page", FetchError, "is a web page"),
        ("/big", TooLargeError, "larger than 4000 bytes"),
        ("/moved?to=/moved?to=/x", FetchError, "answered 404"),
        ("/moved?to=http://other.example/pipe.md", FetchError, "over https only"),
        ("/moved?to=file:///etc/passwd", FetchError, "over https only"),
        ("/moved?to=http://[", FetchError, "cannot read"),
    ],
)
async def test_addresses_that_give_no_pipe(site: TestServer, path: str, error: type[Exception], words: str) -> None:
    fetch = https_fetch(4000, permitted=lambda url: only(site, url))
    with pytest.raises(error, match=words):
        await fetch(str(site.make_url("/")).rstrip("/") + path)


def test_every_fault_of_a_certificate_and_of_a_line_has_its_words() -> None:
    def said(code: int, words: str = "so") -> str:
        error = ssl.SSLCertVerificationError("odd")
        error.verify_code, error.verify_message = code, words
        return "; ".join(told(URL("https://example.org/x"), error))

    assert said(9).startswith("the certificate of example.org is not valid yet; this machine's clock may be wrong")
    assert said(10).startswith("the certificate of example.org has expired; ")
    assert said(62, "no match.").startswith("the certificate of example.org is for another name: no match; ")
    assert "SSL_CERT_FILE" in said(20)
    assert said(26, "unsuitable purpose").startswith("the certificate of example.org is not to be trusted: unsuitable")
    for error, words in (
        (OSError("lookup failed"), "lookup failed"),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (OSError(errno.ECONNREFUSED, "x"), "Connection refused"),
        (ssl.SSLError(1, ""), "does not speak TLS as it should"),
        (TypeError(), "TypeError"),
    ):
        assert words in told(URL("https://example.org/x"), error)[0]


async def test_a_circle_of_redirects_a_dead_host_and_a_slow_one(site: TestServer) -> None:
    circle = site.make_url("/moved").with_query(to=str(site.make_url("/moved?to=/page")))
    fetch = https_fetch(4000, permitted=lambda _url: True)
    with pytest.raises(FetchError, match="web page"):
        await fetch(str(circle))

    async def round_and_round(_request: web.Request) -> web.Response:
        raise web.HTTPFound("/")

    app = web.Application()
    app.router.add_get("/", round_and_round)
    async with TestServer(app) as server:
        with pytest.raises(FetchError, match="more than 5 times"):
            await fetch(str(server.make_url("/")))
        dead = str(server.make_url("/"))
        with pytest.raises(FetchError, match="did not answer within 0 s"):
            await https_fetch(4000, timeout_seconds=0, permitted=lambda _url: True)(dead)
    with pytest.raises(FetchError, match="cannot read"):
        await fetch(dead)
    with pytest.raises(FetchError, match="over https only"):
        await https_fetch(4000)(dead)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://example.org/a/my-pipe/pipe.md", "my-pipe"),
        ("https://example.org/pipes/digest.md?raw=1", "digest"),
        ("https://raw.example.org/owner/my-pipe/main/pipe.md", "my-pipe"),
        ("https://gist.example.org/me/0123456789abcdef0123456789abcdef/raw/pipe.md", "me"),
        ("https://example.org/My%20Pipe/x/", "x"),
        ("https://example.org/pipe.md", None),
        ("https://example.org", None),
        ("https://[", None),
    ],
)
def test_names_from_addresses(address: str, name: str | None) -> None:
    assert name_from_address(address) == name


def test_sources() -> None:
    assert is_address("https://x/y")
    assert is_address("HTTPS://x/y")
    assert not is_address("/a/b")
    assert not is_address("example:x")
    assert name_from_file("pipe", "main") is None
    assert is_https(URL("https://x/y"))
    assert not is_https(URL("http://x/y"))


def test_a_new_pipe_is_usable_and_runs_by_hand_only(tmp_path: Path) -> None:
    folder = scaffold("mine", tmp_path / "pipes")
    found = read_pipe(folder, limit_bytes=LIMIT)
    assert isinstance(found, PipeDefinition)
    assert found.schedule == Manual()
    assert found.warnings == ()
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConflictError):
        scaffold("mine", tmp_path / "pipes")
    with pytest.raises(BadRequestError):
        scaffold("a/b", tmp_path / "pipes")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskError):
        scaffold("mine", tmp_path / "file")


def test_a_removed_folder_is_gone_and_a_link_loses_the_link_only(tmp_path: Path) -> None:
    real = write_folder(tmp_path / "real", "a")
    (tmp_path / "link").symlink_to(real)
    remove(tmp_path / "link")
    assert real.exists()
    remove(real)
    remove(real)
    assert left_in(tmp_path / "real") == []


def test_a_folder_that_cannot_be_removed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, "a")

    def denied(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisord_py.pipes.declaring.removal.os.rename", denied)
    with pytest.raises(DiskError, match="Permission denied"):
        remove(folder)
    assert folder.exists()
