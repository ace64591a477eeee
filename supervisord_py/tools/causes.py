"""What stopped a tool, as far as its stderr tells it, and the next step for that cause.

`find_cause` is pure: the last exception with a whole traceback, or a line after it that says more
(a port that is taken, a program that a shell did not find). `hint_of` looks at the tool's folder,
because the next step depends on which files are there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from supervisord_py.config.documents import DocumentError, read_document
from supervisord_py.tools import tracebacks
from supervisord_py.tools.environment import dependency_file, needs_sync, rebuild_step
from supervisord_py.tools.manifest import DOTENV, VENV, ToolSpec
from supervisord_py.tools.tracebacks import Raised

PACKAGE_JSON = "package.json"
_INSTALLERS = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"}
"""Programs that install Node's modules, by the file that each leaves; npm otherwise."""


class CauseKind(Enum):
    EXCEPTION = auto()
    SYNTAX_ERROR = auto()
    PYTHON_MODULE = auto()
    NODE_MODULE = auto()
    PORT_IN_USE = auto()
    MISSING_VARIABLE = auto()
    MISSING_PROGRAM = auto()
    CARRIAGE_RETURN = auto()
    MEMORY = auto()


class Cause(NamedTuple):
    """`headline`: one line, without the place. `subject`: the module, variable or program that is
    missing.

    `place` is `file:line` of the tool's own code, relative to its folder, "" where that is not
    known.
    """

    kind: CauseKind
    headline: str
    subject: str = ""
    place: str = ""

    def __str__(self) -> str:
        return f"{self.headline} ({self.place})" if self.place else self.headline


# -- finding it ---------------------------------------------------------------------------------

MEMORY_SIGNS = re.compile(
    r"MemoryError|_ArrayMemoryError|std::bad_alloc|Memory allocation still failed|can't start new "
    r"thread"
    r"|Cannot allocate memory|JavaScript heap out of memory"
)
_IN_USE = re.compile(
    r"(?i)\b(?:address|port)\b[^\n]{0,60}\b(?:already (?:in use|taken|used|bound|allocated)|in use "
    r"by"
    r"|is (?:in use|taken|occupied|busy|not available))|EADDRINUSE"
)
_PYTHON_MODULE = re.compile(
    r"(?:(?:ModuleNotFound|Import)Error: |\bpython[\d.]*: )No module named '?(?P<subject>[\w.]+)'?"
)
_NODE_MODULE = re.compile(r"Cannot find (?:module|package) '(?P<subject>[^'\n]+)'")
_QUOTE = "[\u2018'\"`]?"
_CARRIAGE_RETURN = re.compile(
    r"env: (?:can.t execute "
    rf")?{_QUOTE}(?P<subject>[^\s\u2019'\"]+?)(?:\\r|\^M|\r)|(?P<other>\S+)\^M: bad interpreter"
)
_ENV_PROGRAM = (
    rf"env: (?:can.t execute )?{_QUOTE}(?P<by_env>[^\s\u2019'\"`:]+)[\u2019'\"`]?: No such file or "
    r"directory"
)
_SHELL_PROGRAM = (
    # A path that is not there may be a file that is read, too: the step says so little of it.
    r"^[^:\n]+: (?:line )?\d+: (?:exec: )?(?:(?P<by_shell>[^:\s]+): (?:command )?not found"
    r"|(?P<by_path>[^:\s]*/[^:\s]+): (?:No such file or directory|cannot execute: required file "
    r"not found))$"
)
_MISSING_PROGRAM = re.compile(rf"{_ENV_PROGRAM}|{_SHELL_PROGRAM}|\bspawn (?P<by_node>\S+) ENOENT")
_SHELL_VARIABLE = re.compile(
    r"^[^:\n]+: (?:line )?\d+: (?P<subject>[A-Za-z_]\w*): (?:unbound variable|parameter (?:null or "
    r")?not set)"
)
_NAMED_VARIABLE = re.compile(
    r"(?i:environment variables?|env(?:ironment)? "
    r"vars?)[:\s]+[`'\"]?(?P<after>[A-Z][A-Z0-9_]{2,})\b"
    r"|\b(?P<before>[A-Z][A-Z0-9_]{2,})[`'\"]? (?i:environment variable|env var)"
    r"|\b(?P<declared>[A-Z][A-Z0-9_]{2,}) not found\. Declare it as envvar"
)
_UNSET_VARIABLE = re.compile(
    r"\b(?P<subject>[A-Z][A-Z0-9]*_[A-Z0-9_]+)\b[`'\"]? (?:must be set|(?:is |was )?"
    r"(?:not set|unset|missing|required|undefined|not defined|not found))\b"
)
"""How programs report a variable that they looked for; a name without `_` may be any word."""
_LINES: tuple[tuple[CauseKind, re.Pattern[str]], ...] = (
    (CauseKind.CARRIAGE_RETURN, _CARRIAGE_RETURN),
    (CauseKind.PYTHON_MODULE, _PYTHON_MODULE),
    (CauseKind.NODE_MODULE, _NODE_MODULE),
    (CauseKind.PORT_IN_USE, _IN_USE),
    (CauseKind.MISSING_VARIABLE, _SHELL_VARIABLE),
    (CauseKind.MISSING_PROGRAM, _MISSING_PROGRAM),
    (CauseKind.MEMORY, MEMORY_SIGNS),
)
"""What a line says by itself."""
_SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError"})
_LIBRARY_OF_SETTINGS = "/pydantic_settings/"
_SUBPROCESS = "/subprocess.py"


