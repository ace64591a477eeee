"""Exceptions are read out of tracebacks as Python, loggers and Node write them, never out of the
last line.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from supervisord_py.tools.tracebacks import last_exception, place_in

FOLDER = "/tools/x"
PLAIN = """Traceback (most recent call last):
  File "/tools/x/main.py", line 7, in f
    json.loads("{")
    ~~~~~~~~~~^^^^^
  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
LIFESPAN = """INFO:     Started server process [1]
INFO:     Waiting for application startup.
ERROR:    Traceback (most recent call last):
  File "/tools/x/.venv/lib/python3.12/site-packages/starlette/routing.py", line 693, in lifespan
    async with self.lifespan_context(app) as maybe_state:
  File "/tools/x/main.py", line 6, in life
    raise RuntimeError("no model")
RuntimeError: no model

ERROR:    Application startup failed. Exiting.
INFO:     Stopping parent process [1]
"""
PREFIXED = """[web] Traceback (most recent call last):
[web]   File "main.py", line 3, in <module>
[web]     {}["a"]
[web] KeyError: 'a'
[web] Cleanup: done
"""
CHAINED = """Traceback (most recent call last):
  File "/tools/x/main.py", line 3, in f
    1 / 0
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/usr/lib/python3/lib.py", line 5, in g
    raise ValueError("bad") from error
lib.Bad: bad: two
and more
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/tools/x/main.py", line 9, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/tools/x/main.py", line 3, in f
    |     raise KeyError("z")
    | KeyError: 'z'
    +---------------- 2 ----------------
    | TypeError: no place
    +------------------------------------
"""
SYNTAX = (
    '  File "/tools/x/main.py", line 7\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
)
LOGURU = """Traceback (most recent call last):

> File "/tools/x/main.py", line 4, in <module>
    {}["a"]
    └ 1

KeyError: 'a'
"""
NODE = """node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module 'express'
Require stack:
- /tools/x/main.js
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
    at Object.<anonymous> (/tools/x/main.js:2:1)
    at node:internal/main/run_main_module:28:49 {
  code: 'MODULE_NOT_FOUND'
}

Node.js v20.20.2
"""
NODE_SYNTAX = (
    "/tools/x/main.js:3\nlet x = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n    at "
    "node:internal/x:1:2\n"
)
OTHER = 'Traceback (most recent call last):\n  File "/lib/a.py", line 1, in a\n    b()\na.Other: later\n'


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        (
            PLAIN,
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            "/tools/x/main.py:7",
        ),
        (LIFESPAN, "RuntimeError: no model", "/tools/x/main.py:6"),
        (PREFIXED, "KeyError: 'a'", "main.py:3"),
        (CHAINED, "lib.Bad: bad: two", "/tools/x/main.py:3"),
        (GROUP, "KeyError: 'z'", "/tools/x/main.py:3"),
        (f"{CHAINED}\n{SYNTAX}", "SyntaxError: invalid syntax", "/tools/x/main.py:7"),
        (LOGURU, "KeyError: 'a'", "/tools/x/main.py:4"),
        (NODE, "Error: Cannot find module 'express'", "/tools/x/main.js:2"),
        (NODE_SYNTAX, "SyntaxError: Unexpected token ';'", "/tools/x/main.js:3"),
        (f"{PLAIN}went on\n{OTHER}", "a.Other: later", ""),
        (
            f"{OTHER}{PLAIN}Node.js\n",
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            None,
        ),
        (
            PLAIN.replace("Traceback", "\x1b[1mTraceback").replace("json.dec", "\x1b[35mjson.dec"),
            None,
            None,
        ),
        (
            PLAIN.replace("json.decoder.JSONDecodeError", "INFO:  a line of a thread\nE"),
            "E: Expecting value",
            None,
        ),
    ],
)
def test_the_last_whole_traceback_counts(text: str, words: str | None, place: str | None) -> None:
    raised = last_exception(text)
    assert raised is not None
    assert str(raised).startswith(words or "json.decoder.JSONDecodeError: Expecting value")
    frame = place_in(raised, FOLDER)
    if place is not None:
        assert (f"{frame.file}:{frame.line}" if frame else "") == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ERROR:    Application startup failed. Exiting.\n",
        "Cleanup: done\n",
        PLAIN.rpartition("json.decoder")[0],
        '  File "/tools/x/main.py", line 7\nnot an error of syntax\n',
        "Traceback (most recent call last):\n",
    ],
)
def test_what_is_no_whole_traceback_is_no_exception(text: str) -> None:
    assert last_exception(text) is None


def test_a_traceback_that_is_cut_off_does_not_hide_the_one_before_it() -> None:
    raised = last_exception(PLAIN + OTHER.rpartition("a.Other")[0])
    assert raised is not None
    assert raised.type == "json.decoder.JSONDecodeError"


PROGRAMS = {
    "def f(: pass": "SyntaxError",
    "import broken": "SyntaxError",
    "import os\nos.environ['X_Y']": "KeyError: 'X_Y'",
    "raise RuntimeError": "RuntimeError",
    "raise RuntimeError('\\n   An attempt')": "RuntimeError: An attempt",
    "import threading\nthreading.Thread(target=lambda: 1 / "
    "0).start()": "ZeroDivisionError: division by zero",
    "import logging\ntry: {}['len']\nexcept Exception: "
    "logging.exception('oops: it')": "KeyError: 'len'",
    "def f():\n    class L(Exception): pass\n    raise L('x')\nf()": "f.<locals>.L: x",
    "raise ExceptionGroup('out', [ExceptionGroup('in', [ValueError(1)]), "
    "TypeError(2)])": "ValueError: 1",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_this_python_writes_is_read(tmp_path: Path, program: str) -> None:
    (tmp_path / "main.py").write_text(textwrap.dedent(program))
    (tmp_path / "broken.py").write_text("x = '")
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    raised = last_exception(done.stderr)
    assert raised is not None, done.stderr
    assert str(raised).startswith(PROGRAMS[program])
    assert place_in(raised, str(tmp_path)) is not None, done.stderr
