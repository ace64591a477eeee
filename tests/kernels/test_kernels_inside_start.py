"""The launcher: to everybody an ordinary ipykernel, and a start that fails says why in one line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kernels.inside_rig import InsideRig, kernel, ours, refused, stock
from supervisord_py.kernels import inside

SOURCES = sorted(Path(inside.__file__).parent.glob("*.py"))
PATHS = (
    "import json, os, sys; here = os.getcwd()\n"
    "paths = [path for path in sys.path if path != here]\n"
    "print(json.dumps([paths, sys.argv[1:], sys.flags.safe_path, here]))"
)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return str(folder / "bin" / "python")


def value(rig: InsideRig, expression: str) -> str:
    return str(rig.records(rig.good(expression).id, "result")[0]["data"]["text/plain"])


@pytest.mark.deep
@pytest.mark.parametrize("environ", [{}, {"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": "/somewhere"}], ids=repr)
def test_paths_and_arguments_are_those_of_a_stock_kernel(python: str, environ: dict[str, str]) -> None:
    told = []
    for argv in (ours(python), stock(python)):
        with kernel(argv, env={**os.environ, **environ}) as rig:
            told.append(rig.good(PATHS, px=False).text().replace(str(rig.cwd.parent), "FOLDER"))
    assert told[0] == told[1]


def test_a_file_beside_the_launcher_hides_no_module_of_the_users() -> None:
    with kernel(ours()) as rig:
        (rig.cwd / "search.py").write_text("mine = 1\n")
        assert value(rig, "import search; search.mine") == "1"
        assert value(rig, "'supervisord_py' in sys.modules if (sys := __import__('sys')) else None") == "False"


# -- what is missing -------------------------------------------------------------------------------------------------


def test_ipykernel_comes_from_an_overlay_or_its_absence_is_told(bare_python: str) -> None:
    told = refused(ours(bare_python))
    assert "No module named 'ipykernel'" in told["detail"]
    assert told["hint"] == f"run `{bare_python} -m pip install ipykernel`"
    assert "remove /not/there" in refused(ours(bare_python, "--px-overlay", "/not/there"))["hint"]
    overlay = sysconfig.get_path("purelib")
    with kernel(ours(bare_python, "--px-overlay", overlay)) as rig:
        assert value(rig, "__import__('sys').executable") == repr(bare_python)
        assert value(rig, "__import__('sys').path[-1]") == repr(overlay)


def test_what_is_wrong_with_the_command_line_is_one_line() -> None:
    assert refused(ours(sys.executable, "--px-modules"))["hint"] == "daemon and launcher differ: `pxctl daemon restart`"


# -- what the sources may be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_sources_are_python_3_8_and_import_nothing_of_the_daemon(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        assert not [name for name in names if name.split(".")[0] in {"supervisord_py", "px_inside"}]
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"removeprefix", "removesuffix"}, "new in Python 3.9"
