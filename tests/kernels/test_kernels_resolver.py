"""Which interpreter is taken: the first that runs; why the others were not is told; nobody gets
another's. What is installed for it: once, whole or not at all, never in silence. Kernelspecs: found
where Jupyter finds them.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernels.kernel_rig import kernel_house
from kernels.resolver_house import TAG, ResolverHouse, fake_python, script
from supervisord_py.errors import (
    ConfigError,
    InvalidInputError,
    ShuttingDownError,
    StartFailedError,
)
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.interpreters import MANAGED, candidates
from supervisord_py.kernels.session import (
    DECISIVE,
    BackendName,
    CandidateVerdict,
    Source,
    StartRequest,
)
from waiting import eventually


@pytest.fixture
async def house(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ResolverHouse]:
    async with kernel_house(short_tmp) as rig:
        made = ResolverHouse(rig, monkeypatch)
        yield made
        await made.close()


async def test_the_first_that_runs_is_taken_and_the_others_are_explained(
    house: ResolverHouse,
) -> None:
    gone, conda = house.folder / "gone", house.folder / "conda"
    (house.proj / ".venv" / "bin").mkdir(parents=True)
    (house.proj / ".venv" / "bin" / "python").symlink_to("/nowhere/python3.9")
    script(conda / "bin" / "python", "echo no such library >&2; exit 3")
    fake_python(house.proj / "venv" / "bin" / "python")
    environ = {"VIRTUAL_ENV": str(gone), "CONDA_PREFIX": str(conda), "PATH": "/nowhere"}
    choice = await house.choose(environ=environ)
    told = {each.source: (each.verdict, each.detail) for each in choice.attempts}
    assert told == {
        Source.VIRTUAL_ENV: (CandidateVerdict.MISSING, "is not there"),
        Source.CONDA_PREFIX: (CandidateVerdict.UNUSABLE, "exits with 3: no such library"),
        Source.DOT_VENV: (
            CandidateVerdict.MISSING,
            "is a link to /nowhere/python3.9, which is not there",
        ),
        Source.VENV: (CandidateVerdict.TAKEN, "runs, with ipykernel of its own"),
        Source.MANAGED: (CandidateVerdict.MISSING, "is not built"),
        Source.PATH: (CandidateVerdict.MISSING, "is not on PATH"),
    }
    assert choice.interpreter == str(house.proj / "venv" / "bin" / "python")
    assert choice.env["VIRTUAL_ENV"] == str(house.proj / "venv")
    assert "CONDA_PREFIX" not in choice.env
    assert choice.notices == (
        f"{conda}/bin/python (CONDA_PREFIX) exits with 3: no such library; cells run with "
        f"{choice.interpreter} instead",
    )


PASSED_OVER: dict[str, Callable[[Path], object]] = {
    "is Python 3.7.16; kernels need 3.8 or newer": lambda python: fake_python(
        python, version=[3, 7, 16]
    ),
    "is not executable": lambda python: fake_python(python).chmod(0o644),
    "exits with 0": lambda python: script(python, ""),
    "was killed by signal 9": lambda python: script(python, "kill -9 $$"),
    "gives an answer that makes no sense": lambda python: script(
        python, "echo 'px-self-report {}'"
    ),
    "cannot be started": lambda python: fake_python(python).write_bytes(b"\x7fELF\0\0\0\0"),
    "does not answer within 0.2 s": lambda python: script(python, "sleep 600 & wait"),
}


@pytest.mark.parametrize("detail", PASSED_OVER)
async def test_why_an_interpreter_is_passed_over_and_nothing_of_it_is_left(
    house: ResolverHouse, monkeypatch: pytest.MonkeyPatch, detail: str
) -> None:
    PASSED_OVER[detail](house.proj / ".venv" / "bin" / "python")
    if "0.2" in detail:
        monkeypatch.setattr(interpreters, "PROBE_SECONDS", 0.2)
    explanation = await house.resolver.explain(StartRequest(cwd=str(house.proj)), house.config)
    (attempt,) = (each for each in explanation.attempts if each.source is Source.DOT_VENV)
    assert (attempt.verdict, attempt.detail[: len(detail)]) == (CandidateVerdict.UNUSABLE, detail)
    assert explanation.failure


async def test_what_an_interpreter_said_holds_until_something_changes(house: ResolverHouse) -> None:
    python = fake_python(house.proj / ".venv" / "bin" / "python")
    packages = house.proj / ".venv" / "site-packages"

    async def asked() -> int:
        await house.choose()
        return len(house.spawned)

    assert [await asked(), await asked()] == [1, 1]
    packages.mkdir()
    assert [await asked(), await asked()] == [2, 2]
    os.utime(packages, (1, 1))
    assert await asked() == 3
    script(python, "exit 3")
    for count in (4, 5):  # a failure is never remembered
        with pytest.raises(StartFailedError):
            await house.choose()
        assert len(house.spawned) == count


async def test_a_shim_on_path_gives_way_and_is_asked_each_time_and_what_was_named_is_never_replaced(
    house: ResolverHouse,
) -> None:
    real = fake_python(house.folder / "versions" / "3" / "bin" / "python3")
    shim = script(house.bin / "python3", f'exec {real} "$@"')
    other = house.folder / "other"
    other.mkdir()
    for cwd in (house.proj, other, house.proj, other):
        choice = await house.choose(cwd=str(cwd))
        assert choice.interpreter == str(real)
        assert choice.env["PATH"].split(":")[0] == str(real.parent)
    assert house.spawned == [str(shim)] * 4
    assert (await house.choose(interpreter=str(shim))).interpreter == str(shim)
    house.config = replace(house.config, python="python9")
    with pytest.raises(ConfigError) as caught:
        await house.choose()
    assert caught.value.detail == "no Python for cells: python9 (kernels.python) is not on PATH"
    assert caught.value.extra["key"] == "kernels.python"


def test_the_names_of_one_interpreter_in_a_directory_are_one_session(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "python3.11").touch()
    (real / "python3").symlink_to("python3.11")
    (real / "python").symlink_to("python3")
    (tmp_path / "link").symlink_to(real)
    paths = {
        interpreters.session_path(f"{tmp_path}/link/{name}")
        for name in ("python3", "python3.11", "python")
    }
    assert paths == {str(real / "python")}


def test_what_a_stranger_left_in_an_open_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / ".pxd" / "modules"
    project.mkdir(parents=True)
    owners = {str(project): 4242, str(tmp_path): 1}
    real = os.stat
    monkeypatch.setattr(interpreters.os, "geteuid", lambda: 1000)

    def stat(path: str, **options: object) -> os.stat_result:
        fields = list(real(path, **options))  # type: ignore[call-overload]
        fields[4] = owners.get(str(path), fields[4])
        return os.stat_result(fields)

    monkeypatch.setattr(interpreters.os, "stat", stat)
    assert not interpreters.is_trusted(str(project), str(tmp_path))
    assert interpreters.module_folders("/nowhere", str(tmp_path)) == ()
    for owner in (0, 1, 1000):
        owners[str(project)] = owner
        assert interpreters.is_trusted(str(project), str(tmp_path))
    assert interpreters.is_trusted(str(tmp_path / "gone"), str(tmp_path))


async def test_an_external_gateway_is_told_nothing_of_this_machine(house: ResolverHouse) -> None:
    extra = {"KERNEL_USERNAME": "me", "OPENAI_API_KEY": "k", "KERNEL_X": "gateway-token"}
    choice = await house.choose(backend=BackendName.GATEWAY_EXTERNAL, env=extra)
    assert (choice.key, choice.kernelspec) == ("spec:python3", "python3")
    assert dict(choice.env) == {"KERNEL_USERNAME": "me"}
    assert house.spawned == []


@pytest.mark.parametrize(
    ("around", "source", "paths"),
    [
        (
            {"request": "/x/python", "setting": "/y"},
            Source.REQUEST,
            ("/x/python", "/x/python/bin/python"),
        ),
        ({"request": "envs/a/"}, Source.REQUEST, ("/proj/envs/a", "/proj/envs/a/bin/python")),
        ({"request": "~/e", "home": "/h/"}, Source.REQUEST, ("/h/e", "/h/e/bin/python")),
        (
            {"request": "python3.12"},
            Source.REQUEST,
            ("/usr/local/bin/python3.12", "/usr/bin/python3.12"),
        ),
        (
            {"setting": "pypy", "environ": {"PATH": "/p:rel:/q/"}},
            Source.SETTING,
            ("/p/pypy", "/q/pypy"),
        ),
        ({"request": MANAGED, "managed": "/m"}, Source.REQUEST, ("/m/bin/python",)),
    ],
)
def test_what_is_named_decides_alone(
    around: dict[str, Any], source: Source, paths: tuple[str, ...]
) -> None:
    (only,) = candidates(**{"cwd": "/proj", "environ": {}, **around})
    assert only.source is source
    assert only.source in DECISIVE
    assert only.paths[: len(paths)] == paths


@pytest.fixture
def bare(house: ResolverHouse) -> Path:
    """The project's interpreter, which has no ipykernel."""
    house.install_with()
    return fake_python(house.proj / ".venv" / "bin" / "python", lacking=["ipykernel", "zmq"])


