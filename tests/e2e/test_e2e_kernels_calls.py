"""`pxctl exec`, `pxctl kernel …` and `POST …/execute` on real kernels: what a call gives, and
how it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from e2e.house import BIN, DEADLINE, house, of_module, small_disk, until
from e2e.kernel_house import PATIENT, Calls, kernels_house

KERNEL_KEYS = {
    "id", "name", "cwd", "interpreter", "backend", "state", "pid", "queued", "last_used",
    "started_at", "rss_bytes", "reason",
}  # fmt: skip
CELL_KEYS = {
    "id", "title", "status", "text", "outputs", "error", "truncated", "artifact", "total_bytes",
    "duration_seconds", "steps",
}  # fmt: skip
calls = of_module(kernels_house, {**PATIENT, "PX_KERNELS__TIMEOUT_MIN_SECONDS": "1"}, measured=True)


def execute(
    calls: Calls, kernel: str, code: str, *options: str, **how: Any
) -> subprocess.CompletedProcess[Any]:
    return calls.house.pxctl("exec", code, "--kernel", kernel, *options, **how)


def test_variables_stay_also_when_a_cell_runs_out_of_time_and_are_not_there_for_a_call_of_its_own(
    calls: Calls,
) -> None:
    assert execute(calls, "stay", "x = 6 * 7; print('set')").stdout == "set\n"
    assert execute(calls, "stay", "x + 1").stdout == "43\n"
    alone = execute(calls, "stay", "x", "--per-call")
    assert (alone.returncode, "NameError" in alone.stderr) == (1, True)
    late = execute(calls, "stay", "import time; time.sleep(1000)", "--timeout", "2")
    assert (late.returncode, "variables are kept" in late.stderr) == (7, True), late.stderr
    assert "hint: give it longer: pxctl exec --timeout S" in late.stderr
    assert execute(calls, "stay", "x").stdout == "42\n"
    assert "NameError" in execute(calls, "stay", "x", "--reset").stderr


def test_streams_results_and_displays_go_where_programs_expect_them_and_no_byte_is_lost(
    calls: Calls,
) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); display({'a': 1}); 2 + 2"
    ended = execute(calls, "stay", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "out\n{'a': 1}\n4\n", "err\n")
    code = "import sys\nfor at in range(5000): sys.stdout.write(f'{at:08d} ' + 'x' * 1015 + '\\n')"
    assert execute(calls, "stay", code).stdout == "".join(
        f"{at:08d} " + "x" * 1015 + "\n" for at in range(5000)
    )
    code = "import os\nfor _ in range(3): os.write(1, bytes(range(256)))"
    assert execute(calls, "stay", code, text=False).stdout == bytes(range(256)) * 3


def test_code_comes_from_stdin_or_a_shell_whose_exit_code_is_passed_on(calls: Calls) -> None:
    piped = calls.house.pxctl("exec", "--kernel", "piped", input="print('from stdin')\n")
    assert piped.stdout == "from stdin\n"
    shell = execute(calls, "shell", "echo $((6 * 7)); echo oh >&2; exit 3", "--bash")
    assert (shell.returncode, shell.stdout) == (3, "42\noh\n")
    assert "ExitCode: 3" in shell.stderr
    many = execute(calls, "shell", "head -c 300000 /dev/zero | tr '\\0' x", "--bash")
    assert (many.returncode, many.stdout) == (0, "x" * 300_000)
    call = calls.run("shell", ["echo out; echo err >&2", "exit 3", "touch ran"], language="bash")
    assert (call.statuses, call["cells"][0]["text"]) == (["ok", "error", "aborted"], "out\nerr\n")
    assert not (calls.house.home / "ran").exists()


def test_ctrl_c_interrupts_the_cell_and_keeps_the_variables(calls: Calls) -> None:
    code = "kept = 5; print('going', flush=True)\nimport time; time.sleep(1000)"
    process = calls.house.pxctl_later("exec", code, "--kernel", "stay", "--timeout", "120")
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, "variables are kept" in errors) == (1, True)
    assert execute(calls, "stay", "kept").stdout == "5\n"


RAW = """
import http.client, os, socket
client = http.client.HTTPConnection("px", timeout=30)
client.sock = socket.socket(socket.AF_UNIX)
client.sock.connect(os.environ["PX_SOCKET"])
kind = {{"Content-Type": "application/json"}}
client.request("POST", "/api/kernels/{session}/execute", '{{"code": "1", "cwd": "{cwd}"}}', kind)
print(client.getresponse().status)
"""


def test_a_cell_that_calls_its_own_session_is_refused_and_not_deadlocked(calls: Calls) -> None:
    """Whoever speaks for it: it is known by its process. Another session may be called."""
    code = "answer = run('pxctl exec 1 --kernel nested'); print(answer.returncode, answer.stderr)"
    told = execute(calls, "nested", code).stdout
    assert (told[:2], "neither would ever end" in told) == ("8 ", True)
    for session, status in (("nested", "409"), ("nested-other", "200")):
        assert calls.value("nested", RAW.format(session=session, cwd=calls.cwd)) == status


def test_a_script_runs_cell_by_cell_and_stops_at_the_first_failure(calls: Calls) -> None:
    script = calls.house.home / "steps.py"
    script.write_text(
        "# %% load\nprint('one')\n# %% [markdown]\n# words\n# %% bad\n1 / 0\n# %% never\nprint(3)\n"
    )
    ended = calls.house.pxctl("exec", "-f", str(script), "--kernel", "stay")
    assert (ended.returncode, ended.stdout) == (1, "one\n")
    assert "Cell 2 of 3 (bad) failed (ZeroDivisionError). Cell 3 was not run." in ended.stderr


def notebook(path: Path, *sources: str) -> Any:
    """Write one whose code cells have an old output and a count, and return it."""
    old = {"outputs": [nbformat.v4.new_output("stream", text="old")], "execution_count": 99}
    cells = [nbformat.v4.new_markdown_cell("# words", metadata={"a": 1})]
    cells += [
        nbformat.v4.new_code_cell(source, metadata={"tags": ["x"]}, **old) for source in sources
    ]
    made = nbformat.v4.new_notebook(cells=cells, metadata={"custom": {"kept": True}})
    nbformat.write(made, path)
    return made


def test_a_notebook_is_executed_and_saved(calls: Calls) -> None:
    given, made = calls.house.home / "given.ipynb", calls.house.home / "made.ipynb"
    written = notebook(given, "x = 2\nprint('two')", "find('nothing*'); x * 21")
    before = given.read_bytes()
    ended = calls.house.pxctl("exec", "-f", str(given), "-o", str(made), "--kernel", "stay")
    assert (ended.returncode, ended.stdout) == (0, "two\n42\n"), ended.stderr
    assert given.read_bytes() == before
    executed = nbformat.read(made, as_version=4)
    nbformat.validate(executed)
    assert executed.cells[1].outputs == [nbformat.v4.new_output("stream", text="two\n")]
    (result,) = executed.cells[2].outputs  # and no event
    assert (result["data"], result["execution_count"]) == (
        {"text/plain": "42"},
        executed.cells[2].execution_count,
    )
    for made in (written, executed):  # what is the user's stays as it was
        for cell in made.cells[1:]:
            cell.outputs, cell.execution_count = [], None
        made.metadata = {"custom": made.metadata.custom}
    assert executed == written
    notebook(given, "print('before')", "1 / 0", "print('never')")
    assert (
        calls.house.pxctl("exec", "-f", str(given), "-o", str(given), "--kernel", "stay").returncode
        == 1
    )
    cells = nbformat.read(given, as_version=4).cells
    assert (cells[2].outputs[0]["ename"], cells[3].outputs) == ("ZeroDivisionError", [])
    assert cells[3].execution_count is None


@pytest.mark.deep
def test_output_that_a_full_disk_did_not_take_is_a_failure_that_says_so(require_root: None) -> None:
    with house() as home, small_disk(home.home / "state" / "cells", "256k"):
        filler = home.home / "state" / "cells" / "filler"
        home.start()
        calls = Calls(home)
        assert execute(calls, "full", "mine = 1").returncode == 0
        for left in (0, 8192):  # not even the record of the end fits; all but the output fits
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
            os.truncate(filler, filler.stat().st_size - left)
            ended = execute(calls, "full", "mine += 1; print('y' * 100_000)")
            assert (ended.returncode, "not kept" in ended.stderr) == (1, True), ended
            filler.unlink()
        assert execute(calls, "full", "print(mine)").stdout == "3\n"
        home.tear_down()


def test_the_documents_have_every_key_of_the_contract(calls: Calls) -> None:
    document = json.loads(execute(calls, "keys", "print('hi'); 1 / 0", "--json").stdout)
    assert document["schema"] == "px.exec/1"
    assert {"kernel", "cwd", "interpreter", "variables", "cells"} <= document.keys()
    (cell,) = document["cells"]
    assert cell.keys() >= CELL_KEYS
    assert (cell["status"], cell["error"]["name"], document["variables"]) == (
        "error",
        "ZeroDivisionError",
        "kept",
    )
    listed = calls.house.json("kernel", "list")
    assert listed["schema"] == "px.kernels/1"
    assert all(set(item) >= KERNEL_KEYS for item in listed["kernels"])
    shown = calls.show("keys")
    assert (shown["id"], shown["pid"] > 0, shown["rss_bytes"] > 1_000_000) == (
        document["kernel"],
        True,
        True,
    )
    assert all(shown[name].endswith("Z") for name in ("last_used", "started_at"))


def test_the_stream_tells_the_call_in_order(calls: Calls) -> None:
    calls.run("told", "1", reset=True)
    with calls.stream("told", [{"code": "print('a')", "title": "one"}, "2", "1 / 0"]) as stream:
        events = stream.rest()
    named: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        named.setdefault(event["event"], []).append(event)
    order = [event["event"] for event in events]
    assert [name for name in order if name in {"cell_started", "cell_done"}] == [
        "cell_started",
        "cell_done",
    ] * 3
    assert [(it["index"], it["title"]) for it in named["cell_started"]] == [
        (0, "one"),
        (1, None),
        (2, None),
    ]
    done = [event["cell"] for event in named["cell_done"]]
    assert (order[-1], done) == ("done", events[-1]["result"]["cells"])
    assert "".join(event["text"] for event in named["output"]) == "a\n"
    assert {(event["id"], event["stream"]) for event in named["output"]} == {
        (done[0]["id"], "stdout")
    }
    assert named["result"][0]["data"]["text/plain"] == "2"
    assert (named["error"][0]["name"], named["error"][0]["id"]) == (
        "ZeroDivisionError",
        done[2]["id"],
    )


SLOW_CONTROL = """
import os, sys, threading, time
def slowed(publisher, thread, current=threading.current_thread, sleep=time.sleep, say=os.write):
    log = getattr(sys.stderr, "_original_stdstream_copy", 2)
    class Slow:
        def __getattr__(self, name):
            return getattr(thread, name)
        def is_alive(self):
            found = thread.is_alive()
            if found and current().name == "Control":
                sleep(0.05)
                if publisher._event_pipe.closed:
                    say(log, b"too late")
            return found
    return Slow()
