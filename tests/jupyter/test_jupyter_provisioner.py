"""Jupyter's own programs on a real daemon: kernel managers, nbclient, nbconvert and papermill; and
without one: what a front end asks for, what counts as an answer, and what a missing one means.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbclient import NotebookClient

from beside import beside
from cli.fake_daemon import FakeDaemon, document, problem, silent
from e2e.house import alive, until
from jupyter_house import LAUNCHED, PATIENCE, PYTHON, Front, kernel, run, value
from supervisord_py.jupyter import provisioner
from supervisord_py.jupyter.provisioner import ControlSocket, DaemonError, order_of
from supervisord_py.kernels.kernelspecs import Kernelspec
from waiting import eventually


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a program of one's own, whatever other tests have imported into this process (see
    launch_kernel).
    """
    monkeypatch.delitem(sys.modules, "jupyter_server", raising=False)


async def is_ready(kc: Any) -> bool:
    try:
        await kc.wait_for_ready(timeout=PATIENCE)
    except RuntimeError:
        return False
    return True


async def test_a_kernel_is_the_daemons_and_a_crash_is_the_end_of_its_life_and_a_restart_a_new_one(
    front: Front,
) -> None:
    async with kernel(cwd=str(front.folder)) as (km, kc):

        async def answer(message: dict[str, Any]) -> None:
            assert message["content"]["prompt"] == "name? "
            kc.input("Ada")

        _, printed = await run(
            kc, "x = 1; print('hello', input('name? '))", allow_stdin=True, stdin_hook=answer
        )
        assert printed == "hello Ada\n"
        shown = front.session_of(km)
        assert (shown["owner"], shown["name"]) == ("jupyter", f"jupyter-{km.kernel_id[:8]}")
        here = await value(kc, "(__import__('os').getpid(), __import__('os').getcwd())")
        assert here == [shown["pid"], shown["cwd"]] == [shown["pid"], str(front.folder)]
        assert shown["unit"] in front.house.pxctl("status").stdout
        kc.execute("import os; os.kill(os.getpid(), 9)")
        until(
            lambda: front.session_of(km)["instance"] != km.provisioner._instance,
            "the daemon sees the crash",
        )
        assert not await km.is_alive()
        before = km.get_connection_info()
        await km.restart_kernel(now=False)
        assert km.get_connection_info() == before, "the same client goes on"
        # On a busy machine the client may still believe its heartbeat of the kernel that crashed.
        await eventually(lambda: is_ready(kc), "the client sees the new kernel")
        assert await km.is_alive()
        assert (await run(kc, "x"))[0]["ename"] == "NameError"
        assert len(front.living()) == 1


async def test_a_kernel_that_its_front_end_shuts_down_has_not_died_and_leaves_no_session(
    front: Front,
) -> None:
    units = []
    for _ in range(3):
        async with kernel() as (km, kc):
            await run(kc, "x = 1")
            units.append(front.session_of(km)["unit"])
            kc.shutdown()  # as nbclient does it: by a message to the kernel
            until(lambda: not front.living(), "it has ended")
    for unit in units:
        assert [it["event"] for it in front.house.events(unit, "died", "stopped")] == ["stopped"]
    listed = {it["unit"] for it in front.house.get("/api/kernels")["kernels"]}
    assert len(listed & set(units)) <= 1, "the next session sweeps them up"