async def test_an_interpreter_without_ipykernel_gets_an_overlay_once(
    house: ResolverHouse, bare: Path
) -> None:
    overlay = house.folder / "data" / "overlays" / TAG
    for _ in range(2):
        choice = await house.choose()
        assert (choice.interpreter, choice.overlay) == (str(bare), str(overlay))
    assert choice.attempts[0].detail == f"runs, with the overlay {overlay}"
    assert len(house.built()) == 1
    assert house.built()[0].startswith(f"pip install --python {bare} --compile-bytecode --target ")
    log = overlay.with_name(f"{TAG}.log")
    assert house.lines[0] == f"installing ipykernel for {bare} (once); output: {log}"
    assert "fake uv: pip install" in log.read_text()
    assert len(house.lines) == 2
    assert house.lines[-1].startswith("installed ipykernel for ")
    assert sorted(os.listdir(overlay.parent)) == [TAG, log.name]
    assert overlay.parent.stat().st_mode & 0o077 == 0


async def test_nothing_is_built_where_it_may_not_be(house: ResolverHouse, bare: Path) -> None:
    remedy = f"{bare} -m pip install ipykernel"
    house.config = replace(house.config, managed=False)
    with pytest.raises(
        StartFailedError, match="has no ipykernel, and it may not be installed for cells"
    ) as caught:
        await house.choose()
    assert caught.value.hint == remedy
    asked = StartRequest(cwd=str(house.proj))
    explanation = await house.resolver.explain(asked, house.config)
    assert explanation.attempts[0].remedy == remedy
    assert "a start builds" not in str(explanation.failure)
    for wanted in (asked, StartRequest(cwd=str(house.proj), interpreter=MANAGED)):
        explanation = await house.resolver.explain(wanted, replace(house.config, managed=True))
        assert str(explanation.failure).endswith("; a start builds what is lacking first")
    assert house.built() == []


