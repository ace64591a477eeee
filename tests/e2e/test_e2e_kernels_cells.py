"""What `pxctl exec` shows, saves and exits with: late output, whole notebooks, exits, tags,
displays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from e2e.house import of_module, until
from e2e.kernel_house import PATIENT, Calls, kernels_house

calls = of_module(kernels_house, PATIENT)
CODE = nbformat.v4.new_code_cell


def execute(calls: Calls, *arguments: str, kernel: str = "cells") -> Any:
    return calls.house.pxctl("exec", "--kernel", kernel, *arguments)


def notebook(path: Path, *cells: Any, **about: Any) -> Path:
    made = nbformat.v4.new_notebook(
        cells=[CODE(it) if isinstance(it, str) else it for it in cells], **about
    )
    nbformat.write(made, path)
    return path


def test_what_a_pool_or_a_child_of_an_earlier_call_prints_is_shown_by_the_call_that_runs(
    calls: Calls, tmp_path: Path
) -> None:
    made = (
        "import multiprocessing as m, os, subprocess, time\n"
        "from concurrent.futures import ProcessPoolExecutor as P\n"
        "ex = P(1, mp_context=m.get_context('spawn')); ex.submit(print, 'one', flush=True).result()"
    )
    assert execute(calls, made).stdout == "one\n"
    later = execute(
        calls, "ex.submit(print, 'two', flush=True).result(); print('end of the second call')"
    )
    assert later.stdout == "two\nend of the second call\n"
    go = tmp_path / "go"
    waiting = f"while [ ! -e {go} ]; do sleep 0.01; done; echo disk is full >&2; echo > {go}.done"
    assert execute(calls, f"child = subprocess.Popen({waiting!r}, shell=True)").stderr == ""
    code = (
        f"open({str(go)!r}, 'w').close()\nwhile not os.path.exists('{go}.done'): "
        "time.sleep(0.01)\nprint('end')"
    )
    ended = execute(calls, code)
    assert (ended.stdout, ended.stderr) == ("end\n", "disk is full\n")
    last = [(it.name, it.text) for it in exported(calls).cells[-1].outputs]
    assert sorted(last) == [("stderr", "disk is full\n"), ("stdout", "end\n")]
    execute(calls, "ex.shutdown()")


def exported(calls: Calls) -> Any:
    return nbformat.reads(calls.house.pxctl("kernel", "export", "cells").stdout, as_version=4)


def test_a_saved_notebook_and_an_export_have_all_that_was_printed(
    calls: Calls, tmp_path: Path
) -> None:
    source = "import sys\nfor i in range(4000): print(i, 'x' * 60)\n"
    source += "for i in range(3000): print(i, 'y' * 60, file=sys.stderr)"
    out = "".join(f"{i} {'x' * 60}\n" for i in range(4000))
    err = "".join(f"{i} {'y' * 60}\n" for i in range(3000))
    done = tmp_path / "done.ipynb"
    ended = execute(calls, "-f", str(notebook(tmp_path / "a.ipynb", source)), "-o", str(done))
    assert (ended.returncode, ended.stdout) == (0, out)
    for made in (nbformat.read(done, as_version=4).cells[0], exported(calls).cells[-1]):
        assert [(it.name, it.text) for it in made.outputs] == [("stdout", out), ("stderr", err)]
    text = calls.run("cells", source).cell["text"]
    assert "bytes of stdout omitted" in text
    assert "bytes of stderr omitted" in text


@pytest.mark.deep
def test_a_notebook_too_large_to_be_whole_says_so(calls: Calls, tmp_path: Path) -> None:
    source = "import sys\nfor _ in range(17): sys.stdout.write('x' * (1 << 20))"
    given, done = notebook(tmp_path / "a.ipynb", "1 + 1", source), tmp_path / "done.ipynb"
    ended = execute(calls, "-f", str(given), "-o", str(done))
    assert ended.returncode == 0
    assert "The notebook does not have all of what 1 of 2 cells gave." in ended.stderr
    assert len(nbformat.read(done, as_version=4).cells[1].outputs[0].text) > 1 << 24
    saved = calls.house.pxctl("kernel", "export", "cells", "-o", str(done))
    assert (saved.returncode, "does not have all of what 1 of its cells gave" in saved.stderr) == (
        0,
        True,
    )


EXITS = {
    "import sys\ndef main():\n    print('12 rows')\n    return 0\nsys.exit(main())": (
        0,
        "12 rows\n",
        "",
    ),
    "raise SystemExit": (0, "", ""),
    "import sys; sys.exit(4)": (4, "", "pxctl: The cell ended with exit code 4.\n"),
    "import sys; sys.exit('no data')": (
        1,
        "",
        "no data\npxctl: The cell ended with exit code 1.\n",
    ),
    "import sys\nif True: exit(3)\nprint('never')": (
        3,
        "",
        "pxctl: The cell ended with exit code 3.\n",
    ),
}


@pytest.mark.parametrize("code", EXITS)
def test_a_script_that_exits_ends_as_python_ends_it(
    calls: Calls, code: str, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(code + "\n")
    for arguments in ([code], ["-f", str(script)]):
        ended = execute(calls, *arguments)
        assert (ended.returncode, ended.stdout, ended.stderr) == EXITS[code]


@pytest.mark.parametrize(
    ("ending", "exit_code"), [("import sys; sys.exit(0)", 0), ("import sys; sys.exit(4)", 4)]
)
def test_a_cell_that_exits_ends_its_notebook(
    calls: Calls, ending: str, exit_code: int, tmp_path: Path
) -> None:
    given, done = (
        notebook(tmp_path / "a.ipynb", "x = 1", ending, "print('never')"),
        tmp_path / "done.ipynb",
    )
    ended = execute(calls, "-f", str(given), "-o", str(done))
    assert (ended.returncode, ended.stdout) == (exit_code, "")
    assert "Cell 2 of 3 ended" in ended.stderr
    assert f"with exit code {exit_code}. Cell 3 was not run." in ended.stderr
    assert len(nbformat.read(done, as_version=4).cells[1].outputs) == (exit_code > 0)
    assert execute(calls, "x").stdout == "1\n", "variables are kept"


def test_exit_ends_the_session_and_the_notebook_well(calls: Calls, tmp_path: Path) -> None:
    given = notebook(tmp_path / "a.ipynb", "x = 1", "exit()", "print('never')")
    ended = execute(calls, "-f", str(given), kernel="ends")
    assert (ended.returncode, "Cell 2 of 3 ended the session with exit()." in ended.stderr) == (
        0,
        True,
    )
    assert "NameError" in execute(calls, "x", kernel="ends").stderr


def test_a_script_finds_its_neighbours_and_its_own_name(calls: Calls, tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "beside.py").write_text("word = 'beside'\n")
    (folder / "x.py").write_text(
        "import beside, sys\n# %%\nprint(beside.word, __file__, sys.argv)\n"
    )
    ended = execute(calls, "-f", str(folder / "x.py"))
    assert ended.stdout == f"beside {folder}/x.py ['{folder}/x.py']\n", ended.stderr


def test_a_cell_tagged_raises_exception_may_fail(calls: Calls, tmp_path: Path) -> None:
    tags = {"tags": ["raises-exception"]}
    cells = [
        CODE("1 / 0", metadata=tags),
        CODE("1 +", metadata=tags),
        CODE("x = 5", metadata=tags),
        "print(x)",
    ]
    given, done = notebook(tmp_path / "a.ipynb", *cells), tmp_path / "done.ipynb"
    ended = execute(calls, "-f", str(given), "-o", str(done))
    assert (ended.returncode, ended.stdout) == (0, "5\n"), ended.stderr
    assert "ZeroDivisionError" in ended.stderr
    saved = nbformat.read(done, as_version=4).cells
    assert [[it.get("ename") for it in cell.outputs] for cell in saved[:3]] == [
        ["ZeroDivisionError"],
        ["SyntaxError"],
        [],
    ]
    cells = [CODE("1 / 0", metadata=tags), "undefined", "print('never')"]
    ended = execute(calls, "-f", str(notebook(given, *cells)))
    assert (
        ended.returncode,
        "Cell 2 of 3 failed (NameError). Cell 3 was not run." in ended.stderr,
    ) == (1, True)
    cells = [CODE("import os; os._exit(3)", metadata=tags), "print('never')"]
    ended = execute(calls, "-f", str(notebook(given, *cells)), kernel="ends")
    assert (ended.returncode, "was cut off" in ended.stderr) == (1, True), "a death is no exception"


def test_a_display_is_updated_where_it_stands(calls: Calls, tmp_path: Path) -> None:
    cells = [
        "h = display('first', display_id=True)",
        "h.update('second')",
        "h.update('third'); display('own')",
    ]
    given, done = notebook(tmp_path / "a.ipynb", *cells), tmp_path / "done.ipynb"
    assert execute(calls, "-f", str(given), "-o", str(done)).returncode == 0
    for made in (nbformat.read(done, as_version=4).cells, exported(calls).cells[-3:]):
        shown = [[it.data["text/plain"] for it in cell.outputs] for cell in made]
        assert shown == [["'third'"], [], ["'own'"]]


def test_a_notebook_that_other_tools_run_is_run(calls: Calls, tmp_path: Path) -> None:
    given = tmp_path / "a.ipynb"
    cell = {
        "cell_type": "code",
        "source": "print(6 * 7)",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    about = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}}
    given.write_text(json.dumps({**about, "cells": [{**cell, "id": "abc"}]}))
    ended = execute(calls, "-f", str(given), "-o", str(given))
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr
    assert json.loads(given.read_text())["cells"][0]["outputs"][0]["text"] == ["42\n"]


def test_a_failed_cell_tells_its_error_once(calls: Calls, tmp_path: Path) -> None:
    script = tmp_path / "c.py"
    for title in ("", " load"):
        script.write_text(f"# %%{title}\n1 / 0\n")
        ended = execute(calls, "-f", str(script))
        assert (ended.returncode, "failed" in ended.stderr) == (1, False), ended.stderr
        assert "ZeroDivisionError" in ended.stderr
    asked = execute(calls, "input()")
    assert "Put the value into the code" in asked.stderr


def test_members_of_a_request_about_files_and_errors(calls: Calls) -> None:
    call = calls.run("cells", [{"code": "1 / 0", "allow_error": True}, "'on'"])
    assert (call["status"], [it["error_allowed"] for it in call["cells"]]) == ("ok", [True, False])
    answer = calls.house.request(
        "POST", "/api/kernels/cells/execute", {"code": "1", "file": "/x.py"}
    )
    assert answer.refused(422, "invalid_input")["errors"][0]["pointer"] == "/file"
    until(lambda: calls.state("cells") == "idle", "the session is idle")