publisher = get_ipython().kernel.iopub_thread
publisher.thread = slowed(publisher, publisher.thread)
"""
"""Between asking whether another thread lives, and the use of a socket that this one closes at
its end.
"""


def test_a_kernel_that_ends_waits_for_the_last_words_of_its_threads(calls: Calls) -> None:
    execute(calls, "slow", SLOW_CONTROL)
    unit = calls.show("slow")["unit"]
    assert calls.house.pxctl("kernel", "stop", "slow").returncode == 0
    assert calls.house.pxctl("logs", unit).stdout == ""


def test_a_kernel_is_a_unit_like_any_other(calls: Calls) -> None:
    execute(calls, "general", "print('hello')")
    unit = calls.show("general")["unit"]
    told = {
        ("kernel", "start", "general"): f"{unit} idle (pid ",
        ("kernel", "list", "-q"): calls.show("general")["id"],
        ("kernel", "stop", "gen*"): f"{unit} stopped\n",
        ("kernel", "restart", "general"): f"{unit} idle (pid ",
        ("status", "kernel:general"): unit,
        ("wait", unit): f"{unit} idle\n",
        ("why", "kernel:general"): f"{unit} is idle\n",
        ("restart", "kernel:general"): f"{unit} idle (pid ",
        ("stop", "kernel:general"): f"{unit} stopped\n",
        ("why", unit): f"{unit} is stopped (stopped)\n",
        ("wait", unit, "--for", "stopped"): f"{unit} stopped (stopped)\n",
        ("start", unit): f"{unit} idle (pid ",
    }
    for words, beginning in told.items():
        done = calls.house.pxctl(*words)
        assert (done.returncode, beginning in done.stdout) == (0, True), (words, done)
    logs = calls.house.pxctl("logs", unit)
    assert (logs.returncode, logs.stdout, "pxctl kernel export general" in logs.stderr) == (
        0,
        "",
        True,
    )
    calls.end("general")
    assert calls.house.pxctl("status", unit).returncode == 3
    life = calls.house.events(unit)[-5:]
    assert [event["event"] for event in life] == [
        "starting",
        "spawned",
        "ready",
        "stopping",
        "stopped",
    ]
    assert [event["cause"] for event in life[1:]] == [event["id"] for event in life[:-1]], "a chain"


def test_among_sessions_of_one_name_that_of_the_folder_is_meant(calls: Calls) -> None:
    folders = [calls.house.home / "here", calls.house.home / "there"]
    for folder in folders:
        folder.mkdir()
        assert execute(calls, "twins", "1", cwd=folder).returncode == 0
    for folder in folders:
        shown = json.loads(
            calls.house.pxctl("kernel", "show", "twins", "--json", cwd=folder).stdout
        )
        assert shown["cwd"] == os.path.realpath(folder)
        by_path = (f"twins?cwd={folder}", shown["id"], f"kernel:{shown['id']}")
        assert {calls.show(path)["id"] for path in by_path} == {shown["id"]}
    for command in ("show", "restart"):
        elsewhere = calls.house.pxctl("kernel", command, "twins")
        assert (elsewhere.returncode, elsewhere.stderr.count("candidate: kernel:twins-")) == (2, 2)
    assert execute(calls, "twins", "true", "--bash", cwd=folders[0]).returncode == 0
    shown = json.loads(
        calls.house.pxctl("kernel", "show", "twins", "--json", cwd=folders[0]).stdout
    )
    assert shown["backend"] != "bash", "a bare name means the Python session"


def test_every_command_takes_the_session_of_the_folder(calls: Calls) -> None:
    folders = [calls.house.home / "f1", calls.house.home / "f2"]
    for folder in folders:
        folder.mkdir()
        execute(calls, "both", "1 / 0", cwd=folder)
    for folder in folders:
        session = json.loads(
            calls.house.pxctl("kernel", "show", "both", "--json", cwd=folder).stdout
        )
        for name in ("both", "kernel:both"):
            for command in ("why", "status", "is-active", "wait"):
                done = calls.house.pxctl(command, name, "-q", cwd=folder)
                assert (done.returncode, done.stdout.split()) == (0, [session["unit"]]), (
                    command,
                    done,
                )
            logs = calls.house.pxctl("logs", name, cwd=folder)
            assert (logs.returncode, session["id"] in logs.stderr) == (0, True), logs
            events = calls.house.pxctl("events", "--unit", name, "--json", cwd=folder)
            assert {json.loads(line)["unit"] for line in events.stdout.splitlines()} == {
                session["unit"]
            }, events
            lines = calls.house.pxctl("logs", name, "--grep", "x", cwd=folder)
            assert lines.returncode == 0, lines
        stopped = calls.house.pxctl("stop", "both", "-q", cwd=folder)
        assert stopped.stdout.split() == [session["unit"]], stopped
        assert calls.house.pxctl("is-active", "both", cwd=folder).returncode == 3, (
            "though the other one may live"
        )
    for command in (
        ("why",),
        ("status",),
        ("is-active",),
        ("wait",),
        ("logs",),
        ("events", "--unit"),
    ):
        elsewhere = calls.house.pxctl(*command, "both")
        assert (elsewhere.returncode, elsewhere.stderr.count("candidate: kernel:both-")) == (
            2,
            2,
        ), elsewhere


def test_a_real_console_joins_the_live_session(
    calls: Calls, require: Callable[[object, str], None]
) -> None:
    require((BIN / "jupyter-console").exists(), "needs jupyter_console")
    execute(calls, "joined", "shared = 20")
    command = shlex.split(calls.house.pxctl("kernel", "attach", "joined").stdout)
    assert command[1] == "--existing"

    def shown() -> str:
        return subprocess.run(
            [*command, "--simple-prompt", "--no-confirm-exit"], cwd=calls.cwd, timeout=DEADLINE,
            check=False,
            env={**calls.house.environ, "HOME": calls.cwd},
            input="seen = shared + 22\nprint('console', seen)\n",
            stdout=-1, stderr=-2, text=True,
        ).stdout  # fmt: skip

    # Without a heartbeat for a second a console waits for nothing, and leaves at the end of its
    # input.
    until(lambda: "console 42" in shown(), "the console shows what its cell printed")
    assert execute(calls, "joined", "seen").stdout == "42\n"


def test_the_history_is_listed_and_exported_also_of_a_stopped_session(calls: Calls) -> None:
    calls.run("past", [{"code": "print('x' * 200_000)", "title": "first"}, "6 * 7"])
    execute(calls, "past", "import sys; print('err', file=sys.stderr); 1 / 0")
    calls.end("past")
    cells = calls.history("past")
    assert [(cell["title"], cell["status"]) for cell in cells] == [
        ("first", "ok"),
        (None, "ok"),
        (None, "error"),
    ]
    path = calls.house.home / "past.ipynb"
    assert calls.house.pxctl("kernel", "export", "past", "-o", str(path)).returncode == 0
    saved = nbformat.reads(calls.house.pxctl("kernel", "export", "past").stdout, as_version=4)
    assert saved == nbformat.read(path, as_version=4)
    code = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == [cell["code"] for cell in cells]
    assert code[1].outputs[0]["data"]["text/plain"] == "42"
