"""`pxctl kernel …` and the general commands, as installed, on real kernels."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

import warm_client
from beside import beside
from e2e.house import BIN, DEADLINE, House, alive, house, until


@pytest.fixture(scope="module")
def held() -> Iterator[House]:
    """A house whose daemon serves all tests of this file; each names a session of its own."""
    # An interrupt has long enough to show itself: a kernel that this machine lets wait is not taken for a deaf one.
    patient = {"PX_KERNELS__LADDER_TERMINATE_SECONDS": "20", "PX_KERNELS__LADDER_KILL_SECONDS": "21"}
    with house({"PX_KERNELS__MAX_SESSIONS": "8", **patient}) as made:
        made.measured = True
        made.start()
        yield made


def run(home: House, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return warm_client.run(
        [BIN / "pxctl", *arguments], env=home.environ, cwd=cwd or home.home, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip


def show(home: House, kernel: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(home, "kernel", "show", kernel, "--json").stdout)
    return found


def test_a_kernel_is_started_listed_restarted_and_stopped(held: House) -> None:
    started = run(held, "kernel", "start", "life")
    assert started.returncode == 0, started.stderr
    first = show(held, "life")
    assert (first["state"], first["cwd"]) == ("idle", os.path.realpath(held.home))
    assert started.stdout == f"{first['unit']} idle (pid {first['pid']})\n"
    assert run(held, "kernel", "start", "life").stdout == started.stdout
    assert str(first["id"]) in run(held, "kernel", "list").stdout
    assert str(first["id"]) in run(held, "kernel", "list", "-q").stdout.split()
    run(held, "exec", "gone = 1", "--kernel", "life")
    assert run(held, "kernel", "restart", "life").returncode == 0
    second = show(held, "life")
    assert second["pid"] != first["pid"]
    assert "NameError" in run(held, "exec", "gone", "--kernel", "life").stderr
    assert run(held, "kernel", "stop", "life").stdout == f"{first['unit']} stopped\n"
    assert not alive(int(str(second["pid"])))
    assert show(held, "life")["state"] == "stopped"


def test_general_commands_know_kernels(held: House) -> None:
    run(held, "exec", "print('hello')", "--kernel", "general")
    unit = str(show(held, "general")["unit"])
    assert unit in run(held, "status").stdout
    assert run(held, "status", "kernel:general").returncode == 0
    assert run(held, "wait", unit).stdout == f"{unit} idle\n"
    assert run(held, "why", "kernel:general").stdout.startswith(f"{unit} is idle\n")
    assert "ready" in run(held, "events", "--unit", unit).stdout
    logs = run(held, "logs", unit)
    assert (logs.returncode, logs.stdout) == (0, "")
    assert "pxctl kernel export general" in logs.stderr
    assert run(held, "restart", "kernel:general").stdout.startswith(f"{unit} idle (pid ")
    assert run(held, "stop", "kernel:general").stdout == f"{unit} stopped\n"
    assert run(held, "status", unit).returncode == 3
    assert run(held, "why", unit).stdout.startswith(f"{unit} is stopped (stopped)\n")
    assert run(held, "wait", unit, "--for", "stopped").stdout == f"{unit} stopped (stopped)\n"
    assert run(held, "start", unit).stdout.startswith(f"{unit} idle (pid ")


def test_stop_takes_globs_of_names(held: House) -> None:
    for name in ("globbed-a", "globbed-b"):
        run(held, "exec", "1", "--kernel", name)
    ended = run(held, "kernel", "stop", "globbed-*")
    assert ended.returncode == 0
    assert [line.split()[1] for line in ended.stdout.splitlines()] == ["stopped", "stopped"]


def test_among_sessions_of_one_name_that_of_the_folder_is_meant(held: House) -> None:
    folders = [held.home / "here", held.home / "there"]
    for folder in folders:
        folder.mkdir()
        assert run(held, "exec", "1", "--kernel", "twins", cwd=folder).returncode == 0
    for folder in folders:
        shown = json.loads(run(held, "kernel", "show", "twins", "--json", cwd=folder).stdout)
        assert shown["cwd"] == os.path.realpath(folder)
    elsewhere = run(held, "kernel", "show", "twins")
    assert elsewhere.returncode == 2
    assert elsewhere.stderr.count("candidate: kernel:twins-") == 2
    assert run(held, "kernel", "show", "twins", "--cwd", "here").returncode == 0
    assert run(held, "exec", "--bash", "true", "--kernel", "twins", cwd=folders[0]).returncode == 0
    shown = json.loads(run(held, "kernel", "show", "twins", "--json", cwd=folders[0]).stdout)
    assert shown["backend"] != "bash", "a bare name means the Python session"


def test_interrupt_ends_the_running_cell_of_somebody_else(held: House) -> None:
    code = "print('begun', flush=True)\nimport time; time.sleep(1000)"
    process = beside(
        [BIN / "pxctl", "exec", code, "--kernel", "busy", "--timeout", "120"], env=held.environ, cwd=held.home,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert "sigint" in run(held, "kernel", "interrupt", "busy").stdout
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "variables are kept" in errors
    assert run(held, "kernel", "interrupt", "busy").stdout.endswith(" no cell is running\n")


def test_a_real_console_joins_the_live_session(held: House, require: Callable[[object, str], None]) -> None:
    require((BIN / "jupyter-console").exists(), "needs jupyter_console")
    run(held, "exec", "shared = 20", "--kernel", "joined")
    command = shlex.split(run(held, "kernel", "attach", "joined").stdout)
    assert command[1] == "--existing"

    def shown() -> str:
        return subprocess.run(
            [*command, "--simple-prompt", "--no-confirm-exit"], env={**held.environ, "HOME": str(held.home)},
            cwd=held.home, input="seen = shared + 22\nprint('console', seen)\n", stdout=-1, stderr=-2, text=True,
            timeout=DEADLINE, check=False,
        ).stdout  # fmt: skip

    # Without a heartbeat for a second a console waits for nothing, and leaves at the end of its input.
    until(lambda: "console 42" in shown(), "the console shows what its cell printed")
    assert run(held, "exec", "seen", "--kernel", "joined").stdout == "42\n"


@pytest.mark.deep
def test_the_history_is_exported_also_of_a_stopped_session(held: House) -> None:
    codes = ["print('x' * 200_000)", "import sys; print('err', file=sys.stderr); 1 / 0"]
    for code in codes:
        run(held, "exec", code, "--kernel", "past")
    run(held, "kernel", "stop", "past")
    path = held.home / "past.ipynb"
    assert run(held, "kernel", "export", "past", "-o", str(path)).returncode == 0
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if cell.cell_type == "code"] == codes
    assert any(output["output_type"] == "error" for cell in notebook.cells for output in cell.get("outputs", []))
    assert json.loads(run(held, "kernel", "export", "past").stdout)["nbformat"] == 4