async def test_a_failed_build_is_told_with_the_command_and_the_next_candidate_is_taken(
    house: ResolverHouse, bare: Path
) -> None:
    house.install_with(first="echo could not resolve host; exit 2")
    python = fake_python(house.bin / "python3")
    choice = await house.choose()
    assert choice.interpreter == str(python)
    (notice,) = choice.notices
    assert notice.startswith(
        f"{bare} (.venv) has no ipykernel, and cannot install ipykernel for {bare}: "
    )
    assert "uv exits with 2: could not resolve host" in notice
    assert f"({bare} -m pip install ipykernel)" in notice


async def test_an_install_takes_no_time_of_the_call_goes_on_without_it_and_the_next_one_joins(
    house: ResolverHouse, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.install_with(first='while [ ! -e "$0.go" ]; do sleep 0.02; done')
    first = asyncio.create_task(house.choose(deadline=asyncio.get_running_loop().time() + 0.5))
    await eventually(house.built)
    _, waiting = await asyncio.wait({first}, timeout=1.0)
    assert waiting, "its time does not run while something is installed"
    first.cancel()
    look = interpreters.is_complete

    def slow(target: Path, proof: str) -> bool:
        """Say what was so before the build ended, after it has."""
        found = look(target, proof)
        while proof == "ipykernel" and not look(target, proof):
            threading.Event().wait(0.01)
        return found

    monkeypatch.setattr(interpreters, "is_complete", slow)
    second = asyncio.create_task(house.choose())
    third = asyncio.create_task(house.choose())
    (house.folder / "uv.go").touch()
    assert (await second).overlay == (await third).overlay is not None
    assert len(house.built()) == 1


async def test_the_end_of_the_control_plane_ends_a_build(house: ResolverHouse, bare: Path) -> None:
    house.install_with(first="sleep 600")
    call = asyncio.create_task(house.choose())
    await eventually(house.built)
    await house.resolver.installs.close()
    with pytest.raises(ShuttingDownError):
        await call
    assert list(await house.placement.list("program:")) == []
    house.install_with()
    assert (await house.choose()).overlay is not None
    assert not list((house.folder / "data" / "overlays").glob(".part-*"))


async def test_a_build_sees_the_installers_settings_and_no_secrets(
    house: ResolverHouse, bare: Path
) -> None:
    house.install_with(
        first='echo "env: $UV_CACHE_DIR $PIP_CERT,$PYTHONPATH,$PI_X,$OPENAI_API_KEY"'
    )
    house.environ |= {"UV_CACHE_DIR": "/cache", "PIP_CERT": "/cert", "PYTHONPATH": "/python"}
    house.environ |= {"PI_X": "gateway-token", "OPENAI_API_KEY": "sk"}
    house.resolver = house.made()
    assert "UV_CACHE_DIR" not in (await house.choose()).env
    assert (
        "env: /cache /cert,,,\n" in (house.folder / "data" / "overlays" / f"{TAG}.log").read_text()
    )


async def test_the_managed_environment_is_made_when_it_is_named_and_used_ever_after(
    house: ResolverHouse,
) -> None:
    """A build that was killed counts for nothing, and the next one makes it whole."""
    house.install_with()
    root = house.folder / "data" / "python"
    fake_python(root / "bin" / "python")
    (root / "half").touch()
    (root.parent / ".part-python").touch()
    explanation = await house.resolver.explain(StartRequest(cwd=str(house.proj)), house.config)
    attempt = next(each for each in explanation.attempts if each.source is Source.MANAGED)
    assert (attempt.verdict, attempt.detail) == (CandidateVerdict.MISSING, "is not built")
    with pytest.raises(StartFailedError):
        await house.choose()
    assert house.built() == []
    choice = await house.choose(interpreter=MANAGED)
    assert choice.interpreter == str(root / "bin" / "python")
    assert [line.split()[0] for line in house.built()] == ["venv", "pip"]
    assert (
        house.lines[0] == f"installing the managed environment in {root} (once); output: {root}.log"
    )
    assert (sorted(os.listdir(root.parent)), (root / "half").exists()) == (
        ["python", "python.log"],
        False,
    )
    unnamed = await house.choose()
    assert (unnamed.interpreter, unnamed.attempts[2].source) == (choice.interpreter, Source.MANAGED)
    assert len(house.built()) == 2


IPYKERNEL = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]


