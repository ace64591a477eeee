"""Notebooks run by nbclient and papermill on the daemon's kernels."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from e2e.house import alive, until
from jupyter_house import PATIENCE, PYTHON, Front, end


def notebook(*cells: str) -> nbformat.NotebookNode:
    """Return a notebook of code cells that has no kernelspec of its own."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def client(book: nbformat.NotebookNode, front: Front, **options: Any) -> NotebookClient:
    where = {"metadata": {"path": str(front.folder)}}
    return NotebookClient(
        book, kernel_name="pxd", resources=where, timeout=PATIENCE, iopub_timeout=int(PATIENCE), **options
    )


def streams(cell: nbformat.NotebookNode) -> str:
    return "".join(output["text"] for output in cell.outputs if output.output_type == "stream")


def test_nbclient_executes_a_notebook_and_leaves_nothing(front: Front) -> None:
    book = notebook(
        "x = 20", "print('printed', x)\nx + 1", "from IPython.display import HTML\nHTML('<b>bold</b>')", "%pwd"
    )
    client(book, front).execute()
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
    assert streams(book.cells[1]) == "printed 20\n"
    assert book.cells[1].outputs[-1].data["text/plain"] == "21"
    assert book.cells[2].outputs[0].data["text/html"] == "<b>bold</b>"
    assert book.cells[3].outputs[0].data["text/plain"] == repr(str(front.folder))
    assert book.metadata.language_info.name == "python"
    assert front.living() == {}


@pytest.mark.deep
@pytest.mark.parametrize("code", ["import time; time.sleep(600)", "import asyncio; await asyncio.sleep(600)"])
def test_a_cell_over_its_time_is_interrupted_and_the_rest_runs(front: Front, code: str) -> None:
    book = notebook("x = 1", f"print('begun')\n{code}", "print(x)")
    runner = client(book, front, interrupt_on_timeout=True, allow_errors=True)
    runner.timeout_func = lambda cell: 6 if "begun" in cell.source else PATIENCE  # time enough to print
    runner.execute()
    assert streams(book.cells[1]) == "begun\n"
    assert book.cells[1].outputs[-1].ename in {"KeyboardInterrupt", "CancelledError"}
    assert streams(book.cells[2]) == "1\n"


def test_papermill_runs_a_notebook_with_parameters(front: Front, tmp_path: Path) -> None:
    book = notebook("alpha = 1", "print('alpha is', alpha)", "import scrap_of_the_project")
    book.cells[0].metadata["tags"] = ["parameters"]
    (front.folder / "scrap_of_the_project.py").write_text("")
    nbformat.write(book, tmp_path / "in.ipynb")
    options: dict[str, Any] = {"kernel_name": "pxd", "language": "python", "progress_bar": False, "log_output": False}
    papermill.execute_notebook(
        str(tmp_path / "in.ipynb"),
        str(tmp_path / "out.ipynb"),
        parameters={"alpha": 42},
        cwd=str(front.folder),
        **options,
    )
    done = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert "alpha is 42\n" in [streams(cell) for cell in done.cells]
    assert front.living() == {}


@pytest.fixture(params=["pxd", "python3"])
def spec(request: pytest.FixtureRequest, front: Front) -> str:
    """A kernelspec of ours: the one that comes with us, or `python3` with the four lines of the README."""
    if request.param == "python3":
        front.spec("python3", ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    name: str = request.param
    return name


@pytest.mark.deep
def test_every_runner_of_notebooks_takes_our_kernelspecs(front: Front, spec: str, tmp_path: Path) -> None:
    """To `python3` they give an argument for the kernel's command line."""
    book = notebook("import os\nprint(os.environ['PX_UNIT'])", "print(get_ipython().history_manager.hist_file)")
    book.metadata["kernelspec"] = {"name": spec, "display_name": spec, "language": "python"}
    source = tmp_path / "in.ipynb"
    nbformat.write(book, source)
    runners = {
        "nbclient": ["jupyter", "execute", "--output", str(tmp_path / "nbclient"), str(source)],
        "nbconvert": [
            "nbconvert",
            "--execute",
            "--to",
            "notebook",
            "--output",
            str(tmp_path / "nbconvert"),
            str(source),
        ],
        "papermill": ["papermill", str(source), str(tmp_path / "papermill.ipynb")],
    }
    for name, (module, *arguments) in runners.items():
        done = subprocess.run(
            [PYTHON, "-m", module, *arguments],
            cwd=front.folder,
            env=front.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = [streams(cell) for cell in nbformat.read(tmp_path / f"{name}.ipynb", as_version=4).cells]
        assert told[0].startswith("kernel:jupyter-"), told
        assert told[1] == ":memory:\n"
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
    reached = front.folder / "reached"
    process = subprocess.Popen(
        [PYTHON, "-c", textwrap.dedent(RUNNER), *cells], cwd=front.folder, env=front.environ(), stdin=subprocess.DEVNULL
    )
    try:
        until(reached.exists, "the second cell runs")
        ((name, session),) = front.living().items()
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        assert front.living()[name]["pid"] == session["pid"]
        assert f"kernel:{name}" in front.house.pxctl("status").stdout
        (front.folder / "go").touch()
        answer = front.house.request("POST", f"/api/kernels/{name}/execute", {"code": "print(x)"})
        assert answer.json()["cells"][0]["text"] == "still here, and done\n"
        assert answer.json()["variables"] == "kept"
        assert front.house.request("POST", f"/api/kernels/{name}/stop").status == 200
        assert not alive(session["pid"])
    finally:
        end(process)


@pytest.mark.deep
def test_an_executed_notebook_is_equal_to_the_one_of_a_stock_kernel(front: Front) -> None:
    """But for times and ids: our launcher takes nothing away from a front end."""
    cells = [
        "import sys\nprint('a'); print('b', file=sys.stderr); 5",
        "display({'text/markdown': '*m*'}, raw=True)",
        "[].x",
    ]
    front.spec("stock", [PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"], metadata={})
    told = []
    for name in ("pxd", "stock"):
        book = notebook(*cells)
        options: dict[str, Any] = {"allow_errors": True, "coalesce_streams": True}  # a line may come in two pieces
        runner = NotebookClient(book, kernel_name=name, timeout=PATIENCE, iopub_timeout=int(PATIENCE), **options)
        runner.execute()
        told.append(json.dumps([sorted(map(json.dumps, cell.outputs)) for cell in book.cells]))
    assert told[0] == told[1]
