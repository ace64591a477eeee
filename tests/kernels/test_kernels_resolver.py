"""Which interpreter is taken: the first that runs; why the others were not is told; nobody gets another's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernels.resolver_house import ResolverHouse, fake_python, script
from supervisord_py.errors import ConfigError, StartFailedError
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.interpreters import MANAGED, candidates
from supervisord_py.kernels.session import DECISIVE, BackendName, CandidateVerdict, Source, StartRequest


async def test_the_first_that_runs_is_taken_and_the_others_are_explained(house: ResolverHouse) -> None:
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
        Source.DOT_VENV: (CandidateVerdict.MISSING, "is a link to /nowhere/python3.9, which is not there"),
        Source.VENV: (CandidateVerdict.TAKEN, "runs, with ipykernel of its own"),
        Source.MANAGED: (CandidateVerdict.MISSING, "is not built"),
        Source.PATH: (CandidateVerdict.MISSING, "is not on PATH"),
    }
    assert choice.interpreter == str(house.proj / "venv" / "bin" / "python")
    assert choice.env["VIRTUAL_ENV"] == str(house.proj / "venv")
    assert "CONDA_PREFIX" not in choice.env
    assert choice.notices == (
        f"{conda}/bin/python (CONDA_PREFIX) exits with 3: no such library; cells run with {choice.interpreter} instead",
    )


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("old", "is Python 3.7.16; kernels need 3.8 or newer"),
        ("closed", "is not executable"),
        ("silent", "exits with 0"),
        ("killed", "was killed by signal 9"),
        ("nonsense", "gives an answer that makes no sense"),
        ("not a program", "cannot be started"),
        ("hangs", "does not answer within 0.2 s"),
    ],
)
async def test_why_an_interpreter_is_passed_over_and_nothing_of_it_is_left(
    house: ResolverHouse, monkeypatch: pytest.MonkeyPatch, kind: str, detail: str
) -> None:
    python = house.proj / ".venv" / "bin" / "python"
    fake_python(python, version=[3, 7, 16])
    if kind == "closed":
        python.chmod(0o644)
    elif kind == "not a program":
        python.write_bytes(b"\x7fELF\0\0\0\0")
    elif kind != "old":
        does = {
            "silent": "",
            "killed": "kill -9 $$",
            "nonsense": "echo 'px-self-report {}'",
            "hangs": "sleep 600 & wait",
        }
        script(python, does[kind])
    if kind == "hangs":
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


@pytest.mark.parametrize("name", ["python3", "python3.11", "python"])
def test_the_names_of_one_interpreter_in_a_directory_are_one_session(tmp_path: Path, name: str) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "python3.11").touch()
    (real / "python3").symlink_to("python3.11")
    (real / "python").symlink_to("python3")
    (tmp_path / "link").symlink_to(real)
    assert interpreters.session_path(str(tmp_path / "link" / name)) == str(real / "python")


def test_what_a_stranger_left_in_an_open_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"request": "/x/python", "setting": "/y"}, Source.REQUEST, ("/x/python", "/x/python/bin/python")),
        ({"request": "envs/a/"}, Source.REQUEST, ("/proj/envs/a", "/proj/envs/a/bin/python")),
        ({"request": "~/e", "home": "/h/"}, Source.REQUEST, ("/h/e", "/h/e/bin/python")),
        ({"request": "python3.12"}, Source.REQUEST, ("/usr/local/bin/python3.12", "/usr/bin/python3.12")),
        ({"setting": "pypy", "environ": {"PATH": "/p:rel:/q/"}}, Source.SETTING, ("/p/pypy", "/q/pypy")),
        ({"request": MANAGED, "managed": "/m"}, Source.REQUEST, ("/m/bin/python",)),
    ],
)
def test_what_is_named_decides_alone(around: dict[str, Any], source: Source, paths: tuple[str, ...]) -> None:
    (only,) = candidates(**{"cwd": "/proj", "environ": {}, **around})
    assert only.source is source
    assert only.source in DECISIVE
    assert only.paths[: len(paths)] == paths
