"""Notebooks run by nbclient, nbconvert and papermill on the daemon's kernels."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from beside import beside
from e2e.house import alive, until
from jupyter_house import LAUNCHED, PATIENCE, PYTHON, Front


def notebook(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def client(book: nbformat.NotebookNode, front: Front, kernel: str = "pxd", **options: Any) -> NotebookClient:
    options |= {"resources": {"metadata": {"path": str(front.folder)}}, "iopub_timeout": int(PATIENCE)}
    return NotebookClient(book, kernel_name=kernel, timeout=PATIENCE, **options)


def streams(cell: nbformat.NotebookNode) -> str:
    return "".join(output["text"] for output in cell.outputs if output.output_type == "stream")


def test_nbclient_executes_a_notebook_and_leaves_nothing(front: Front) -> None:
    html = "from IPython.display import HTML\nHTML('<b>bold</b>')"
    book = notebook("x = 20", "print('printed', x)\nx + 1", html, "%pwd")
    client(book, front).execute()
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
    assert streams(book.cells[1]) == "printed 20\n"
    assert book.cells[1].outputs[-1].data["text/plain"] == "21"
    assert book.cells[2].outputs[0].data["text/html"] == "<b>bold</b>"
    assert book.cells[3].outputs[0].data["text/plain"] == repr(str(front.folder))
    assert (book.metadata.language_info.name, front.living()) == ("python", {})


@pytest.mark.deep
def test_a_cell_over_its_time_is_interrupted_and_the_rest_runs(front: Front) -> None:
    book = notebook("x = 1", "print('begun')\nimport asyncio; await asyncio.sleep(600)", "print(x)")
    runner = client(book, front, interrupt_on_timeout=True, allow_errors=True)
    runner.timeout_func = lambda cell: 6 if "begun" in cell.source else PATIENCE  # time enough to print
    runner.execute()
    assert [streams(cell) for cell in book.cells[1:]] == ["begun\n", "1\n"]
    assert book.cells[1].outputs[-1].ename in {"KeyboardInterrupt", "CancelledError"}


@pytest.mark.deep
@pytest.mark.parametrize("spec", ["pxd", "python3"])
def test_every_runner_of_notebooks_takes_our_kernelspecs(front: Front, spec: str, tmp_path: Path) -> None:
    """The one that comes with us, or `python3` made ours, to which they give an argument for its command line."""
    if spec == "python3":
        front.spec("python3", ["python", *LAUNCHED])
    book = notebook("import os\nprint(os.environ['PX_UNIT'])", "print(get_ipython().history_manager.hist_file)")
    book.metadata["kernelspec"] = {"name": spec, "display_name": spec, "language": "python"}
    source = tmp_path / "in.ipynb"
    nbformat.write(book, source)
    to = {name: str(tmp_path / name) for name in ("nbclient", "nbconvert", "papermill.ipynb")}
    for words in (
        ["jupyter", "execute", "--output", to["nbclient"], source],
        ["nbconvert", "--execute", "--to", "notebook", "--output", to["nbconvert"], source],
        ["papermill", source, to["papermill.ipynb"]],
    ):
        run = subprocess.run([PYTHON, "-m", *words], cwd=front.folder, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    for name, target in to.items():
        told = [streams(cell) for cell in nbformat.read(f"{target.removesuffix('.ipynb')}.ipynb", as_version=4).cells]
        assert (told[0].startswith("kernel:jupyter-"), told[1]) == (True, ":memory:\n"), (name, told)
    assert front.living() == {}


RUNNER = """
import nbformat, sys
from nbclient import NotebookClient
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in sys.argv[1:]])
NotebookClient(book, kernel_name="pxd", timeout=600).execute()
"""


def test_a_kernel_outlives_the_front_end_that_was_killed(front: Front) -> None:
    """Its variables can be looked at afterwards, and it ends by a stop; nothing else of it is left."""
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    cells = ["x = 'still here'", f"open('reached', 'w').close()\n{wait}\nx += ', and done'", "1"]
    process = beside([PYTHON, "-c", RUNNER, *cells], cwd=front.folder, stdin=subprocess.DEVNULL)
    until((front.folder / "reached").exists, "the second cell runs")
    session = front.only()
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    assert front.only()["pid"] == session["pid"]
    assert session["unit"] in front.house.pxctl("status").stdout
    (front.folder / "go").touch()
    answer = front.house.post(f"/api/kernels/{session['id']}/execute", {"code": "print(x)"})
    assert (answer["cells"][0]["text"], answer["variables"]) == ("still here, and done\n", "kept")
    front.house.post(f"/api/kernels/{session['id']}/stop")
    assert not alive(session["pid"])