def find_cause(stderr_tail: str, folder: str) -> Cause | None:
    """Return the cause of a program's end, as its stderr tells it. The last known line wins.

    That is a known line after the last exception, or that exception if there is no such line.
    `folder`: where the program's own code lies. Returns None if stderr shows neither.
    """
    raised = tracebacks.last_exception(stderr_tail)
    lines = stderr_tail.splitlines()
    first_after = raised.end if raised is not None else 0
    for line in reversed(lines[first_after:]):
        cause = _cause_in_line(line.rstrip("\n"))
        if cause is not None:
            return cause
    if lines[first_after:]:
        # Further up it may be a remark about something that the program can do without.
        unset = _UNSET_VARIABLE.search(lines[-1])
        if unset is not None and "warn" not in lines[-1].lower():
            return Cause(CauseKind.MISSING_VARIABLE, lines[-1].strip(), unset["subject"])
    return None if raised is None else _cause_of(raised, folder)


def _cause_in_line(line: str) -> Cause | None:
    for kind, pattern in _LINES:
        match = pattern.search(line)
        if match is not None:
            return Cause(kind, line.strip(), _subject(match))
    return None


def _subject(match: re.Match[str]) -> str:
    """Return the one named group of a pattern that took part in the match."""
    return next((text for text in match.groupdict().values() if text), "")


def _cause_of(raised: Raised, folder: str) -> Cause:
    frame = tracebacks.place_in(raised, folder)
    place = ""
    if frame is not None:
        place = f"{frame.file.removeprefix(f'{folder}/')}:{frame.line}"
    if raised.type in _SYNTAX_ERRORS:
        if not place and raised.frames:
            # a wrong file of another folder
            place = f"{raised.frames[-1].file}:{raised.frames[-1].line}"
        return Cause(CauseKind.SYNTAX_ERROR, str(raised), place=place)
    variable = _missing_variable(raised)
    if variable:
        return Cause(CauseKind.MISSING_VARIABLE, str(raised), variable, place)
    program = _missing_program(raised)
    if program:
        return Cause(CauseKind.MISSING_PROGRAM, str(raised), program, place)
    said = _cause_in_line(str(raised))
    if said is not None:
        return said._replace(place=place)
    return Cause(CauseKind.EXCEPTION, str(raised), raised.type, place)


def _missing_variable(raised: Raised) -> str:
    """Return the environment variable that was asked for and is not set; "" where it was
    something else.
    """
    # os.environ is a mapping of the standard library, whose module is frozen since Python 3.11.
    is_environ = any(
        frame.function == "__getitem__"
        and (frame.file == "<frozen os>" or frame.file.endswith("/os.py"))
        for frame in raised.frames
    )
    if raised.type == "KeyError" and is_environ:
        return raised.message.strip("'\"")
    is_of_settings = any(_LIBRARY_OF_SETTINGS in frame.file for frame in raised.frames)
    if is_of_settings and raised.type.endswith("ValidationError") and raised.details:
        name = raised.details[0].strip()
        return name.upper() if name.isidentifier() else ""
    named = _NAMED_VARIABLE.search(raised.message) or _UNSET_VARIABLE.search(raised.message)
    return "" if named is None else _subject(named)


def _missing_program(raised: Raised) -> str:
    """Return the program that Python could not start as a subprocess; "" where it was something
    else.
    """
    is_start = any(frame.file.endswith(_SUBPROCESS) for frame in raised.frames)
    if raised.type != "FileNotFoundError" or not is_start:
        return ""
    return raised.message.rpartition(": ")[2].strip("'\"")


# -- what to do about it ------------------------------------------------------------------------


def hint_of(cause: Cause, spec: ToolSpec) -> str | None:
    """Return the next step for a cause; None where none is known. Looks at the tool's folder."""
    return _STEPS[cause.kind](cause, spec)


def _fix_exception(cause: Cause, spec: ToolSpec) -> str | None:
    if not cause.place:
        return None
    return f"Fix {_full_place(cause, spec)} ({cause.subject})."


def _fix_syntax(cause: Cause, spec: ToolSpec) -> str | None:
    return f"Correct the syntax error in {_full_place(cause, spec)}." if cause.place else None


def _full_place(cause: Cause, spec: ToolSpec) -> str:
    return str(spec.folder / cause.place)


def _install_python_module(cause: Cause, spec: ToolSpec) -> str:
    sync = f"`pxctl tools sync {spec.name}`"
    missing = f"Module {cause.subject} is missing"
    if needs_sync(spec):
        return f"Its environment is not built: run {sync}."
    if spec.python:
        return f"{missing}: install it for {spec.python}, the `python` of {spec.settings_file}."
    foreign = _foreign_interpreter(spec)
    if foreign:
        return f"{missing}: install its package for {foreign}, which `command` runs."
    source = dependency_file(spec)
    if source is None:
        return (
            f"{missing}: write a requirements.txt with its package in {spec.folder}, then run "
            f"{sync}."
        )
    return f"{missing}: add its package to {source}, then run {sync}."


