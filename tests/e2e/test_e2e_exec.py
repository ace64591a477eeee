"""`pxctl exec` as installed, with real kernels: what comes out, what is lost and what is not, how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import warm_client
from beside import beside
from e2e.house import BIN, DEADLINE, House, house, until

GENERATE = "import sys\nfor at in range(5000): sys.stdout.write(f'{at:08d} ' + 'x' * 1015 + '\\n')"
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def held() -> Iterator[House]:
    """A house whose daemon serves all tests of this file; most of them use its session `stay`."""
    # An interrupt has long enough to show itself: a kernel that this machine lets wait is not taken for a deaf one.
    with house({"PX_KERNELS__LADDER_TERMINATE_SECONDS": "10", "PX_KERNELS__LADDER_KILL_SECONDS": "11"}) as made:
        made.measured = True
        made.start()
        yield made


def spawn(home: House, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
    return beside(
        [BIN / "pxctl", *arguments], env=home.environ, cwd=home.home, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings,
    )  # fmt: skip


def run(home: House, *arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return warm_client.run(
        [BIN / "pxctl", *arguments], env=home.environ, cwd=home.home, input=given if given is not None else b"",
        capture_output=True, timeout=DEADLINE, check=False,
    )  # fmt: skip


def execute(home: House, kernel: str, code: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    return run(home, "exec", code, "--kernel", kernel, *options)


# -- sessions and results ---------------------------------------------------------------------------------------------


def test_variables_stay_for_the_next_call_and_not_for_a_call_of_its_own(held: House) -> None:
    assert execute(held, "stay", "x = 6 * 7; print('set')").stdout == b"set\n"
    assert execute(held, "stay", "x + 1").stdout == b"43\n"
    alone = execute(held, "stay", "x", "--per-call")
    assert alone.returncode == 1
    assert b"NameError" in alone.stderr
    assert b"NameError" in execute(held, "stay", "x", "--reset").stderr


def test_streams_results_and_displays_go_where_programs_expect_them(held: House) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); display({'a': 1}); 2 + 2"
    ended = execute(held, "stay", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"out\n{'a': 1}\n4\n", b"err\n")


@pytest.mark.deep
def test_output_that_a_full_disk_did_not_take_is_a_failure_that_says_so(require_root: None) -> None:
    with house() as home:
        cells = home.home / "state" / "cells"
        cells.mkdir(parents=True, mode=0o700)
        cells.parent.chmod(0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "px", cells], check=True)
        try:
            home.start()
            assert execute(home, "full", "mine = 1").returncode == 0
            for left in (0, 8192):  # not even the record of the end fits; all but the output fits
                with contextlib.suppress(OSError), (cells / "filler").open("wb", buffering=0) as filler:
                    while filler.write(b"x" * 4096):
                        pass
                os.truncate(cells / "filler", (cells / "filler").stat().st_size - left)
                ended = execute(home, "full", "mine += 1; print('y' * 100_000)")
                assert ended.returncode == 1, ended
                assert b"not kept" in ended.stderr, ended
                (cells / "filler").unlink()
            kept = execute(home, "full", "print(mine)")
            assert (kept.returncode, kept.stdout) == (0, b"3\n"), kept
            assert home.stop() == 0
        finally:
            home.tear_down()
            subprocess.run(["umount", "-l", cells], check=False)


def test_code_comes_from_stdin_or_a_shell(held: House) -> None:
    assert run(held, "exec", "--kernel", "piped", given=b"print('from stdin')\n").stdout == b"from stdin\n"
    shell = execute(held, "shell", "echo $((6 * 7)); echo oh >&2; exit 3", "--bash")
    assert (shell.returncode, shell.stdout) == (3, b"42\noh\n")
    assert b"ExitCode: 3" in shell.stderr


def test_json_is_the_document_of_the_contract(held: House) -> None:
    document = json.loads(execute(held, "stay", "print('hi'); 1 / 0", "--json").stdout)
    assert document["schema"] == "px.exec/1"
    assert {"kernel", "cwd", "interpreter", "variables", "cells"} <= document.keys()
    cell = document["cells"][0]
    assert (cell["status"], cell["error"]["name"], document["variables"]) == ("error", "ZeroDivisionError", "kept")
    assert {"id", "title", "text", "outputs", "truncated", "artifact", "total_bytes", "duration_seconds", "steps"} <= (
        cell.keys()
    )


# -- nothing is lost --------------------------------------------------------------------------------------------------


def test_five_megabytes_come_out_of_a_pipe_as_they_were_printed(held: House) -> None:
    expected = b"".join(b"%08d " % at + b"x" * 1015 + b"\n" for at in range(5000))
    ended = execute(held, "stay", GENERATE)
    assert ended.returncode == 0
    assert hashlib.sha256(ended.stdout).digest() == hashlib.sha256(expected).digest()


def test_bytes_that_are_no_text_come_out_unchanged(held: House) -> None:
    code = "import os\nfor _ in range(3): os.write(1, bytes(range(256)))\nimport sys; sys.stdout.flush()"
    assert execute(held, "stay", code).stdout == bytes(range(256)) * 3


def _state(home: House, kernel: str) -> str | None:
    kernels = home.get("/api/kernels")["kernels"]
    return next((one["state"] for one in kernels if one["name"] == kernel and one["last_used"]), None)


# -- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "options", "exit_code", "words"),
    [
        ("killed", "import os; os._exit(3)", (), 1, "variables are lost"),
        ("left", "exit()", (), 0, "Variables are gone"),
        ("stay", "1", ("--timeout", "100000"), 0, "timeout 100000 s was cut to 600 s"),
    ],
)
def test_the_exit_code_and_the_words_say_what_happened(
    held: House, name: str, code: str, options: tuple[str, ...], exit_code: int, words: str
) -> None:
    ended = execute(held, name, code, *options)
    assert (ended.returncode, words in ended.stderr.decode()) == (exit_code, True), ended.stderr.decode()


def test_a_cell_that_runs_out_of_time_exits_7_and_tells_of_the_variables(held: House) -> None:
    execute(held, "stay", "kept = 1")
    ended = execute(held, "stay", "import time; time.sleep(1000)", "--timeout", "2")
    assert (ended.returncode, b"variables are kept" in ended.stderr) == (7, True), ended.stderr
    assert b"hint: give it longer: pxctl exec --timeout S" in ended.stderr
    assert execute(held, "stay", "kept").stdout == b"1\n"


def test_a_cell_that_calls_its_own_session_is_refused_and_not_deadlocked(held: House) -> None:
    code = "answer = run('pxctl exec 1 --kernel nested'); print(answer.returncode, answer.stderr)"
    ended = execute(held, "nested", code)
    assert ended.stdout.startswith(b"8 ")
    assert b"neither would ever end" in ended.stdout
    other = "answer = run('pxctl exec 40+2 --kernel nested-other'); print(answer.stdout)"
    assert execute(held, "nested", other).stdout == b"42\n\n"


def test_ctrl_c_interrupts_the_cell_and_keeps_the_variables(held: House) -> None:
    code = "kept = 5; print('going', flush=True)\nimport time; time.sleep(1000)"
    process = spawn(held, "exec", code, "--kernel", "stay", "--timeout", "120")
    assert process.stdout is not None
    assert process.stdout.readline() == b"going\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert b"variables are kept" in errors
    assert execute(held, "stay", "kept").stdout == b"5\n"


def test_ctrl_c_while_waiting_leaves_the_line_and_the_running_cell_alone(held: House) -> None:
    go = held.home / "go-line"
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    code = f"import os, time\nprint(1, flush=True)\n{wait}\nprint('whole')"
    first = spawn(held, "exec", code, "--kernel", "line", "--timeout", "110")
    assert first.stdout is not None
    assert first.stdout.readline() == b"1\n"
    second = spawn(held, "exec", "2", "--kernel", "line", "--timeout", "110")
    until(lambda: _queued(held, "line") == 1, "the second call waits")
    second.send_signal(signal.SIGINT)
    _, errors = second.communicate(timeout=DEADLINE)
    assert (second.returncode, b"cancelled" in errors) == (1, True)
    go.touch()
    output, _ = first.communicate(timeout=DEADLINE)
    assert (first.returncode, output) == (0, b"whole\n")


def _queued(home: House, kernel: str) -> int:
    return sum(one["queued"] for one in home.get("/api/kernels")["kernels"] if one["name"] == kernel)


@pytest.mark.deep
def test_exec_starts_the_daemon_unless_told_not_to(home: House) -> None:
    refused = run(home, "exec", "1", "--no-autostart")
    assert (refused.returncode, b"hint: pxctl daemon start" in refused.stderr) == (5, True)
    try:
        ended = run(home, "exec", "1 + 1")
        assert (ended.returncode, ended.stdout) == (0, b"2\n")
    finally:
        run(home, "daemon", "stop")


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_script_runs_cell_by_cell_and_stops_at_the_first_failure(held: House) -> None:
    script = held.home / "steps.py"
    script.write_text(
        "# %% load\nprint('one')\n# %% [markdown]\n# words\n# %% bad\n1 / 0\n# %% never\nprint('three')\n"
    )
    ended = run(held, "exec", "-f", str(script), "--kernel", "stay")
    assert (ended.returncode, ended.stdout) == (1, b"one\n")
    words = ended.stderr.decode()
    assert "load" in words
    assert "Cell 2 of 3 (bad) failed (ZeroDivisionError). Cell 3 was not run." in words


def notebook(path: Path, *sources: str) -> None:
    cells = [nbformat.v4.new_markdown_cell("# words"), *map(nbformat.v4.new_code_cell, sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def test_a_notebook_is_executed_and_saved(held: House) -> None:
    given, made = held.home / "given.ipynb", held.home / "made.ipynb"
    notebook(given, "x = 2\nprint('two')", "x * 21")
    before = given.read_bytes()
    ended = run(held, "exec", "-f", str(given), "-o", str(made), "--kernel", "stay")
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout == b"two\n42\n"
    assert given.read_bytes() == before
    executed = nbformat.read(made, as_version=4)
    nbformat.validate(executed)
    assert executed.cells[1].outputs[0]["text"] == "two\n"
    assert executed.cells[2].outputs[0]["data"]["text/plain"] == "42"
    notebook(given, "print('before')", "1 / 0", "print('never')")
    assert run(held, "exec", "-f", str(given), "-o", str(given), "--kernel", "stay").returncode == 1
    cells = nbformat.read(given, as_version=4).cells
    assert (cells[2].outputs[0]["ename"], cells[3].outputs) == ("ZeroDivisionError", [])


# -- on a terminal ----------------------------------------------------------------------------------------------------


class Screen:
    """A `pxctl exec` on a pseudo-terminal that is its controlling one."""

    def __init__(self, home: House, *arguments: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = beside(
            ["setsid", "--ctty", BIN / "pxctl", *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=home.home,
            env={**home.environ, "TERM": "xterm", "NO_COLOR": "1", **env},
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def see(self, wanted: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while wanted.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen.decode()
            assert self._read(), self.seen.decode()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait(DEADLINE)

    def _read(self) -> bool:
        assert select.select([self._master], [], [], DEADLINE)[0], self.seen.decode()
        with contextlib.suppress(OSError):
            piece = os.read(self._master, 65536)
            self.seen += piece
            return bool(piece)
        return False


def test_a_terminal_shows_headers_and_pictures_saved(held: House) -> None:
    script = held.home / "look.py"
    script.write_text(
        "# %% lines\nprint('line')\n"
        f"# %% picture\nimport base64\nfrom IPython.display import Image\nImage(base64.b64decode({PICTURE!r}))\n"
    )
    screen = Screen(held, "exec", "-f", str(script), "--kernel", "stay")
    assert screen.end() == 0
    text = screen.seen.decode()
    assert "line\r\n" in text
    assert text.count("✓ ") == 2
    saved = text.partition("saved: ")[2].split("\r\n")[0]
    assert saved.startswith(str(held.home / "pictures"))
    assert os.path.getsize(saved) == 70


def test_ctrl_c_on_a_terminal_reaches_the_cell(held: House) -> None:
    code = "here = 1; print('go' + 'ing', flush=True)\nimport time; time.sleep(1000)"  # a screen may show the code, too
    screen = Screen(held, "exec", code, "--kernel", "stay", "--timeout", "120")
    screen.see("going")
    screen.type("\x03")
    assert screen.end() == 1
    assert "variables are kept" in screen.seen.decode()
    assert execute(held, "stay", "here").stdout == b"1\n"
