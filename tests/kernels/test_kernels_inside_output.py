"""What a cell of ours writes is in its files, all of it, before anybody is told. To everybody else
the kernel is an ordinary ipykernel, and a start that fails says why in one line.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.inside_rig import InsideRig, kernel, ours, refused, stock
from supervisord_py.kernels import inside


@pytest.fixture(scope="module")
def rig(python: str) -> Iterator[InsideRig]:
    with kernel(ours(python)) as made:
        yield made


def test_all_ways_to_write_keep_their_order_and_their_bytes(rig: InsideRig) -> None:
    """print, buffer, descriptors, child processes, the original streams, and what C holds back."""
    ran = rig.good(
        "import ctypes, os, subprocess, sys\n"
        "print('a'); os.write(1, b'b\\xff\\n'); print('c'); sys.stdout.buffer.write(b'd\\xfe\\n')\n"
        "subprocess.run(['echo', 'e']); print('f', file=sys.stderr); os.write(2, b'g\\n'); "
        "print('-')\n"
        "subprocess.run(['echo', 'h'], stdout=sys.stdout); print('i', end='')\n"
        "ctypes.CDLL(None).printf(b'j\\n'); sys.__stdout__.write('k\\n')\n"
        "sys.stdout.write(os.fsdecode(b'\\xfa')); print('\\ud800')\n"
    )
    out = rig.out(ran.id)
    assert out.startswith(b"a\nb\xff\nc\nd\xfe\ne\n-\nh\ni")
    for late in (b"\xfa\\ud800\n", b"j\n", b"k\n"):
        assert late in out
    assert (rig.cells / f"{ran.id}.err").read_bytes() == b"f\ng\n"
    place = len(b"a\nb\xff\nc\nd\xfe\ne\n")
    assert [(record["at"], record["err_at"]) for record in rig.records(ran.id, "err")] == [
        (place, 0)
    ]
    (end,) = rig.records(ran.id, "end")
    assert (end["at"], end["err_at"]) == (len(out), 4)


def test_forked_children_print_whole_lines_into_the_file_of_the_cell(rig: InsideRig) -> None:
    ran = rig.good(
        "import multiprocessing\n"
        "def work(number):\n"
        "    for _ in range(200): print(number, 'x' * 60, end='!\\n')\n"
        "pool = multiprocessing.get_context('fork').Pool(4); pool.map(work, range(8), 1)\n"
        # terminate() may wait for ever where a handler of SIGTERM is there, as coverage's
        "pool.close(); pool.join()"
    )
    assert sorted(set(rig.out(ran.id).decode().splitlines())) == [
        f"{number} {'x' * 60}!" for number in range(8)
    ]
    assert rig.out(ran.id).count(b"\n") == 1600


def test_the_first_bytes_are_published_and_characters_are_not_cut(rig: InsideRig) -> None:
    ran = rig.good("for number in range(2000): print(number, 'é' * 90)", preview=1000)
    assert ran.text() == rig.out(ran.id)[:1000].decode(errors="ignore")


def test_a_full_disk_does_not_harm_the_code_and_names_itself(rig: InsideRig) -> None:
    """RLIMIT_FSIZE stands for a disk that is full: write(2) fails in the middle of the output."""
    ran = rig.good(
        "import resource\n"
        "before = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))\n"
        "for _ in range(1000): print('x' * 99)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, before)\n"
        "'went on'"
    )
    assert rig.out(ran.id) == (b"x" * 99 + b"\n") * 100
    assert rig.records(ran.id, "capped")[0]["disk"] == "File too large"
    assert rig.records(ran.id, "result")[0]["data"]["text/plain"] == "'went on'"


def test_a_worker_of_a_pool_writes_to_the_cell_that_gave_it_work(rig: InsideRig) -> None:
    rig.good(
        "from concurrent.futures import ThreadPoolExecutor\npool = "
        "ThreadPoolExecutor(1)\npool.submit(int).result()"
    )
    second = rig.good("pool.submit(print, 'from the pool').result(); pool.shutdown()")
    assert rig.out(second.id) == b"from the pool\n"


def test_a_native_crash_reports_where_to_the_original_stderr(python: str) -> None:
    with kernel(ours(python)) as rig:
        cell = rig.send("import os, signal\nprint('x'); os.kill(os.getpid(), signal.SIGSEGV)")
        assert rig.process.wait(60) == -signal.SIGSEGV
        assert rig.out(cell) == b"x\n"
        assert "Segmentation fault" in rig.stderr.read_text()


def test_a_request_that_is_not_ours_is_published_as_ipykernel_does(
    rig: InsideRig, python: str
) -> None:
    """Same messages, same contents, all of the text, and no files."""
    codes = [
        "import os, sys; print('x' * 100_000); print('e', file=sys.stderr); display('d'); 1 + 1",
        "hasattr(sys.stdout, 'buffer'), type(sys.stdout).__name__, type(sys.stdout).__module__",
        "1 / 0",
        "input()",
        "type(get_ipython()).__name__, 'IPKernelApp' in get_ipython().config, sys.argv[1:2]",
    ]

    def told(client: InsideRig, code: str) -> list[Any]:
        ran = client.run(code, px=False)
        messages = [(kind, _plain(content)) for kind, content in ran.messages if kind != "stream"]
        return [messages, ran.text(), ran.text("stderr"), _plain(ran.reply)]

    with kernel(stock(python)) as plain:
        for code in codes:
            assert told(rig, code) == told(plain, code)
    before = len(list(rig.cells.iterdir()))
    rig.run("print('x')", px=False)
    assert len(list(rig.cells.iterdir())) == before


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    varying = {"execution_count", "traceback", "engine_info"}
    return {name: value for name, value in content.items() if name not in varying}


SOURCES = sorted(Path(inside.__file__).parent.glob("*.py"))
PATHS = (
    "import json, os, sys; here = os.getcwd()\n"
    "paths = [path for path in sys.path if path != here]\n"
    "print(json.dumps([paths, sys.argv[1:], sys.flags.safe_path, here]))"
)


def value(rig: InsideRig, expression: str) -> str:
    return str(rig.records(rig.good(expression).id, "result")[0]["data"]["text/plain"])


@pytest.mark.deep
@pytest.mark.parametrize(
    "environ", [{}, {"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": "/somewhere"}], ids=repr
)
def test_paths_and_arguments_are_those_of_a_stock_kernel(
    python: str, environ: dict[str, str]
) -> None:
    told = []
    for argv in (ours(python), stock(python)):
        with kernel(argv, env={**os.environ, **environ}) as rig:
            told.append(rig.good(PATHS, px=False).text().replace(str(rig.cwd.parent), "FOLDER"))
    assert told[0] == told[1]


def test_a_file_beside_the_launcher_hides_no_module_of_the_users() -> None:
    with kernel(ours()) as rig:
        (rig.cwd / "search.py").write_text("mine = 1\n")
        assert value(rig, "import search; search.mine") == "1"
        assert (
            value(rig, "'supervisord_py' in sys.modules if (sys := __import__('sys')) else None")
            == "False"
        )


def test_ipykernel_comes_from_an_overlay_or_its_absence_is_told(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True, timeout=60
    )
    bare_python = str(tmp_path / "bin" / "python")
    told = refused(ours(bare_python))
    assert "No module named 'ipykernel'" in told["detail"]
    assert told["hint"] == f"run `{bare_python} -m pip install ipykernel`"
    assert "remove /not/there" in refused(ours(bare_python, "--px-overlay", "/not/there"))["hint"]
    overlay = sysconfig.get_path("purelib")
    with kernel(ours(bare_python, "--px-overlay", overlay)) as rig:
        assert value(rig, "__import__('sys').executable") == repr(bare_python)
        assert value(rig, "__import__('sys').path[-1]") == repr(overlay)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_sources_are_python_3_8_and_import_nothing_of_the_daemon(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        assert not [name for name in names if name.split(".")[0] in {"supervisord_py", "px_inside"}]
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"removeprefix", "removesuffix"}, "new in Python 3.9"
