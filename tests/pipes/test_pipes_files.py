"""The files of pipes: seen, added, changed, removed; and pipes that cannot run, which are listed
so.
"""

from __future__ import annotations

import errno
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipe_rig import PipeRig, eventually, pipe_house
from pipe_texts import pipe_text, pipes_config, write_folder
from supervisord_py import errors
from supervisord_py.config.documents import MAX_FILE_BYTES
from supervisord_py.ledger.pipes import Status
from supervisord_py.pipes import catalog as catalog_module
from supervisord_py.pipes import files
from supervisord_py.pipes.catalog import DiskError, PipeCatalog, write_pipe
from supervisord_py.pipes.files import FetchError, fetch
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, usable

ServerOf = Callable[[str], ssl.SSLContext]
HERE = "DNS:localhost,IP:127.0.0.1"
ADDED, CHANGED, REMOVED, BROKEN, MENDED = "added", "changed", "removed", "broken", "mended"


@pytest.fixture
def catalog(tmp_path: Path) -> PipeCatalog:
    return PipeCatalog(tmp_path / "pipes")


def look(catalog: PipeCatalog) -> list[tuple[str, str]]:
    return catalog.refresh()


def test_the_life_of_a_pipe(catalog: PipeCatalog) -> None:
    assert look(catalog) == []
    folder = write_folder(catalog.pipes_dir, "a")
    write_folder(catalog.pipes_dir, "b", "timeout: soon")
    (catalog.pipes_dir / "notes.txt").write_text("x")
    (catalog.pipes_dir / "empty").mkdir()
    write_folder(catalog.pipes_dir, ".hidden")
    assert look(catalog) == [(ADDED, "a"), (BROKEN, "b")]
    assert (list(catalog.pipes), look(catalog)) == (["a", "b"], [])
    write_folder(catalog.pipes_dir, "a", "timeout: 5m")
    write_folder(catalog.pipes_dir, "b", "timeout: 6m")
    assert not catalog.is_current("a")
    assert look(catalog) == [(CHANGED, "a"), (MENDED, "b")]
    assert (catalog.is_current("a"), usable(catalog.declared("a")).timeout_seconds) == (True, 300)
    (folder / "pipe.md").unlink()
    folder.rmdir()
    assert not catalog.is_current("a")
    for wrong, more in (("soon", [(REMOVED, "a")]), ("later", [])):
        write_folder(catalog.pipes_dir, "b", f"timeout: {wrong}")
        assert look(catalog) == [*more, (BROKEN, "b")]
    with pytest.raises(errors.UnknownUnitError, match="did you mean 'b'"):
        catalog.declared("bb")


def test_links_to_folders_and_files_are_followed(catalog: PipeCatalog, tmp_path: Path) -> None:
    kept = write_folder(tmp_path / "dotfiles", "kept")
    catalog.pipes_dir.mkdir()
    (catalog.pipes_dir / "a").symlink_to(kept)
    for name, target in (("b", kept / "pipe.md"), ("c", tmp_path / "absent.md")):
        (catalog.pipes_dir / name).mkdir()
        (catalog.pipes_dir / name / "pipe.md").symlink_to(target)
    (catalog.pipes_dir / "nowhere").symlink_to(tmp_path / "absent")
    assert look(catalog) == [(ADDED, "a"), (ADDED, "b"), (BROKEN, "c")]
    found = catalog.pipes["c"]
    assert isinstance(found, BrokenPipe)
    assert "link that leads nowhere" in (found.problem.hint or "")
    (kept / "pipe.md").write_text(pipe_text("timeout: 7"))
    (tmp_path / "absent.md").write_text(pipe_text())
    assert look(catalog) == [(CHANGED, "a"), (CHANGED, "b"), (MENDED, "c")]


