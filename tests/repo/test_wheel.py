"""The wheel, built without a network and installed into an environment of its own: complete, and
no more than that.
"""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SECONDS = 110


def run(*argv: str | Path, cwd: Path, **env: str) -> str:
    ended = subprocess.run(
        argv,
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{argv}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    target = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        target,
        ROOT,
        cwd=target,
    )
    (built,) = target.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; its dependencies are read from where the tests' own
    are.
    """
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    pip = (sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"))
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel.filename), cwd=venv)
    add_dependencies(venv)
    return venv


def add_dependencies(venv: Path) -> None:
    """Have an environment read the dependencies from the tests' own."""
    (packages,) = venv.glob("lib/python*/site-packages")
    # A plain line of a .pth file adds a directory without running the .pth files in it: our
    # editable install stays out.
    (packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


def test_it_has_every_module_and_example_no_test_and_the_projects_metadata(
    wheel: zipfile.ZipFile,
) -> None:
    names = {
        name for name in wheel.namelist() if ".dist-info/" not in name and ".data/" not in name
    }
    ours = {
        str(path.relative_to(folder))
        for folder, package in ((ROOT, "supervisord_py"), (ROOT / "cli", "pxctl"))
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == ours
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("MIT", ">=3.11")
    required = {str(Requirement(each)) for each in metadata.get_all("Requires-Dist") or []}
    assert required == {str(Requirement(each)) for each in project["dependencies"]}
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.deep
def test_it_brings_pages_units_and_completions(
    installed: Path, tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    pxctl, told = (
        installed / "bin" / "pxctl",
        run(installed / "bin" / "pxd", "--version", cwd=tmp_path),
    )
    assert (
        run(installed / "bin" / "python", "-m", "supervisord_py", "--version", cwd=tmp_path) == told
    )
    for path in (ROOT / "supervisord_py" / "units").iterdir():
        assert (installed / "share" / "pxd" / "units" / path.name).read_bytes() == path.read_bytes()
    completions = {"bash": "bash-completion/completions/pxctl", "zsh": "zsh/site-functions/_pxctl"}
    completions["fish"] = "fish/vendor_completions.d/pxctl.fish"
    for shell, path in completions.items():
        assert (installed / "share" / path).read_text() == run(
            pxctl, "completion", shell, cwd=tmp_path
        )
    assert f"ExecStart={installed}/bin/pxd " in run(
        pxctl, "daemon", "install", "--print", cwd=tmp_path
    )
    pages = {
        page["path"]: page["about"]
        for page in json.loads(run(pxctl, "help", "--json", cwd=tmp_path))["pages"]
    }
    ours = {
        str(installed / "share" / path.relative_to(ROOT))
        for path in (ROOT / "man").rglob("*.[1-8]")
    }
    assert set(pages) == ours
    assert all(pages.values())
    require(shutil.which("man"), "needs man")
    opened = run(pxctl, "help", "pxd.toml", cwd=tmp_path, MANPATH=str(tmp_path))
    assert opened.startswith("PXD.TOML(5)")


@pytest.mark.deep
def test_uv_installs_it_as_a_tool(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # Without a network there are none to install; they are read from where the tests' own are.
    none = "".join(
        f"{Requirement(each).name}; python_version < '3'\n" for each in project["dependencies"]
    )
    (tmp_path / "none").write_text(none)
    env = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    uv = (
        Path(sys.executable).parent / "uv",
        "tool",
        "install",
        "--offline",
        "--no-config",
        "--python",
        sys.executable,
    )
    run(*uv, "--overrides", tmp_path / "none", str(wheel.filename), cwd=tmp_path, **env)
    add_dependencies(tmp_path / "tools" / "supervisord-py")
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["pxctl", "pxd"]
    pages = json.loads(run(tmp_path / "bin" / "pxctl", "help", "pxd", "--json", cwd=tmp_path))[
        "pages"
    ]
    assert [Path(page["path"]).is_relative_to(tmp_path / "tools") for page in pages] == [True]


@pytest.mark.deep
def test_the_formula_is_about_the_source_distribution_and_what_the_wheel_brings(
    installed: Path,
) -> None:
    formula = run("make", "-s", "brew", cwd=ROOT, VENV=sys.prefix)
    source = Path(re.findall(r'^  url "file://(.+)"$', formula, re.MULTILINE)[0])
    assert f'sha256 "{hashlib.sha256(source.read_bytes()).hexdigest()}"' in formula
    with tarfile.open(source) as archive:
        assert f"{source.name.removesuffix('.tar.gz')}/requirements.lock" in archive.getnames()
    for path in re.findall(r'libexec/"(.+?)"', formula):
        assert (installed / path).exists(), path
