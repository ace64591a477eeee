"""What stderr tells of a failure, and the next step for it: the true cause, with a command that
helps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason
from supervisord_py.tools import failures
from supervisord_py.tools.causes import CauseKind, find_cause
from supervisord_py.tools.debug import STEPS, has_words
from tool_folders import pixie, plain

FRAMES = '  File "{folder}/main.py", line 7, in f\n    g()\n  File "/usr/lib/python3/x.py", line 3, in g\n'
RAISED = f"Traceback (most recent call last):\n{FRAMES}"
UVICORN = (
    "INFO:     Started\n{}\nERROR:    Application startup failed. Exiting.\nINFO:     Stopping "
    "parent process [7]\n"
)
ENVIRON = (
    'Traceback (most recent call last):\n  File "{folder}/main.py", line 2, in <module>\n'
    '  File "<frozen os>", line 685, in __getitem__\n'
)
SETTINGS = (
    'Traceback (most recent call last):\n  File "{folder}/main.py", line 2, in <module>\n'
    '  File "/v/lib/pydantic_settings/main.py", line 9, in __init__\n'
)
SUBPROCESS = f'{RAISED}  File "/usr/lib/python3.12/subprocess.py", line 1955, in _execute_child\n'


@pytest.mark.parametrize(
    ("stderr", "kind", "headline", "hint"),
    [
        (
            f"{RAISED}json.Odd: boom\n",
            "EXCEPTION",
            "json.Odd: boom (main.py:7)",
            "Fix {folder}/main.py:7 (json.Odd).",
        ),
        (
            UVICORN.format(f"{RAISED}RuntimeError: no model"),
            "EXCEPTION",
            "RuntimeError: no model (main.py:7)",
            "main.py:7",
        ),
        (
            f"{RAISED}KeyError: 'a'\nCleanup: done\n",
            "EXCEPTION",
            "KeyError: 'a' (main.py:7)",
            "(KeyError)",
        ),
        (
            f"{RAISED}KeyError: 'a'\n".replace("{folder}", "/elsewhere"),
            "EXCEPTION",
            "KeyError: 'a'",
            None,
        ),
        (
            f"{ENVIRON}KeyError: 'OPENAI_API_KEY'\n",
            "MISSING_VARIABLE",
            "KeyError",
            "Set OPENAI_API_KEY in {folder}/.env",
        ),
        (
            f"{RAISED}KeyError: 'OPENAI_API_KEY'\n",
            "EXCEPTION",
            "KeyError",
            "Fix {folder}/main.py:7",
        ),
        (
            f"{SETTINGS}pydantic_core.ValidationError: 1 validation error for S\nfoo\n  x\n",
            "MISSING_VARIABLE",
            "",
            "FOO",
        ),
        (
            f"{RAISED}o.OpenAIError: or set the OPENAI_API_KEY environment variable\n",
            "MISSING_VARIABLE",
            "",
            "env_allow",
        ),
        (
            f"{RAISED}x.UndefinedValueError: SECRET not found. Declare it as envvar or\n",
            "MISSING_VARIABLE",
            "",
            "SECRET",
        ),
        (
            "start.sh: line 3: TOKEN: unbound variable\n",
            "MISSING_VARIABLE",
            "start.sh",
            "Set TOKEN in",
        ),
        ("sh: 1: TOKEN: parameter not set\n", "MISSING_VARIABLE", "sh: 1", "Set TOKEN in"),
        (
            "OPENAI_API_KEY is not set\n",
            "MISSING_VARIABLE",
            "OPENAI_API_KEY is",
            "Set OPENAI_API_KEY in",
        ),
        ("Fatal: missing environment variable DB_URL\n", None, "", None),
        ("Error: DB_URL must be set\n", "MISSING_VARIABLE", "DB_URL", "Set DB_URL in"),
        (
            f"{RAISED}RuntimeError: API_TOKEN is required\n",
            "MISSING_VARIABLE",
            "API_TOKEN",
            "Set API_TOKEN in",
        ),
        ("HF_HOME is not set, using the default\nready\n", None, "", None),
        ("WARNING: HF_HOME is not set\n", None, "", None),
        ("LOG_LEVEL set to debug\n", None, "", None),
        ("LOG_LEVEL is set\n", None, "", None),
        ("UserWarning: set the OMP_NUM_THREADS environment variable\n", None, "", None),
        (
            f"{RAISED}ModuleNotFoundError: No module named 'numpy'\n",
            "PYTHON_MODULE",
            "No module",
            "numpy is missing",
        ),
        (
            "ImportError: No module named numpy.linalg",
            "PYTHON_MODULE",
            "",
            "`pxctl tools sync tool`",
        ),
        ("/usr/bin/python3: No module named uvicorn\n", "PYTHON_MODULE", "", "uvicorn is missing"),
        (
            "Error: Cannot find module 'express'\n",
            "NODE_MODULE",
            "express",
            "run `npm install express` in {folder}",
        ),
        (
            "Error [X]: Cannot find package '@a/b/c' imported from /x\n",
            "NODE_MODULE",
            "",
            "npm install @a/b`",
        ),
        ("Error: Cannot find module './lib.js'\n", "NODE_MODULE", "", "./lib.js is not there"),
        ("OSError: [Errno 98] Address already in use", "PORT_IN_USE", "", '"listen": "port"'),
        ("Error: That port is already in use.\n", "PORT_IN_USE", "That port", '"listen": "port"'),
        (
            "Port 8123 is in use by another program. Either identify\n",
            "PORT_IN_USE",
            "8123",
            '"listen": "port"',
        ),
        ("ERROR: port 8000 is occupied\n", "PORT_IN_USE", "8000", '"listen": "port"'),
        (
            f"{RAISED}KeyError: 'handled'\nError: That port is already in use.\n",
            "PORT_IN_USE",
            "That port",
            "--port",
        ),
        (
            '  File "/t/main.py", line 7\n    def f(:\n     ^\nSyntaxError: bad',
            "SYNTAX_ERROR",
            "bad",
            "/t/main.py:7",
        ),
        ("numpy._core._exceptions._ArrayMemoryError: Unable", "MEMORY", "", "memory (suspected)"),
        (
            "/usr/bin/env: \u2018bash\\r\u2019: No such file or directory\n",
            "CARRIAGE_RETURN",
            "",
            "sed -i 's/\\r$//'",
        ),
        (
            "/usr/bin/env: \u2018python3.99\u2019: No such file or directory\n",
            "MISSING_PROGRAM",
            "",
            "Install python3.99",
        ),
        (
            "bin/gunicorn: 2: exec: /old/venv/bin/python: not found\n",
            "MISSING_PROGRAM",
            "",
            "/old/venv/bin/python is not",
        ),
        (
            "bash: line 1: serve-it: command not found\n",
            "MISSING_PROGRAM",
            "serve-it",
            "Install serve-it",
        ),
        ("Error: spawn ffmpeg ENOENT\n", "MISSING_PROGRAM", "ffmpeg", "Install ffmpeg"),
        (
            f"{SUBPROCESS}FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n",
            "MISSING_PROGRAM",
            "",
            "ffmpeg",
        ),
        (
            f"{RAISED}FileNotFoundError: [Errno 2] No such file or directory: 'a.txt'\n",
            "EXCEPTION",
            "",
            "main.py:7",
        ),
        ("it works\n", None, "", None),
    ],
)
def test_the_cause_and_its_step(
    tmp_path: Path, stderr: str, kind: str | None, headline: str, hint: str | None
) -> None:
    spec = plain(tmp_path)
    folder = str(spec.folder)
    cause = find_cause(stderr.replace("{folder}", folder), folder)
    assert (cause.kind.name if cause else None) == kind
    assert headline in str(cause)
    step = failures.hint_for(spec, stderr.replace("{folder}", folder))
    assert step is None if hint is None else hint.replace("{folder}", folder) in str(step)


@pytest.mark.parametrize(
    ("files", "keys", "stderr", "hint"),
    [
        (
            {"requirements.txt": "x\n"},
            {},
            "No module named 'x'",
            "not built: run `pxctl tools sync tool`",
        ),
        (
            {"requirements.txt": "x\n", ".venv/bin/a": ""},
            {},
            "No module named 'x'",
            "add its package to requirements.txt",
        ),
        (
            {"pyproject.toml": "", ".venv/bin/a": ""},
            {},
            "No module named 'x'",
            "add its package to pyproject.toml",
        ),
        (
            {},
            {"python": "/opt/p/bin/python"},
            "No module named 'x'",
            "install it for /opt/p/bin/python",
        ),
        ({}, {}, "No module named 'x'", "write a requirements.txt"),
        (
            {"../env/bin/serve": "#!/opt/p/bin/python3.12 -I\n"},
            {"command": ["{root}/env/bin/serve"]},
            "No module named 'x'",
            "install its package for /opt/p/bin/python3.12 -I, which",
        ),
        (
            {},
            {"command": ["/opt/p/bin/python3", "x.py"]},
            "No module named 'x'",
            "for /opt/p/bin/python3, which",
        ),
        ({}, {"command": [".venv/bin/serve"]}, "No module named 'x'", "write a requirements.txt"),
        (
            {"package.json": '{"dependencies": {"x": "1"}}'},
            {},
            "Cannot find module 'x'",
            "run `npm install` in",
        ),
        (
            {"package.json": "{}", "yarn.lock": ""},
            {},
            "Cannot find module 'x/y'",
            "run `yarn add x` in",
        ),
        (
            {"package.json": "[", "pnpm-lock.yaml": ""},
            {},
            "Cannot find module 'x'",
            "run `pnpm add x` in",
        ),
        (
            {},
            {"command": ["a", "{port}"]},
            "address already in use",
            "the port that {port} stands for",
        ),
        ({}, {"listen": "port"}, "address already in use", "the port of --port"),
    ],
)
def test_the_step_fits_the_folder(
    tmp_path: Path, files: dict[str, str], keys: dict[str, Any], stderr: str, hint: str
) -> None:
    if "command" in keys:
        keys = {"command": [word.replace("{root}", str(tmp_path)) for word in keys["command"]]}
    spec = plain(tmp_path, **keys)
    for name, text in files.items():
        path = spec.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    said = stderr.replace("No module", "ModuleNotFoundError: No module")
    assert hint in str(failures.hint_for(spec, said))


def test_a_pixie_tools_settings_stand_in_its_side_file(tmp_path: Path) -> None:
    assert '"listen": "port" in pxd.json' in str(
        failures.hint_for(pixie(tmp_path), "Address already in use")
    )


@pytest.mark.parametrize(
    ("keys", "stderr", "words", "hint"),
    [
        ({}, "", "exited with code 0 before it was ready", "at the end of main.py, under"),
        (
            {"command": ["gunicorn", "--daemon", "app"]},
            "",
            "code 0",
            "Leave --daemon out of `command`",
        ),
        ({"command": ["sh", "-c", "serve &"]}, "", "code 0", "Leave & out of `command`"),
        ({"command": ["esbuild", "--serve"]}, "", "code 0", "end of standard input"),
        (
            {},
            UVICORN.format(f"{RAISED}RuntimeError: no model"),
            "RuntimeError: no model (main.py:7)",
            "main.py:7",
        ),
    ],
)
def test_a_program_that_ends_with_0_before_it_serves(
    tmp_path: Path, keys: dict[str, Any], stderr: str, words: str, hint: str
) -> None:
    spec = plain(tmp_path, **keys)
    record = ExitRecord("k", spec.unit, Identity(1, 1, "b"), 0.0, 1.0, 0, None, 0.0, 0.0, 0, 0, 0)
    ended = End(Reason.EARLY_EXIT, record, stderr.replace("{folder}", str(spec.folder)))
    error = failures.early_exit(spec, ended)
    assert words in error.detail
    assert hint in str(error.hint)
    assert ("main.py" in str(error.hint)) == (not keys), "a command has no main.py"


@pytest.mark.parametrize(
    ("listening", "words"),
    [
        ([("::", 8000)], "it listens on [::]:8000 instead of 127.0.0.1:8000"),
        ([("::1", 8000)], "it listens on [::1]:8000 instead of 127.0.0.1:8000"),
        ([("127.0.0.1", 9000), ("::1", 9001)], "it listens on 127.0.0.1:9000, [::1]:9001 instead"),
        ([("127.0.0.1", 8000)], "it holds port 8000 but nobody answers there"),
        ([], "it listens on no port"),
    ],
)
def test_a_listener_that_is_not_reached_is_named(
    tmp_path: Path, listening: Any, words: str
) -> None:
    error = failures.not_ready(plain(tmp_path), 8000, listening, 0, "")
    assert words in error.detail
    by_command = failures.not_ready(plain(tmp_path, "c", command=["a"]), 8000, listening, 0, "")
    assert "main.py" not in str(by_command.hint)


def test_an_answer_of_5xx_is_told_with_the_exception_and_one_of_4xx_is_not(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    stderr = f"{RAISED}KeyError: 'len'\n".replace("{folder}", str(spec.folder))
    failed = failures.bad_answer(spec, "answered 500", stderr, words="Internal Server Error")
    refused = failures.bad_answer(spec, "answered 422", stderr, words="no", is_ours=False)
    mute = failures.bad_answer(spec, "answered 500", "")
    assert failed.detail == "tool:tool answered 500: KeyError: 'len' (main.py:7)"
    assert (refused.detail, mute.detail) == (
        "tool:tool answered 422: no",
        "tool:tool answered 500.",
    )


ACCESS_LINES = {
    "http.server": '127.0.0.1 - - [29/Nov/2026 00:10:11] "POST /run HTTP/1.1" 500 -',
    "http.server, send_error": "127.0.0.1 - - [29/Nov/2026 00:10:11] code 500, message Internal "
    "Server Error",
    "werkzeug": '127.0.0.1 - - [29/Nov/2026 00:10:11] "\x1b[35m\x1b[1mPOST /run HTTP/1.1\x1b[0m" '
    "500 -",
    "uvicorn": 'INFO:     127.0.0.1:1234 - "POST /run HTTP/1.1" 500 Internal Server Error',
    "uvicorn, coloured": 'INFO: 127.0.0.1:1 - "\x1b[1mPOST /run HTTP/1.1\x1b[0m" '
    "\x1b[91m500\x1b[0m",
    "gunicorn": '127.0.0.1 - - [29/Nov/2026:00:10:11 +0000] "POST /run HTTP/1.1" 500 12 "-" '
    '"Python/3 x"',
    "hypercorn": '[7] [INFO] 127.0.0.1:1 - - [29/Nov/2026:00:10:11 +0000] "POST /run 1.1" '
    '500 2 "-"',
}


@pytest.mark.parametrize("line", ACCESS_LINES.values(), ids=ACCESS_LINES)
def test_line_of_an_access_log_is_no_word_about_a_failure(line: str) -> None:
    assert not has_words(f"{line}\n\n{line}\n")
    assert has_words(f"{line}\nno model\n")


@pytest.mark.parametrize(
    "line", ['ERROR failed "POST /run": no model', "because", "[ERROR] code 5, message x"]
)
def test_other_line_is_a_word_about_a_failure(line: str) -> None:
    assert has_words(line)


def test_every_kind_of_cause_has_a_step_that_does_not_lead_back_to_debug() -> None:
    from supervisord_py.tools.causes import _STEPS

    assert set(_STEPS) == set(CauseKind)
    assert "tools debug" not in json.dumps(STEPS)