def install(house: ResolverHouse, name: str, argv: list[str], **more: Any) -> Path:
    folder = house.folder / "share" / "jupyter" / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"argv": argv, "display_name": name.title(), "language": "python", **more}
    (folder / "kernel.json").write_text(json.dumps(spec))
    return folder / "kernel.json"


def provisioned(name: str) -> dict[str, Any]:
    return {"metadata": {"kernel_provisioner": {"provisioner_name": name}}}


async def test_an_unknown_kernelspec_names_the_nearest_and_all(house: ResolverHouse) -> None:
    install(house, "julia", ["julia"])
    with pytest.raises(InvalidInputError) as caught:
        await house.choose(kernelspec="Juila")
    assert (
        caught.value.detail
        == "there is no kernelspec 'Juila'; did you mean julia? There are: julia, python3."
    )
    assert caught.value.extra["nearest"] == "julia"
    assert "--kernelspec python3" in str(caught.value.hint)
    assert caught.value.extra["kernelspecs"] == ["julia", "python3"]
    assert caught.value.extra["errors"][0]["pointer"] == "/kernelspec"
    with pytest.raises(
        InvalidInputError, match=r"^there is no kernelspec '\.\./x'\. There are: "
    ) as far:
        await house.choose(kernelspec="../x")
    assert far.value.extra["nearest"] is None


