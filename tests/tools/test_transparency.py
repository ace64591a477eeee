"""What a tool finds at its start is what `python main.py --port N` gives it, whichever way it is
started.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.process import zygote_pool
from supervisord_py.tools.driver import free_port
from tools.tool_house import ENVIRON, ToolHouse

LOOK = """
import sys

MODULES = sorted(sys.modules)
NAMES = {name: globals()[name] for name in list(globals()) if name not in {"MODULES", "sys"}}
HOOKS = [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace(), sys.getprofile()]

import os

FDS = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
STATUS = dict(line.split(":", 1) for line in open("/proc/self/status"))
MASK = os.umask(0)
os.umask(MASK)

import atexit, faulthandler, inspect, json, pickle, resource, signal, subprocess, threading, traceback
from http.server import BaseHTTPRequestHandler, HTTPServer


class Own:
    pass


def state_of_loader(loader):
    return [type(loader).__name__, loader.name, loader.path]


def signals():
    caught = {}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        caught[int(number)] = getattr(handler, "name", None) or getattr(handler, "__name__", str(handler))
    return caught


def collect():
    names = {name: repr(value) for name, value in NAMES.items() if name not in {"__loader__", "__builtins__"}}
    return {
        "names": [*NAMES],
        "values": names,
        "loader": state_of_loader(NAMES["__loader__"]),
        "builtins": type(NAMES["__builtins__"]).__name__,
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "warnoptions": sys.warnoptions,
        "xoptions": sys._xoptions,
        "modules": MODULES,
        "hooks": HOOKS,
        "executable": [sys.executable, sys.prefix, sys.base_prefix],
        "cwd": os.getcwd(),
        "umask": MASK,
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"
        },
        "signals": signals(),
        "blocked": [STATUS["SigBlk"], STATUS["SigIgn"]],
        "threads": [STATUS["Threads"], [thread.name for thread in threading.enumerate()]],
        "descriptors": FDS,
        "stdin": os.readlink("/proc/self/fd/0"),
        "environment": dict(os.environ),
        "is_session_leader": os.getsid(0) == os.getpid(),
        "nice": os.nice(0),
        "faulthandler": faulthandler.is_enabled(),
        "source": inspect.getsource(Own),
        "pickled": pickle.loads(pickle.dumps(Own())).__class__ is Own,
        "last": hasattr(sys, "last_value"),
    }
"""
SERVE = """

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"ok": True})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(COLLECTED)


if __name__ == "__main__":
    COLLECTED = collect()
    if os.environ.get("ONLY_PRINTS"):
        print(json.dumps(COLLECTED))
        sys.exit(0)
    HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""
