"""What cells do to their own kernel: a clear error each time, no byte lost in silence, and nobody else notices.

Every test ends with a look at a second session: it keeps its process and its variables.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from e2e.house import House, alive, until, written_pid
from e2e.kernel_house import cells, events, kernels_house, output, row, run, value

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def served() -> Iterator[House]:
    with kernels_house() as made:
        assert run(made, "other", "keep = 42").ok
        yield made


@pytest.fixture
def home(served: House) -> Iterator[House]:
    """The house, and afterwards proof that the session beside the test's own was not touched."""
    pid = row(served, "other")["pid"]
    yield served
    assert (value(served, "other", "keep"), row(served, "other")["pid"]) == ("42", pid)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os; os._exit(3)", "code 3"),
        ("import os; os._exit(0)", "code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.closerange(3, 300)", ""),
    ],
)
def test_a_cell_that_ends_its_process_is_told_and_never_run_again(home: House, code: str, word: str) -> None:
    marks = home.home / "marks"
    marks.write_text("")
    call = run(
        home, "hurts", f"with open({str(marks)!r}, 'a') as f: _ = f.write('ran ')\nprint('before', flush=True)\n{code}"
    )
    assert (call["status"], call["variables"]) == ("error", "lost"), call.document
    assert call.cell["error"]["name"] == "KernelDied"
    assert word in call["message"], call.document
    assert "before" in call.text, "what it printed before is there"
    assert run(home, "hurts", "1").ok
    assert marks.read_text() == "ran "


def test_the_last_words_of_a_kernel_are_its_own(home: House) -> None:
    """No banner of somebody else's, nothing at all where it said nothing."""
    assert "ipython/issues" not in run(home, "silent", "import os; os._exit(3)").told
    assert run(home, "silent", "1").ok
    # What lies in the pipe dies with the process that reads it: only a print waits until it is read.
    falls = "import os; os.write(2, b'I fall'); print(flush=True); os._exit(3)"
    assert "I fall" in run(home, "silent", falls).cell["text"]
    assert run(home, "silent", "1").ok


def test_cells_after_one_that_ends_the_kernel_are_not_run(home: House) -> None:
    made = [
        {"code": "x = 1", "title": "first"},
        {"code": "import os; os._exit(1)", "title": "bad"},
        {"code": "x", "title": "last"},
    ]
    call = run(home, "list", cells=made)
    assert [cell["status"] for cell in call["cells"]] == ["ok", "error", "aborted"], call.document
    assert "2 of 3" in call["message"]
    assert call["variables"] == "lost"


def test_a_fork_bomb_meets_the_limit_of_processes(home: House, require_root: None) -> None:
    """The bomb is one of a bounded size, and sheds root first: no limit of processes binds root."""
    with kernels_house(PX_KERNELS__PROCESSES="40") as limited:
        assert run(limited, "beside", "keep = 1").ok
        code = """
import os, signal, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setgroups([]); os.setresgid(64321, 64321, 64321); os.setresuid(64321, 64321, 64321)
    made = 0
    try:
        while made < 400:
            if os.fork() == 0:
                while True: time.sleep(1000)
            made += 1
    except OSError as error:
        os.write(writer, f"{made} {error.strerror}".encode())
    os.close(writer)
    while True: time.sleep(1000)
os.close(writer)
print(os.read(reader, 1000).decode())
"""
        call = run(limited, "bomb", code)
        assert call.ok, call.document
        made, _, why = call.text.partition(" ")
        assert int(made) < 40, "the limit binds"
        assert "temporarily unavailable" in why
        pid = row(limited, "bomb")["pid"]
        assert limited.pxctl("kernel", "stop", row(limited, "bomb")["id"]).returncode == 0
        assert not alive(pid)
        left = [p for p in os.listdir("/proc") if p.isdigit() and owner(p) == 64321 and alive(int(p))]
        assert not left, "none of the bomb is left"
        assert value(limited, "beside", "keep") == "1"