async def test_python3_means_our_own_rule(house: ResolverHouse) -> None:
    python = fake_python(house.proj / ".venv" / "bin" / "python")
    for more in (None, {}, {"env": {"FROM_SPEC": "${HOME}/x"}}, provisioned("supervisord-py")):
        if more is not None:
            install(house, "python3", ["python3", "-Xfrozen_modules=off", *IPYKERNEL], **more)
        choice = await house.choose(kernelspec="python3")
        assert (choice.key, choice.interpreter, choice.kernelspec) == (
            str(python),
            str(python),
            "python3",
        )
    assert (await house.choose(kernelspec="PYTHON3")).interpreter == str(python)
    named = await house.choose(kernelspec="python3", interpreter=str(python))
    assert named.attempts[0].source.value == "request"


async def test_a_python_kernelspec_runs_by_our_launcher_with_its_interpreter(
    house: ResolverHouse,
) -> None:
    python = fake_python(house.folder / "env" / "bin" / "python")
    install(
        house,
        "mine",
        [str(python), *IPYKERNEL],
        env={"A": "${HOME}/a", "B": "$UNKNOWN"},
        interrupt_mode="message",
    )
    choice = await house.choose(kernelspec="mine")
    assert (choice.key, choice.interpreter, choice.kernelspec_argv) == (
        "spec:mine",
        str(python),
        None,
    )
    assert choice.env["A"] == f"{house.folder}/a"
    assert choice.env["B"] == "$UNKNOWN"
    assert choice.interrupt_mode == "message"
    assert choice.env["PATH"].split(":")[0] == str(python.parent)
    with pytest.raises(InvalidInputError, match="says itself what it runs"):
        await house.choose(kernelspec="mine", interpreter="/x/python")


async def test_a_kernelspec_of_another_language_runs_from_its_argv_unless_it_is_for_somewhere_else(
    house: ResolverHouse,
) -> None:
    program = script(house.bin / "xkernel", "")
    file = install(
        house,
        "x",
        ["xkernel", "{connection_file}", "{resource_dir}/y", "{z}"],
        language="x",
        env={"K": "1"},
    )
    choice = await house.choose(kernelspec="x", env={"K": "2", "OPENAI_API_KEY": "k"})
    assert choice.key == "spec:x"
    assert choice.language == "x"
    assert choice.interpreter is None
    assert choice.kernelspec_argv == (str(program), "{connection_file}", f"{file.parent}/y", "{z}")
    assert choice.env["K"] == "2"
    assert "OPENAI_API_KEY" not in choice.env
    assert house.spawned == []
    install(house, "far", ["xkernel"], language="x", **provisioned("kubernetes-provisioner"))
    with pytest.raises(ConfigError, match="kubernetes-provisioner"):
        await house.choose(kernelspec="far")
    install(house, "ours", ["xkernel"], language="x", **provisioned("supervisord-py"))
    assert (await house.choose(kernelspec="ours")).key == "spec:ours"