async def test_a_kernel_has_its_front_ends_environment_without_what_is_ours_or_denied(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And such a variable makes no zygote of its own necessary."""
    name = front.spec("with-env", ["python3", *LAUNCHED], env={"A": "<${HOME}>"})
    for number in ("1", "2"):
        monkeypatch.setenv("DATABASE_URL", number)
        added = {
            **os.environ,
            "JPY_SESSION_NAME": "a.ipynb",
            "JPY_PARENT_PID": "1",
            "OPENAI_API_KEY": "no",
        }
        async with kernel(name, env=added) as (km, kc):
            seen, method = (
                await value(kc, "dict(__import__('os').environ)"),
                front.session_of(km)["start_method"],
            )
        told = {
            "DATABASE_URL": number,
            "A": f"<{os.environ['HOME']}>",
            "JPY_SESSION_NAME": "a.ipynb",
        }
        assert told.items() <= seen.items()
        assert not {"OPENAI_API_KEY", "JPY_PARENT_PID", "PX_HOME"} & seen.keys()
        until(
            lambda: all(it["ready"] for it in front.house.get("/api/kernels")["zygotes"]),
            "zygotes are ready",
        )
    assert method == "zygote"


async def test_a_kernelspec_that_only_the_front_end_can_see_is_refused_with_both_places(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = front.spec("hidden", ["hidden-kernel", "{connection_file}"], language="snake")
    monkeypatch.setenv("JUPYTER_PATH", str(front.jupyter / "path2"))
    place = front.jupyter / "path2" / "kernels"
    place.mkdir(parents=True, exist_ok=True)
    (front.jupyter / "path" / "kernels" / name).rename(place / name)
    with pytest.raises(
        DaemonError,
        match=rf"no kernelspec '{name}'.*front end has it in {place / name}.*JUPYTER_PATH",
    ):
        async with kernel(name):
            pass


@pytest.mark.deep
async def test_a_daemon_that_is_not_there_is_started_unless_that_is_forbidden(
    own_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("0", "false", "No", "off"):
        monkeypatch.setenv("PX_AUTOSTART", word)
        with pytest.raises(DaemonError, match="pxctl daemon start"):
            async with kernel():
                pass
    monkeypatch.setenv("PX_AUTOSTART", "1")
    try:
        async with kernel() as (km, _):
            # A kernel says that it is idle after its last answer.
            until(
                lambda: own_front.session_of(km)["state"] == "idle", "it has answered its front end"
            )
    finally:
        assert own_front.house.pxctl("daemon", "stop").returncode == 0


@pytest.mark.deep
async def test_a_kernel_lives_on_while_the_control_plane_is_replaced_and_ends_with_the_daemon(
    own_front: Front,
) -> None:
    own_front.house.start()
    async with kernel() as (km, kc):
        await run(kc, "x = 7")
        assert own_front.house.pxctl("daemon", "restart").returncode == 0
        assert await km.is_alive()
        assert await value(kc, "x") == 7
        assert own_front.house.pxctl("daemon", "stop").returncode == 0
        assert not await km.is_alive()


@pytest.mark.deep
async def test_a_kernel_whose_front_end_asks_for_it_is_not_idle_and_one_whose_is_gone_is(
    own_front: Front,
) -> None:
    own_front.house.settings = {**own_front.house.settings, "PX_KERNELS__IDLE_SECONDS": "5"}
    own_front.house.start()
    async with kernel() as (km, _):
        for _ in range(150):  # a front end asks every few seconds, never without a pause
            assert await km.is_alive(), "it was evicted though its front end asked for it"
            await asyncio.sleep(0.05)
        pid = own_front.session_of(km)["pid"] or 0
        until(lambda: own_front.session_of(km)["state"] == "stopped", "the idle kernel is evicted")
        assert (alive(pid), own_front.session_of(km)["reason"]) == (False, "evicted_ttl")
        assert not await km.is_alive()


@pytest.mark.deep
async def test_a_front_end_needs_none_of_the_places_that_sessions_share(own_front: Front) -> None:
    own_front.house.settings |= {"PX_KERNELS__MAX_SESSIONS": "1"}
    own_front.house.start()
    own_front.house.post(
        "/api/kernels/default/execute", {"code": "x = 'kept'", "cwd": str(own_front.folder)}
    )
    async with kernel() as (_, one), kernel() as (_, other):
        assert [await value(one, "1 + 1"), await value(other, "1 + 1")] == [2, 2]
    again = own_front.house.request(
        "POST", "/api/kernels/default/execute", {"code": "x", "cwd": str(own_front.folder)}
    )
    assert "kept" in again.json()["cells"][0]["text"]


def notebook(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def streams(cell: nbformat.NotebookNode) -> str:
    return "".join(output["text"] for output in cell.outputs if output.output_type == "stream")


def test_nbclient_executes_a_notebook_and_leaves_nothing(front: Front) -> None:
    html = "from IPython.display import HTML\nHTML('<b>bold</b>')"
    book = notebook("x = 20", "print('printed', x)\nx + 1", html, "%pwd")
    times: dict[str, Any] = {"timeout": PATIENCE, "iopub_timeout": int(PATIENCE)}
    place = {"metadata": {"path": str(front.folder)}}
    NotebookClient(book, kernel_name="pxd", resources=place, **times).execute()
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
    assert streams(book.cells[1]) == "printed 20\n"
    assert book.cells[1].outputs[-1].data["text/plain"] == "21"
    assert book.cells[2].outputs[0].data["text/html"] == "<b>bold</b>"
    assert book.cells[3].outputs[0].data["text/plain"] == repr(str(front.folder))
    assert (book.metadata.language_info.name, front.living()) == ("python", {})


@pytest.mark.deep
@pytest.mark.parametrize("spec", ["pxd", "python3"])
def test_every_runner_of_notebooks_takes_our_kernelspecs(
    front: Front, spec: str, tmp_path: Path
) -> None:
    """The one that comes with us, or `python3` made ours, to which they give an argument for its
    command line.
    """
    if spec == "python3":
        front.spec("python3", ["python", *LAUNCHED])
    book = notebook(
        "import os\nprint(os.environ['PX_UNIT'])", "print(get_ipython().history_manager.hist_file)"
    )
    book.metadata["kernelspec"] = {"name": spec, "display_name": spec, "language": "python"}
    source = tmp_path / "in.ipynb"
    nbformat.write(book, source)
    to = {name: str(tmp_path / name) for name in ("nbclient", "nbconvert", "papermill.ipynb")}
    for words in (
        ["jupyter", "execute", "--output", to["nbclient"], source],
        ["nbconvert", "--execute", "--to", "notebook", "--output", to["nbconvert"], source],
        ["papermill", source, to["papermill.ipynb"]],
    ):
        run = subprocess.run(
            [PYTHON, "-m", *words], cwd=front.folder, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
    for name, target in to.items():
        told = [
            streams(cell)
            for cell in nbformat.read(f"{target.removesuffix('.ipynb')}.ipynb", as_version=4).cells
        ]
        assert (told[0].startswith("kernel:jupyter-"), told[1]) == (True, ":memory:\n"), (
            name,
            told,
        )
    assert front.living() == {}


def test_a_kernel_outlives_the_front_end_that_was_killed(front: Front) -> None:
    """Its variables can be looked at afterwards, and it ends by a stop; nothing else of it is
    left.
    """
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    cells = ["x = 'still here'", f"open('reached', 'w').close()\n{wait}\nx += ', and done'", "1"]
    nbformat.write(notebook(*cells), front.folder / "in.ipynb")
    command = [PYTHON, "-m", "jupyter", "execute", "--kernel_name=pxd", "in.ipynb"]
    process = beside(command, cwd=front.folder, stdin=subprocess.DEVNULL)
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


VARIABLES = st.dictionaries(
    *[st.text(st.characters(exclude_categories=[]), max_size=30)] * 2, max_size=5
)


def ordered(
    *argv: str, spec: str = "pxd", language: str = "python", **wishes: Any
) -> dict[str, Any]:
    kernelspec = Kernelspec(argv or ("python3", *LAUNCHED), language, name=spec)
    return order_of(
        "5b0a5f1e-0000-4000-8000-000000000000", kernelspec, **{"cwd": "/w", "env": {}, **wishes}
    )


@given(VARIABLES)
def test_an_environment_with_bytes_of_no_encoding_is_json_all_the_same(env: dict[str, str]) -> None:
    order = ordered(env=env)
    json.dumps(order, ensure_ascii=False).encode()
    assert order["env"].items() <= env.items()


@pytest.mark.parametrize(
    ("argv", "language", "expected"),
    [
        (("python", *LAUNCHED), "python", {}),
        (
            ("/e/bin/python", "-Xfrozen_modules=off", *LAUNCHED),
            "python",
            {"interpreter": "/e/bin/python"},
        ),
        (("python3.12", *LAUNCHED), "python", {"kernelspec": "s"}),
        (("/e/bin/python", *LAUNCHED, "--matplotlib=inline"), "python", {"kernelspec": "s"}),
        (("/e/bin/python", *LAUNCHED), "sage", {"kernelspec": "s"}),
    ],
)
def test_a_spec_is_followed_as_it_is_written(
    argv: tuple[str, ...], language: str, expected: dict[str, str]
) -> None:
    order = ordered(*argv, spec="s", language=language)
    assert {
        name: order[name] for name in ("interpreter", "kernelspec") if name in order
    } == expected


# -- the way to the daemon -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "broke off"),
        (document({"a": 1})[:-2], "broke off"),
        (problem(503, "interrupted", detail="given up"), "given up"),
        (problem(409, "conflict", detail="It is so.", hint="do this"), r"^It is so\. do this$"),
        (silent, r"within 0\.2 s"),
    ],
    ids=["nothing", "half", "interrupted", "conflict", "late"],
)
async def test_what_is_no_answer_ends_no_life_and_what_broke_off_is_asked_for_once_more(
    short_tmp: Path, said: Any, words: str
) -> None:
    is_asked_again, way = words in ("broke off", "given up"), ControlSocket(str(short_tmp / "s"))
    daemon = FakeDaemon(way.path).on("POST /api/x", said).start()
    with pytest.raises(DaemonError, match=words) as told:
        await way.ask("POST", "/api/x", seconds=0.2 if said is silent else 60.0)
    assert (told.value.is_gone, len(daemon.seen)) == (False, 1 + is_asked_again)
    if is_asked_again:
        daemon.on("POST /api/x", said, document({"a": 1}))
        assert await way.ask("POST", "/api/x") == {"a": 1}
    daemon.stop()
    with pytest.raises(DaemonError, match="pxctl daemon start") as told:
        await way.ask("GET", "/")
    assert told.value.is_gone, "nobody listens"


def test_the_socket_is_the_daemons_and_not_one_of_jupyters_service(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager's RUNTIME_DIRECTORY belongs to whom it started: Jupyter."""
    monkeypatch.delenv("PX_SOCKET", raising=False)
    monkeypatch.setenv("PX_HOME", str(short_tmp))
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/jupyter")
    assert ControlSocket().path == str(short_tmp / "run" / "pxd.sock")
    monkeypatch.setenv("PX_SOCKET", "/s")
    assert (ControlSocket().path, ControlSocket("/else").path) == ("/s", "/else")


@pytest.mark.parametrize(
    ("script", "words"), [("echo no room >&2; exit 1", "no room"), (None, "cannot start it")]
)
async def test_a_daemon_that_cannot_be_started_is_told_why(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    monkeypatch.delenv("PX_AUTOSTART", raising=False)
    monkeypatch.setenv("PATH", str(short_tmp))
    monkeypatch.setattr(provisioner.sys, "executable", str(short_tmp / "bin" / "python"))
    if script is not None:
        (short_tmp / "pxctl").write_text(f"#!/bin/sh\n{script}\n")
        (short_tmp / "pxctl").chmod(0o755)
    with pytest.raises(DaemonError, match=words):
        await ControlSocket(str(short_tmp / "s")).ensure_running()
