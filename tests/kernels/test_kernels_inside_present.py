"""What is printed now is output of the cell that runs now, whichever cell started the thread,
child or pool.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from kernels.cell_folder import log_of
from kernels.inside_rig import InsideRig, kernel, ours
from supervisord_py.kernels.cell_files import Piece, Reading
from supervisord_py.kernels.inside import streams
from waiting import until

READY = "import os, subprocess, sys, threading, time\nprint('ready')"
WORKER = "def wait_for(path):\n    while not os.path.exists(path): time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def rig(python: str) -> Iterator[InsideRig]:
    with kernel(ours(python)) as made:
        made.good(READY + "\n" + WORKER)
        yield made


def text_of(rig: InsideRig, cell: str, stream: str = "stdout") -> str:
    """Return what the daemon reads of a cell."""
    log = log_of(rig.cells, cell)
    return log.read(stream, 0, log.size(stream)).decode()


SHELL = "while read line; do echo got $line; echo $line >&2; done"
MAKERS = {
    "spawned pool": (
        "import multiprocessing as m; from concurrent.futures import ProcessPoolExecutor as P\n"
        "ex = P(1, mp_context=m.get_context('spawn')); ex.submit(print, 'one', "
        "flush=True).result()",
        "ex.submit(print, 'two', flush=True).result(); print('end')",
        "ex.shutdown()",
    ),
    "forked pool": (
        "import multiprocessing as m\npool = m.get_context('fork').Pool(1); pool.apply(print, "
        "('one',))",
        "pool.apply(print, ('two',)); print('end')",
        "pool.close(); pool.join()",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor as T\nex = T(1); ex.submit(print, "
        "'one').result()",
        "ex.submit(print, 'two').result(); print('end')",
        "ex.shutdown()",
    ),
    "thread": (
        "turn = threading.Event()\n"
        "def speak():\n    print('one'); first.set(); turn.wait(); print('two'); second.set()\n"
        "first, second = threading.Event(), threading.Event()\n"
        "threading.Thread(target=speak).start(); first.wait()",
        "turn.set(); second.wait(); print('end')",
        "None",
    ),
    "task": (
        "import asyncio\nturn, done = asyncio.Event(), asyncio.Event()\n"
        "async def speak():\n    print('one'); await turn.wait(); print('two'); done.set()\n"
        "task = asyncio.create_task(speak()); await asyncio.sleep(0)",
        "turn.set(); await done.wait(); print('end')",
        "None",
    ),
    "child of a thread": (
        "turn, done = threading.Event(), threading.Event()\n"
        "def speak():\n    subprocess.run(['echo', 'one']); done.set(); turn.wait()\n"
        "    subprocess.run(['echo', 'two']); done.set()\n"
        "threading.Thread(target=speak).start(); done.wait(); done.clear()",
        "turn.set(); done.wait(); print('end')",
        "None",
    ),
    "child": (
        "child = subprocess.Popen(['sh', '-c', 'echo one; read x; echo two; read x'], "
        "stdin=subprocess.PIPE)\n"
        "while not os.path.getsize(f'/proc/{child.pid}/fd/1'): time.sleep(0.01)",
        "size = os.fstat(1).st_size\nchild.stdin.write(b'go\\n'); child.stdin.flush()\n"
        "while os.fstat(1).st_size == size: time.sleep(0.01)\nprint('end')",
        "child.stdin.close(); child.wait()",
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_what_outlives_its_cell_prints_into_the_one_that_runs(rig: InsideRig, maker: str) -> None:
    first, second, last = MAKERS[maker]
    one, two = rig.good(first), rig.good(second)
    assert (text_of(rig, one.id), text_of(rig, two.id)) == ("one\n", "two\nend\n")
    rig.good(last)
    assert (text_of(rig, one.id), text_of(rig, two.id)) == ("one\n", "two\nend\n")


def test_what_comes_between_two_cells_stays_with_the_one_before(rig: InsideRig) -> None:
    first = rig.good(
        "child = subprocess.Popen(['sh', '-c', 'echo a; while read x; do echo $x; done'], "
        "stdin=subprocess.PIPE)\n"
        "while not os.fstat(1).st_size: time.sleep(0.01)\n"
        "go = os.path.abspath('go')\n"
        "def late():\n    wait_for(go); child.stdin.write(b'between\\n'); child.stdin.flush()\n"
        "threading.Thread(target=late).start()"
    )
    # Where an earlier child has the files, their size does not tell that this one has written.
    until(lambda: text_of(rig, first.id) == "a\n", "the first line is there")
    (rig.cwd / "go").touch()
    until(lambda: text_of(rig, first.id) == "a\nbetween\n", "the late line is kept with its cell")
    second = rig.good("print('mine'); child.stdin.close(); child.wait()")
    assert (text_of(rig, first.id), text_of(rig, second.id)) == ("a\nbetween\n", "mine\n")


def test_bytes_of_both_streams_keep_their_order_where_a_child_lives_on(rig: InsideRig) -> None:
    """Three cells share files by a child of the first; each is read as if it had files of its
    own.
    """
    rig.good(
        "child = subprocess.Popen(['sleep', '1000']); print('x' * 1000); print('y' * 77, "
        "file=sys.stderr)"
    )
    code = (
        "for i in range(20):\n    os.write(1, bytes([i]) * 3); print('o', i); sys.stderr.write(f'e "
        "{i}\\n')\n"
        "sys.stderr.flush()"
    )
    expected = b"".join(
        bytes([i]) * 3 + f"o {i}\n".encode() + f"e {i}\n".encode() for i in range(20)
    )
    for _ in range(2):
        cell = rig.good(code).id
        found = Reading(log_of(rig.cells, cell)).pieces()
        assert b"".join(it.data for it in found if isinstance(it, Piece)) == expected
        pages = [log_of(rig.cells, cell).page(at, 7).data for at in range(0, len(expected), 7)]
        assert b"".join(pages) == expected
    rig.good("child.kill(); child.wait()")


def test_a_cell_has_new_files_once_no_child_has_the_old_ones(python: str) -> None:
    with kernel(ours(python)) as rig:
        rig.good("import subprocess; child = subprocess.Popen(['sleep', '1000']); print('first')")
        shared = rig.good("print('second')")
        assert (rig.cells / f"{shared.id}.out").read_bytes() == b"first\nsecond\n"
        rig.good("child.kill(); child.wait()")
        alone = rig.good("print('alone')")
        assert (rig.cells / f"{alone.id}.out").read_bytes() == b"alone\n"


def test_a_child_beyond_the_cap_is_cut_and_harms_no_earlier_cell(rig: InsideRig) -> None:
    rig.good("child = subprocess.Popen(['sleep', '1000'])")
    before = rig.good("print('kept' * 10)")
    capped = rig.run(
        "subprocess.run(['sh', '-c', 'for i in 1 2 3 4 5 6 7 8 9; do echo $i.......; done'])",
        cap=40,
    )
    assert text_of(rig, capped.id) == "1.......\n2.......\n3.......\n4.......\n5..."
    assert text_of(rig, before.id) == "kept" * 10 + "\n"
    rig.good("child.kill(); child.wait()")


def test_the_prelude_reads_what_a_cell_printed_into_a_shared_file(rig: InsideRig) -> None:
    rig.good("child = subprocess.Popen(['sleep', '1000']); print('first')")
    second = rig.good("print('second'); print('wrong', file=sys.stderr)")
    third = rig.good(f"print(output({second.id!r}), end='')")
    assert text_of(rig, third.id) == "second\nwrong\n"
    rig.good("child.kill(); child.wait()")


@pytest.mark.parametrize("failing", range(4))
def test_descriptors_are_copied_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """With half of them every later cell of the session would fail."""
    cells = streams.Cells()
    real = os.dup
    for _ in range(2):
        calls = iter(range(4))
        opened: list[int] = []

        def dup(number: int, calls: Iterator[int] = calls, opened: list[int] = opened) -> int:
            if next(calls) == failing:
                raise OSError(errno.EMFILE, "Too many open files")
            opened.append(real(number))
            return opened[-1]

        monkeypatch.setattr(os, "dup", dup)
        with pytest.raises(OSError, match="Too many"):
            cells.copy_descriptors()
        for number in opened:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)
    monkeypatch.setattr(os, "dup", real)
    cells.copy_descriptors()
    for number in (1, 2):
        copy = cells.copy_of(number)
        assert copy != number
        os.close(copy)
        os.close(cells._original_descriptors[number])


def test_the_parent_of_a_stream_is_set_for_one_thread_alone() -> None:
    """By a private name of ipykernel, whose public setter changes the parent of all threads."""
    stream = streams.OutStream.__new__(streams.OutStream)
    stream._parent_header = ContextVar("parent")
    stream._parent_header_global = {"msg_id": "all"}
    with ThreadPoolExecutor(1) as thread:
        thread.submit(stream.set_parent_here, {"msg_id": "one"}).result()
        assert thread.submit(lambda: stream.parent_header).result() == {"msg_id": "one"}
    assert stream.parent_header == {"msg_id": "all"}


def test_stdout_has_a_descriptor_of_its_own_that_leads_to_the_cell(rig: InsideRig) -> None:
    """Libraries that redirect descriptor 1 refuse a stdout which says that it is just that."""
    ran = rig.good(
        "numbers = sys.stdout.fileno(), sys.stderr.fileno()\nassert not {1, 2} & set(numbers), "
        "numbers\n"
        "os.write(numbers[0], b'direct\\n'); subprocess.run(['echo', 'child'], stdout=sys.stdout)\n"
        "subprocess.run('echo wrong >&2', shell=True, stderr=sys.stderr)"
    )
    assert (text_of(rig, ran.id), text_of(rig, ran.id, "stderr")) == ("direct\nchild\n", "wrong\n")
    again = rig.good(
        "assert numbers == (sys.stdout.fileno(), sys.stderr.fileno()); os.write(numbers[0], "
        "b'again\\n')"
    )
    assert text_of(rig, again.id) == "again\n"


def test_a_forked_copy_of_the_kernel_ends_with_its_cell(rig: InsideRig) -> None:
    """As the child of a program does; it must not go on as a second kernel."""
    # At one stroke: print writes the end of a line by itself.
    code = (
        "import os, sys\npid = os.fork()\nsys.stdout.write('child\\n' if pid == 0 else "
        "'parent\\n')\n"
    )
    ran = rig.good(code + "if pid: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")
    assert sorted(text_of(rig, ran.id).split()) == ["0", "child", "parent"]
    ran = rig.good(
        code + "if pid == 0: sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert sorted(text_of(rig, ran.id).split()) == ["5", "child", "parent"]


EXITS = {
    "sys.exit()": (0, ""),
    "sys.exit(0)": (0, ""),
    "sys.exit(None)": (0, ""),
    "raise SystemExit": (0, ""),
    "sys.exit(4)": (4, ""),
    "raise SystemExit(4)": (4, ""),
    "sys.exit(True)": (1, ""),
    "sys.exit(-1)": (255, ""),
    "sys.exit(256)": (0, ""),
    "sys.exit('no data')": (1, "no data\n"),
    "sys.exit('0')": (1, "0\n"),
    "exit(3)": (3, ""),
    "quit('why')": (1, "why\n"),
    "import argparse; argparse.ArgumentParser('x').parse_args(['--help'])": (0, None),
    "class Mine(SystemExit): pass\nraise Mine(6)": (6, ""),
    "async def main(): sys.exit(7)\nawait main()": (7, ""),
}


@pytest.mark.parametrize("code", EXITS)
def test_a_cell_that_exits_ends_as_a_program_does(rig: InsideRig, code: str) -> None:
    exit_code, words = EXITS[code]
    ran = rig.run(f"print('before'); x = 1\n{code}\nprint('behind')")
    (end,) = rig.records(ran.id, "end")
    assert (end["exit_code"], end["status"]) == (exit_code, "error" if exit_code else "ok")
    assert not rig.records(ran.id, "error")
    if words is not None:
        assert (text_of(rig, ran.id), text_of(rig, ran.id, "stderr")) == ("before\n", words)
    assert text_of(rig, rig.good("print(x)").id) == "1\n"


def test_an_exit_within_a_cell_that_goes_on_is_none(rig: InsideRig) -> None:
    (rig.cwd / "part.py").write_text("import sys; print('part'); sys.exit(4)\n")
    ran = rig.good(
        "%run part.py\nprint('on')\ntry: sys.exit(5)\nexcept SystemExit: print('caught')"
    )
    assert text_of(rig, ran.id) == "part\non\ncaught\n"
    assert [(it["name"], it["value"]) for it in rig.records(ran.id, "error")] == [
        ("SystemExit", "4")
    ]
    ran = rig.run("get_ipython().run_cell('sys.exit(4)'); 1 / 0")
    assert "exit_code" not in rig.records(ran.id, "end")[0]


def test_exit_alone_still_ends_the_session(python: str) -> None:
    with kernel(ours(python)) as rig:
        ran = rig.run("print('bye'); exit()\nprint('behind')")
        (end,) = rig.records(ran.id, "end")
        assert (end["status"], end["ask_exit"], end["exit_code"]) == ("ok", True, 0)
        assert text_of(rig, ran.id) == "bye\n"
        assert rig.process.wait(60) == 0


def test_a_cell_of_a_script_finds_what_python_gives_a_script(rig: InsideRig) -> None:
    folder = rig.cwd / "sub"
    folder.mkdir()
    (folder / "neighbour.py").write_text("name = 'found'\n")
    code = (
        "import neighbour; print(neighbour.name, os.path.basename(__file__), sys.argv == "
        "[__file__])"
    )
    ran = rig.good(code, file=str(folder / "x.py"))
    assert text_of(rig, ran.id) == "found x.py True\n"
    after = rig.good("print('__file__' in globals(), any(it.endswith('/sub') for it in sys.path))")
    assert text_of(rig, after.id) == "False False\n"