def test_a_file_that_an_editor_moves_away_and_back_is_no_removal(
    catalog: PipeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_folder(catalog.pipes_dir, "a") / "pipe.md"
    look(catalog)
    monkeypatch.setattr(catalog_module, "SETTLE_SECONDS", 1000.0)
    file.rename(file.with_suffix(".bak"))
    assert look(catalog) == []
    file.with_suffix(".bak").rename(file)
    assert look(catalog) == []
    file.unlink()
    assert look(catalog) == []
    monkeypatch.setattr(catalog_module, "SETTLE_SECONDS", 0.0)
    assert look(catalog) == [(REMOVED, "a")]


def test_what_cannot_be_looked_at_for_now_is_no_removal_and_looked_at_again(
    catalog: PipeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_folder(catalog.pipes_dir, "a") / "pipe.md"
    look(catalog)

    blind = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    for call, told, trouble in (("open", [(BROKEN, "a")], False), ("scandir", [], True)):
        with monkeypatch.context() as patch:
            patch.setattr(catalog_module.os, call, blind)
            os.utime(file)
            assert (look(catalog), "cannot look into" in (catalog.trouble or "")) == (told, trouble)
        assert (look(catalog), catalog.trouble) == ([] if trouble else [(MENDED, "a")], None)


def test_writing_goes_through_links_keeps_the_mode_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "dotfiles" / "real.md", tmp_path / "pipe.md"
    real.parent.mkdir()
    real.write_bytes(b"\xef\xbb\xbfold\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    write_pipe(link, "\ufeffnew\r\n")
    write_pipe(tmp_path / "fresh.md", "x")
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"\xef\xbb\xbfnew\r\n", 0o640)
    assert (link.is_symlink(), (tmp_path / "fresh.md").stat().st_mode & 0o777) == (True, 0o600)
    monkeypatch.setattr(
        catalog_module.os,
        "fsync",
        Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")),
    )
    with pytest.raises(DiskError, match="No space left"):
        write_pipe(link, "newer")
    assert real.read_bytes() == b"\xef\xbb\xbfnew\r\n"
    assert sorted(each.name for each in tmp_path.rglob("*.md*")) == [
        "fresh.md",
        "pipe.md",
        "real.md",
    ]


# -- added whole, checked and disabled, from folders, files, addresses and the examples; or not at
# all


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
    assert (folder / "pipe.md").read_text() == pipe_text(
        "schedule: every 5m  # often\nenabled: false\n"
    )
    assert left_in(folder) == [".env", "agent.sh", "lib", "link", "pipe.md"]
    assert left_in(folder / "lib") == ["output"]
    assert os.access(folder / "agent.sh", os.X_OK)
    assert [(folder / each).stat().st_mode & 0o777 for each in (".env", "pipe.md", ".")] == [
        0o600,
        0o600,
        0o700,
    ]
    assert left_in(pipes_dir) == ["mine"]


@pytest.mark.parametrize(
    ("source", "name", "error", "words"),
    [
        ("http://example.org/x/pipe.md", None, errors.BadRequestError, "http:// is refused"),
        ("https://example.org/x.md", "a b", errors.BadRequestError, "is not 1 to"),
        ("{tmp}/absent", None, errors.BadRequestError, "there is no file or folder"),
        ("{tmp}/good", "../x", errors.BadRequestError, "is not 1 to"),
        ("{tmp}/good", "taken", errors.ConflictError, "is there already"),
        ("https://example.org/taken/pipe.md", None, errors.ConflictError, "is there already"),
        ("{tmp}/bad", None, errors.ConfigError, "/bad/pipe.md, line 2"),
        ("{tmp}", "x", errors.BadRequestError, "contains the pipes directory"),
        ("{tmp}/good", None, DiskError, "No space left"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path,
    source: str,
    name: str | None,
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_folder(tmp_path, "good")
    write_folder(tmp_path, "bad", "schedule: continuous")
    (tmp_path / "pipe.md").write_text(pipe_text())
    write_folder(tmp_path / "pipes", "taken")
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("supervisord_py.pipes.files.shutil.copytree", full)
    with pytest.raises(error) as caught:
        await add(tmp_path / "pipes", source.format(tmp=tmp_path), name)
    assert words in str(caught.value)
    assert left_in(tmp_path / "pipes") == ["taken"]


def test_a_removed_pipe_is_gone_but_for_what_a_link_leads_to(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pipes", "mine")
    (tmp_path / "link").symlink_to(folder)
    files.delete(tmp_path / "link")
    assert folder.exists()
    for _ in range(2):
        files.delete(folder)
        assert left_in(tmp_path / "pipes") == []


# -- https://…: whom it believes, and what it says of the others -----------------------------------


@pytest.fixture
def certified(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> ServerOf:
    """Make a server out of names, by a certificate that this machine trusts; nobody's proxy is
    asked.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl(1) to sign certificates")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "site.key", folder / "site.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "*")

    def certify(names: str) -> ssl.SSLContext:
        words = [
            "openssl",
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]
        words += ["-subj", "/CN=site", "-addext", f"subjectAltName={names}", "-keyout", str(key)]
        subprocess.run([*words, "-out", certificate], check=True, capture_output=True, timeout=60)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context

    return certify


@asynccontextmanager
async def site(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Serve pipes and worse; yield the address."""
    texts = {"digest": pipe_text("schedule: every 5m"), "big": "x" * (MAX_FILE_BYTES + 1)}

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


async def test_a_pipe_is_added_from_whom_the_machine_trusts(
    tmp_path: Path, certified: ServerOf
) -> None:
    async with site(certified(HERE)) as here:
        assert (await add(tmp_path, f"{here}/digest/pipe.md")).name == "digest"
        other = f"{here}/digest/pipe.md".replace("localhost", "127.0.0.1")
        assert (
            await fetch(f"{here}/moved/pipe.md?to={other}")
            == pipe_text("schedule: every 5m").encode()
        )


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("absent/pipe.md", FetchError, "answered 404 Not Found"),
        ("big/pipe.md", errors.TooLargeError, f"larger than {MAX_FILE_BYTES} bytes"),
        ("moved/pipe.md?to={plain}/digest/pipe.md", FetchError, "is not taken: .* over https only"),
    ],
)
async def test_what_is_no_pipe_adds_nothing(
    tmp_path: Path, certified: ServerOf, path: str, error: type[Exception], words: str
) -> None:
    async with site(certified(HERE)) as here, site(None) as plain:
        with pytest.raises(error, match=words):
            await add(tmp_path, f"{here}/{path.format(plain=plain.replace('https', 'http'))}")
    assert left_in(tmp_path) == []


async def test_a_site_that_proves_to_be_another_is_refused(certified: ServerOf) -> None:
    async with site(certified("DNS:example.org")) as here:
        with pytest.raises(FetchError, match=r"cannot read .*localhost"):
            await fetch(f"{here}/digest/pipe.md")


# -- what people do to them and wish of them -------------------------------------------------------


async def test_what_waited_for_a_pipe_that_went_or_was_turned_off_meanwhile_does_not_run(
    short_tmp: Path,
) -> None:
    async with pipe_house(short_tmp, scheduler=False) as rig:
        for name in ("gone", "off", "kept"):
            rig.shell(name, "echo", "schedule: every 1h")
        await rig.room.files.refresh()
        rig.room.task(rig.room.timetable.run())
        await eventually(lambda: rig.room.health()["queued"] == 3, "three in line")
        await rig.room.detach()
        await rig.put_down()
        (rig.config.pipes_dir / "gone" / "pipe.md").unlink()
        rig.shell("off", "echo", "schedule: every 1h\nenabled: false")
        await rig.open(scheduler=False)
        rows = {it.pipe_name: it for it in await rig.rows()}
        want = {"gone": Status.CANCELLED, "off": Status.CANCELLED, "kept": Status.QUEUED}
        assert {name: rows[name].status for name in rows} == want
        assert "folder is gone" in (rows["gone"].error_message or "")
        assert "gone" not in rig.room.states.rows


PRESET = '[presets.fast]\nprovider = "openai"\nmodel = "m"\n'
CASES = {
    "stranger": ("agent: claud", 2, "there is no agent 'claud'; did you mean 'claude'?"),
    "unset": ("agent: pi\npreset: fats", 3, "did you mean 'fast'?"),
    "careless": ("agent: pi\npreset: auto", 3, "default = true"),
    "beside": ("command: ./go.sh", 2, "./go.sh"),
    "bare": ("command: [px-no-such-program]", 2, "install px-no-such"),
    "torn": ("schedule: continuous", 2, "no schedule"),
}


async def test_what_cannot_run_is_listed_with_its_line_and_cure_until_it_can(
    own_rig: PipeRig,
) -> None:
    presets, agents = own_rig.config.presets_file, own_rig.config.agents_file
    presets.write_text(PRESET)
    for name, (front, _line, _words) in CASES.items():
        own_rig.write(name, front)
    folder = own_rig.shell("sound", "echo fine", "timeout: 10m")
    await own_rig.room.files.refresh()
    views = {each.name: each for each in own_rig.room.snapshot()}
    for name, (_front, line, words) in CASES.items():
        told = views[name].config_error or ""
        assert told.startswith(f"{own_rig.config.pipes_dir / name / 'pipe.md'}:{line}: "), told
        assert (words in told, told in own_rig.room.next(name)["sentences"][0]) == (True, True)
        assert "fail" in {it.verdict for it in await own_rig.room.validate(name)}
    assert (views["sound"].config_error, own_rig.room.health()["broken"]) == (None, len(CASES))
    presets.write_text(
        f'{PRESET}default = true\n[presets.fats]\nprovider = "openai"\nmodel = "m"\n'
    )
    agents.write_text('[agents.claud]\nargv = ["true"]\nparser = "text"\n')
    program = folder.parent / "beside" / "go.sh"
    program.write_text("#!/bin/sh\n")
    assert "chmod +x" in (own_rig.room.get("beside").config_error or "")
    program.chmod(0o755)
    (folder.parent / "bare" / ".env").write_text(f"PATH={own_rig.folder}\n")
    (own_rig.folder / "px-no-such-program").symlink_to("/bin/true")
    assert [each.name for each in own_rig.room.snapshot() if each.config_error] == ["torn"]
    agents.unlink()
    assert "claud" in (own_rig.room.get("stranger").config_error or "")
    with own_rig.settings(timeout_max_seconds=60.0):
        told = "timeout: 10 min is cut to 1 min (pipes.timeout_max_seconds)"
        assert own_rig.room.get("sound").warnings == (told,)
        with pytest.raises(errors.InvalidInputError, match="at most 60 s"):
            await own_rig.room.run("sound", seconds=90.0)


async def test_a_change_is_refused_for_what_it_breaks_and_for_nothing_else(
    own_rig: PipeRig,
) -> None:
    folder = own_rig.shell("sound", "echo fine")
    text = (folder / "pipe.md").read_text()
    own_rig.write("stranger", "agent: claud\ntimeout: 1m")
    own_rig.write("torn", "agent: claud\nschedule: continuous")
    await own_rig.room.files.refresh()
    for changes in ({"agent": "nosuch"}, {"preset": "nosuch"}, {"command": "./nosuch"}):
        for name in ("sound", "stranger") if "preset" in changes else ("sound",):
            with pytest.raises(errors.ConfigError) as refused:
                await own_rig.room.files.configure(name, changes)
            assert (refused.value.extra["pointer"], refused.value.exit_code) == (
                f"/{next(iter(changes))}",
                2,
            )
    assert (folder / "pipe.md").read_text() == text
    assert "claud" in (
        (await own_rig.room.files.configure("stranger", {"timeout": "2m"})).config_error or ""
    )
    assert (await own_rig.room.files.configure("stranger", {"agent": "pi"})).config_error is None
    with pytest.raises(errors.ConfigError, match="continuous"):
        await own_rig.room.files.configure("torn", {"timeout": "2m"})
    assert "claud" in (
        (await own_rig.room.files.configure("torn", {"schedule": "manual"})).config_error or ""
    )


async def test_a_wish_outlives_a_restart_and_is_over_once_the_file_says_another_word(
    own_rig: PipeRig,
) -> None:
    for word, enabled in (("true", True), ("false", False), ("true", True)):
        own_rig.shell("p", "echo", f"enabled: {word}")
        await own_rig.room.files.refresh()
        assert own_rig.room.get("p").enabled is enabled
        if word == "true":
            await own_rig.room.enable("p", enabled=False)
            await own_rig.restart()
            assert not own_rig.room.get("p").enabled


async def test_validate_warns_of_providers_presets_and_times(own_rig: PipeRig) -> None:
    """A9 and A8: what does not keep it from running is told, and is no failure."""
    program = own_rig.folder / "teller"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    own_rig.config.agents_file.write_text(
        f'[agents.teller]\nargv = ["{program}"]\nprompt = "stdin"\nparser = "text"\n'
        '[agents.teller.provider_keys]\nacme = "ACME_KEY"\n'
    )
    own_rig.config.presets_file.write_text(
        '[presets.one]\nprovider = "acmee"\n[presets.two]\nprovider = '
        '"acme"\n[presets.three]\nprovider = 3\n'
    )
    own_rig.write(
        "odd",
        "agent: teller\npreset: [one, '*']\nschedule: at 2020-01-01T00:00:00Z\nenabled: false",
    )
    await own_rig.room.files.refresh()
    over, doubt, ready = await own_rig.room.validate("odd")
    assert (over.verdict, over.detail) == ("warn", "its schedule is over: has no time to come")
    assert (doubt.verdict, "'acmee' is not known to be one of teller's" in doubt.detail) == (
        "warn",
        True,
    )
    assert (ready.verdict, ready.detail) == ("pass", "it runs teller with one, then two: acmee")
    await own_rig.room.enable("odd")
    failed = [it for it in await own_rig.room.validate("odd") if it.verdict == "fail"]
    told = "write a time that will come, or `manual`"
    assert [(it.name, it.line, it.hint) for it in failed] == [("schedule", 4, told)]
    own_rig.write("bare", "agent: teller\nlookback: 1h", body="")
    (own_rig.config.pipes_dir / "bare" / ".env").write_text("KEY=1\nnonsense here\n")
    (own_rig.config.pipes_dir / "bare" / ".env").chmod(0o644)
    odd = {it.name: it.verdict for it in await own_rig.room.validate("bare")}
    assert odd == {"lookback": "warn", "prompt": "fail", ".env": "warn", "agent": "warn"}