def owner(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def test_input_is_answered_with_a_clear_failure(home: House) -> None:
    """Nobody waits for somebody to type, also not in a shell cell or in a child."""
    call = run(home, "asks", "name = input('name?')")
    assert (call["status"], call["variables"]) == ("error", "kept")
    assert "input" in call["message"]
    assert run(home, "asks", "import getpass; getpass.getpass()")["status"] == "error"
    child = "import subprocess; subprocess.run('read line; echo got:$line', shell=True)"
    assert run(home, "asks", child).text.startswith("got:")
    assert run(home, "asks", 'read line; echo "got:$line"', language="bash").text == "got:"


def test_magics_and_shell_escapes_work_and_fail_like_others(home: House) -> None:
    assert run(home, "magic", "!echo one; echo two >&2").text == "one\ntwo"
    assert run(home, "magic", "%nosuchmagic")["status"] == "error"
    assert run(home, "magic", "%%bash\nexit 3")["status"] == "error"
    assert run(home, "magic", "x = 5\n%reset -f\ntry: x\nexcept NameError: print('reset')").text == "reset"


@pytest.mark.parametrize(
    "code",
    [
        "import sys, io; sys.stdout = io.StringIO(); sys.stderr = None; print('away')",
        "import os; os.close(1); os.close(2)",
        "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
        "import os; os.chdir('/'); os.environ.clear()",
        "import sys; sys.path[:] = []; sys.modules.clear()",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "import builtins; builtins.print = None; builtins.open = None",
        "get_ipython().display_formatter = None",
        "import threading, time; [threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(20)]",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    ],
    ids=lambda code: code[:40],
)
def test_a_cell_that_ruins_its_own_kernel_is_answered_and_reset_repairs_it(home: House, code: str) -> None:
    run(home, "ruins", "1")
    call = run(home, "ruins", f"x = 1\n{code}", timeout=5)
    assert call.status == 200, call.document
    again = run(home, "ruins", "print('well')", reset=True)
    assert (again.ok, again.text) == (True, "well"), again.document


def test_a_kernel_whose_stdout_was_closed_prints_on(home: House) -> None:
    """print() does not go through fd 1; the next cell's children get a working one again or a plain error."""
    assert run(home, "closed", "import os; os.close(1)").ok
    assert run(home, "closed", "print('still')").text == "still"


def test_a_cell_that_deletes_the_cells_folder(home: House) -> None:
    """Its own output may be gone, and then that is told; whatever is printed from then on is kept again."""
    folder = home.home / "state" / "cells"
    call = run(home, "deletes", f"import shutil; shutil.rmtree({str(folder)!r}); print('x' * 10)")
    assert call.status == 200
    assert call.text == "x" * 10 or call.cell["lossy"] or call.cell["notices"], call.document
    assert run(home, "deletes", "print('again')").text == "again"
    assert run(home, "other", "print('mine')").text == "mine", "other sessions print on"
    assert run(home, "deletes-new", "print('new')").text == "new"


def test_late_output_belongs_to_the_cell_that_began_it(home: House) -> None:
    go = home.home / "go"
    go.unlink(missing_ok=True)
    code = f"""import os, threading, time
def late():
    while not os.path.exists({str(go)!r}): time.sleep(0.01)
    print('late')
threading.Thread(target=late).start()
print('now')"""
    first = run(home, "late", code)
    assert first.text == "now"
    second = run(home, "late", "print('second')")
    go.touch()
    until(lambda: output(home, "late", first.cell["id"]) == b"now\nlate\n", "the late line is with its cell")
    assert (second.text, output(home, "late", second.cell["id"])) == ("second", b"second\n")


def test_bytes_that_are_no_text_are_kept_as_they_came(home: House) -> None:
    call = run(home, "bytes", "import os; os.write(1, bytes(range(256)) * 4)")
    assert call.ok
    assert output(home, "bytes", call.cell["id"]) == bytes(range(256)) * 4
    json.dumps(call.document).encode()


def test_megabytes_of_code_run_and_sixteen_are_refused(home: House) -> None:
    assert run(home, "huge", f"x = '''{'y' * 2_000_000}'''; print(len(x))").text == "2000000"
    body = b'{"code": "' + b"y" * 17 * 2**20 + b'"}'
    answer = home.request("POST", "/api/kernels/huge/execute", body)
    assert (answer.status, answer.json()["limit_bytes"], bool(answer.json()["hint"])) == (413, 16 * 2**20, True)


def test_ten_thousand_cells_in_one_call(home: House) -> None:
    """One answer for each cell, whichever fails; the daemon serves others meanwhile."""
    many = [{"code": "n = 0"}, *[{"code": "n += 1"}] * 200, {"code": "1/0"}, *[{"code": "n += 1"}] * 9798]
    call = run(home, "many", cells=many, seconds=110)
    assert len(call["cells"]) == 10_000
    assert [cell["status"] for cell in call["cells"][200:203]] == ["ok", "error", "aborted"]
    assert "202 of 10000" in call["message"]
    assert value(home, "many", "n") == "200"
    assert len(cells(home, "many")) == 202 + 1 or len(cells(home, "many")) == 10_001


def test_a_second_call_finds_the_truth_in_why_and_events(home: House) -> None:
    assert run(home, "truth", "import os; os._exit(5)")["variables"] == "lost"
    # The call is answered as soon as it is known how the kernel ended; the event comes when all of it is gone.
    died = until(lambda: [e for e in events(home, "truth") if e["event"] == "died"], "the death is among the events")
    assert [(e["reason"], e["code"]) for e in died] == [("exit", 5)]
    done = home.pxctl("why", f"kernel:{row(home, 'truth')['id']}")
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr


def test_children_of_a_cell_that_hold_its_output_open_do_not_hold_the_call(home: House) -> None:
    """The cell has ended though its child lives on with its stdout."""
    mark = home.home / "holder"
    mark.unlink(missing_ok=True)
    code = f"import subprocess; p = subprocess.Popen(['sleep', '1000']); _ = open({str(mark)!r}, 'w').write(str(p.pid))"
    assert run(home, "holds", code).ok
    child = written_pid(mark)
    assert alive(child)
    shell = run(home, "holds", "sleep 1000 & echo started", language="bash")
    assert (shell.ok, shell.text) == (True, "started"), shell.document
    for kernel in [k for k in home.get("/api/kernels")["kernels"] if k["name"] == "holds"]:
        home.request("DELETE", f"/api/kernels/{kernel['id']}")
    until(lambda: not alive(child), "a stop takes the child along")


def test_nothing_of_a_call_is_in_a_command_line(home: House) -> None:
    """Code may hold secrets: other users can read command lines."""
    run(home, "secret", "password = 'hunter2hunter2'")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "hunter2hunter2" not in listed