def _foreign_interpreter(spec: ToolSpec) -> str:
    """Return the Python outside the tool's folder that its command runs; "" where it is the tool's
    own.

    A script of another environment names its interpreter in its first line.
    """
    if not spec.command:
        return ""
    program = spec.folder / spec.command[0]  # an absolute path stays what it is
    if "/" not in spec.command[0] or program.is_relative_to(spec.folder):
        return ""
    if program.name.startswith("python"):
        return str(program)
    try:
        with open(program, "rb") as file:
            first_line = file.readline(1000).decode(errors="replace").strip()
    except OSError:
        return ""
    interpreter = first_line.removeprefix("#!").strip() if first_line.startswith("#!") else ""
    return interpreter if Path(interpreter.split(" ")[0]).name.startswith("python") else ""


def _install_node_module(cause: Cause, spec: ToolSpec) -> str:
    name = cause.subject
    if name.startswith((".", "/", "file:")):
        return f"The file {name} is not there: correct the path in the tool's code or in `command`."
    installer = next(
        (word for file, word in _INSTALLERS.items() if (spec.folder / file).exists()), "npm"
    )
    parts = name.split("/")
    package = "/".join(parts[:2]) if name.startswith("@") else parts[0]
    if package in _listed_packages(spec.folder):
        command = f"{installer} install"
    elif installer == "npm":
        command = f"npm install {package}"
    else:
        command = f"{installer} add {package}"
    return f"Module {package} is missing: run `{command}` in {spec.folder}."


def _listed_packages(folder: Path) -> set[str]:
    """Return the packages that package.json asks for; none where there is none or it is broken."""
    try:
        document = read_document(folder / PACKAGE_JSON).value
    except (DocumentError, OSError):
        return set()
    if not isinstance(document, dict):
        return set()
    listed: set[str] = set()
    for key in ("dependencies", "devDependencies", "optionalDependencies"):
        packages = document.get(key)
        listed |= packages.keys() if isinstance(packages, dict) else set()
    return listed


def _free_port(cause: Cause, spec: ToolSpec) -> str:
    if spec.listen == "handover":
        return (
            f'Its port is taken: set "listen": "port" in {spec.settings_file} if the program binds '
            "or tests the port"
            " itself, and let it bind 127.0.0.1 on the port of --port."
        )
    given = "the port that {port} stands for" if spec.command else "the port of --port"
    return (
        f"Its port is taken: let it bind 127.0.0.1 on {given}; `ss -ltnp` shows what holds another "
        "one."
    )


def _set_variable(cause: Cause, spec: ToolSpec) -> str:
    return (
        f"Set {cause.subject} in {spec.folder / DOTENV} (mode 600) or in `env` of "
        f"{spec.settings_file};"
        " to pass the daemon's own, add its name to tools.env_allow in pxd.toml."
    )


def _find_program(cause: Cause, spec: ToolSpec) -> str:
    program = cause.subject
    step = missing_program_step(program, spec)
    if step is not None:
        return step
    if "/" in program:
        return f"{program} is not there: install it, or correct the script that names it."
    return f"Install {program}, or add its folder to PATH in {spec.folder / DOTENV}."


def missing_program_step(program: str, spec: ToolSpec) -> str | None:
    """Return the next step where a program should come with the tool's environment; None where
    it should not.
    """
    if needs_sync(spec):
        return f"Its environment is not built: run `pxctl tools sync {spec.name}`."
    if f"/{VENV}/" in program or program.startswith((f"{VENV}/", f"./{VENV}/")):
        return rebuild_step(spec)
    return None


def _remove_carriage_returns(cause: Cause, spec: ToolSpec) -> str:
    script = spec.command[0] if spec.command and "/" in spec.command[0] else "FILE"
    return (
        f"The script has line endings of Windows: run `sed -i 's/\\r$//' {script}` in "
        f"{spec.folder}."
    )


def _raise_memory(cause: Cause, spec: ToolSpec) -> str:
    return (
        f"memory (suspected): it says that it ran out; raise max_memory_mb ({spec.max_memory_mb})."
    )


_STEPS: dict[CauseKind, Callable[[Cause, ToolSpec], str | None]] = {
    CauseKind.EXCEPTION: _fix_exception,
    CauseKind.SYNTAX_ERROR: _fix_syntax,
    CauseKind.PYTHON_MODULE: _install_python_module,
    CauseKind.NODE_MODULE: _install_node_module,
    CauseKind.PORT_IN_USE: _free_port,
    CauseKind.MISSING_VARIABLE: _set_variable,
    CauseKind.MISSING_PROGRAM: _find_program,
    CauseKind.CARRIAGE_RETURN: _remove_carriage_returns,
    CauseKind.MEMORY: _raise_memory,
}
