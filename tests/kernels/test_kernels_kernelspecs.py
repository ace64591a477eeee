"""Kernelspecs: found where Jupyter finds them, run from their own argv, never in a circle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernels.resolver_house import ResolverHouse, fake_python, script
from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.kernels import kernelspecs

IPYKERNEL = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]


@pytest.fixture
def house(house: ResolverHouse, monkeypatch: pytest.MonkeyPatch) -> ResolverHouse:
    monkeypatch.setattr(kernelspecs, "_folders", lambda: _folders(house.folder / "share" / "jupyter" / "kernels"))
    return house


def _folders(place: Path) -> dict[str, str]:
    return {folder.name: str(folder) for folder in sorted(place.glob("*"))}


def install(house: ResolverHouse, name: str, argv: list[str], **more: Any) -> Path:
    folder = house.folder / "share" / "jupyter" / "kernels" / name
    folder.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name.title(), "language": "python", **more}
    (folder / "kernel.json").write_text(json.dumps(spec))
    return folder / "kernel.json"


def provisioned(name: str) -> dict[str, Any]:
    return {"metadata": {"kernel_provisioner": {"provisioner_name": name}}}


async def test_an_unknown_kernelspec_names_the_nearest_and_all(house: ResolverHouse) -> None:
    install(house, "julia", ["julia"])
    with pytest.raises(InvalidInputError) as caught:
        await house.choose(kernelspec="Juila")
    assert caught.value.detail == "there is no kernelspec 'Juila'; did you mean julia? There are: julia, python3."
    assert caught.value.extra["nearest"] == "julia"
    assert caught.value.extra["kernelspecs"] == ["julia", "python3"]
    assert caught.value.extra["errors"][0]["pointer"] == "/kernelspec"
    with pytest.raises(InvalidInputError, match=r"^there is no kernelspec '\.\./x'\. There are: ") as far:
        await house.choose(kernelspec="../x")
    assert far.value.extra["nearest"] is None


async def test_python3_means_our_own_rule(house: ResolverHouse) -> None:
    python = fake_python(house.proj / ".venv" / "bin" / "python")
    for more in ({}, {"env": {"FROM_SPEC": "${HOME}/x"}}, provisioned("supervisord-py")):
        choice = await house.choose(kernelspec="python3")
        assert (choice.key, choice.interpreter, choice.kernelspec) == (str(python), str(python), "python3")
        if not more:
            install(house, "python3", ["python", "-Xfrozen_modules=off", *IPYKERNEL])
        else:
            spec = house.folder / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
            spec.write_text(json.dumps({"argv": ["python3", *IPYKERNEL], "language": "python", **more}))
    assert (await house.choose(kernelspec="PYTHON3")).interpreter == str(python)
    named = await house.choose(kernelspec="python3", interpreter=str(python))
    assert named.attempts[0].source.value == "request"


async def test_a_python_kernelspec_runs_by_our_launcher_with_its_interpreter(house: ResolverHouse) -> None:
    python = fake_python(house.folder / "env" / "bin" / "python")
    install(house, "mine", [str(python), *IPYKERNEL], env={"A": "${HOME}/a", "B": "$UNKNOWN"}, interrupt_mode="message")
    choice = await house.choose(kernelspec="mine")
    assert (choice.key, choice.interpreter, choice.kernelspec_argv) == ("spec:mine", str(python), None)
    assert choice.env["A"] == f"{house.folder}/a"
    assert choice.env["B"] == "$UNKNOWN"
    assert choice.interrupt_mode == "message"
    assert choice.env["PATH"].split(":")[0] == str(python.parent)
    with pytest.raises(InvalidInputError, match="says itself what it runs"):
        await house.choose(kernelspec="mine", interpreter="/x/python")


async def test_a_kernelspec_of_another_language_runs_from_its_argv(house: ResolverHouse) -> None:
    program = script(house.bin / "xkernel", "")
    file = install(
        house, "x", ["xkernel", "{connection_file}", "{resource_dir}/y", "{z}"], language="x", env={"K": "1"}
    )
    choice = await house.choose(kernelspec="x", env={"K": "2", "OPENAI_API_KEY": "k"})
    assert choice.key == "spec:x"
    assert choice.language == "x"
    assert choice.interpreter is None
    assert choice.kernelspec_argv == (str(program), "{connection_file}", f"{file.parent}/y", "{z}")
    assert choice.env["K"] == "2"
    assert "OPENAI_API_KEY" not in choice.env
    assert house.spawned == []


async def test_a_kernelspec_for_somewhere_else_is_not_run_here(house: ResolverHouse) -> None:
    script(house.bin / "xkernel", "")
    install(house, "far", ["xkernel"], language="x", **provisioned("kubernetes-provisioner"))
    with pytest.raises(ConfigError, match="kubernetes-provisioner"):
        await house.choose(kernelspec="far")
    install(house, "ours", ["xkernel"], language="x", **provisioned("supervisord-py"))
    assert (await house.choose(kernelspec="ours")).key == "spec:ours"
