"""The wheel, built without a network and installed into an environment of its own: complete, and no more than that."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SECONDS = 110


def run(*argv: str | Path, cwd: Path) -> str:
    ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, f"{argv}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, ROOT, cwd=target)
    (built,) = target.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; its dependencies are read from where the tests' own are."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    pip = (sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"))
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel.filename), cwd=venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    # A plain line of a .pth file adds a directory without running the .pth files in it: our editable install stays out.
    (packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv


def test_it_has_every_module_and_example_and_no_test(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for folder, prefix in ((ROOT / "supervisord_py", "supervisord_py"), (ROOT / "cli" / "pxctl", "pxctl")):
        for path in folder.rglob("*.py"):
            assert f"{prefix}/{path.relative_to(folder)}" in names
    assert {"supervisord_py/py.typed", "pxctl/py.typed"} <= names
    for path in (ROOT / "supervisord_py" / "examples").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    roots = {name.split("/")[0] for name in names}
    assert {root for root in roots if not root.startswith("supervisord_py-")} == {"supervisord_py", "pxctl"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".lock"))]


def test_its_metadata_is_that_of_the_project(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    required = {str(Requirement(each)) for each in metadata.get_all("Requires-Dist") or []}
    assert required == {str(Requirement(each)) for each in project["dependencies"]}
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.deep
def test_the_commands_run_from_it_and_not_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    for path in (ROOT / "man").rglob("*.[1-8]"):
        assert (installed / "share" / "man" / path.relative_to(ROOT / "man")).is_file()
    python = installed / "bin" / "python"
    where = run(
        python, "-c", "import supervisord_py, pxctl; print(supervisord_py.__file__, pxctl.__file__)", cwd=tmp_path
    )
    assert where.count(str(installed)) == 2
    version = run(python, "-c", "import supervisord_py; print(supervisord_py.__version__)", cwd=tmp_path).strip()
    assert run(installed / "bin" / "pxd", "--version", cwd=tmp_path) == f"pxd {version}\n"
    assert run(python, "-m", "supervisord_py", "--version", cwd=tmp_path).endswith(f" {version}\n")
    help_text = run(installed / "bin" / "pxctl", "--help", cwd=tmp_path)
    assert re.search(r"^ +run ", help_text, re.MULTILINE)
    assert version in run(installed / "bin" / "pxctl", "--version", cwd=tmp_path)