MARKS = {"NOTIFY_SOCKET", "PX_INSTANCE", "PX_UNIT"}
"""Variables that a tool has under pxd only, as tool.json(5) says."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_pool, "SETTLE_SECONDS", 0.0)


def write(house: ToolHouse, name: str, source: str, **keys: Any) -> Path:
    folder = house.tools / name
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(source)
    plain = {
        "name": name,
        "version": "1",
        "description": "x",
        "input": {"type": "object"},
        "preload": False,
    }
    (folder / "tool.json").write_text(json.dumps({**plain, **keys}))
    house.launcher.catalog.refresh()
    return folder


def plain_start(
    folder: Path, environ: dict[str, str], port: int
) -> subprocess.CompletedProcess[str]:
    """Run `python main.py --port N` in a session of its own, as a shell would."""
    argv = [sys.executable, "main.py", "--port", str(port)]
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(argv, check=False, cwd=folder, env=environ, start_new_session=True, **how)


def without(collected: dict[str, Any], port: int, descriptors: set[int]) -> dict[str, Any]:
    """Return what has to be equal: all but the marks, the number of the port and the handed-over
    descriptor.
    """
    text = json.dumps(collected).replace(f'"{port}"', '"PORT"')
    compared: dict[str, Any] = json.loads(text)
    compared["environment"] = {
        name: value
        for name, value in compared["environment"].items()
        if name not in {*MARKS, "ONLY_PRINTS"}
    }
    compared["descriptors"] = [fd for fd in compared["descriptors"] if fd not in descriptors]
    return compared


@pytest.mark.parametrize("listen", ["handover", "port"])
async def test_a_start_gives_what_a_plain_start_gives_twice_in_a_row(
    house: ToolHouse, listen: str
) -> None:
    folder = write(house, "look", LOOK + SERVE, listen=listen)
    for _ in range(2):
        collected = await house.ask("look")
        port = house.state("look").port
        # LC_CTYPE is Python's own, where there is no locale (PEP 538).
        own = {*MARKS, "LC_CTYPE"}
        environ = {
            name: value for name, value in collected["environment"].items() if name not in own
        }
        plain = await asyncio.to_thread(plain_start, folder, {**environ, "ONLY_PRINTS": "1"}, port)
        assert plain.returncode == 0, plain.stderr
        same = without(json.loads(plain.stdout), port, set())
        found = without(collected, port, {3} if listen == "handover" else set())
        assert {name: value for name, value in found.items() if value != same[name]} == {}
        assert collected["environment"].keys() >= MARKS
        await house.launcher.stop("look")
    assert collected["environment"]["PATH"] == ENVIRON["PATH"]


ENDS = {
    "uncaught": "def inner():\n    raise ValueError('mine')\n\n\ninner()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from "
    "error\n",
    "syntax": "x = 1\nprint('never'\n",
    "indentation": "if True:\nx = 1\n",
    "exit_text": "import sys\nsys.exit('this text')\n",
    "exit_code": "import atexit, sys\natexit.register(print, 'at exit', "
    "file=sys.stderr)\nsys.exit(7)\n",
    "raises_then_atexit": "import atexit, sys\natexit.register(print, 'at exit', "
    "file=sys.stderr)\nraise OSError(5)\n",
    "own_hook": "import sys\nsys.excepthook = lambda *error: print(error[0], error[1], "
    "file=sys.stderr)\n1 / 0\n",
    "interrupted": "raise KeyboardInterrupt\n",
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError('two')])\n",
    "warns": "import warnings\nwarnings.warn('mine')\nraise SystemExit(2)\n",
    "thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()\nraise "
    "SystemExit(4)\n",
    "import": "import no_such_module\n",
    "nothing": "",
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_is_told_in_the_words_of_a_plain_start(tmp_path: Path, end: str) -> None:
    """The shim alone: what a start by pxd reports after its second try is the plain start's own."""
    (tmp_path / "main.py").write_text(ENDS[end])
    # Coverage imports `socket` in each process that it measures, and the shim looks for that.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    plain = plain_start(tmp_path, environ, 1)
    with open(os.devnull) as null:  # in the place of the socket, which is not touched
        shim = Path(zygote_pool.__file__).parents[1] / "tools" / "shim.py"
        words = ["--px-fd", str(null.fileno()), "--px-port", "1", "--", "main.py", "--port", "1"]
        shimmed = subprocess.run(
            [sys.executable, shim, *words],
            cwd=tmp_path,
            env=environ,
            pass_fds=[null.fileno()],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    # Names of threads and addresses of objects are none that a program chooses.
    assert (shimmed.returncode, shimmed.stdout, shimmed.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_workers_of_multiprocessing_import_main(house: ToolHouse, method: str) -> None:
    source = f"""
import multiprocessing, os

def work(number):
    return [number * 2, __name__, __file__]

if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(1) as pool:
        results = pool.map(work, [1, 2])
    open("results", "w").write(repr(results))
{LOOK}{SERVE}"""
    folder = write(house, "workers", source)
    await house.ask("workers")
    file = str(folder / "main.py")
    expected = repr([[2, "__mp_main__", file], [4, "__mp_main__", file]])
    assert (folder / "results").read_text() == expected
    (folder / "results").unlink()
    await asyncio.to_thread(plain_start, folder, {**ENVIRON, "ONLY_PRINTS": "1"}, free_port())
    assert (folder / "results").read_text() == expected


async def test_main_finds_its_files_after_a_change_of_folder(house: ToolHouse) -> None:
    source = (
        "import os\nos.chdir('/')\nopen(os.path.join(os.path.dirname(os.path.abspath(__file__)), "
        "'data'))\n"
    )
    folder = write(house, "moves", source + LOOK + SERVE)
    (folder / "data").touch()
    assert (await house.ask("moves"))["cwd"] == "/"
