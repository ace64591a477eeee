"""Building a tool's `.venv` with real builders, and what is left when one fails, is cancelled or is killed."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.errors import ConfigError, ConflictError
from supervisord_py.tools.declaring.manifest import load_tool
from supervisord_py.tools.making.requirements import Source, needs_of, script_block
from supervisord_py.tools.making.sync import (
    BuildCommand,
    Builders,
    StepEnd,
    SyncFailedError,
    compile_bytecode,
    lacks_bytecode,
    sync_tool,
)
from tool_folders import write_tool
from tool_processes import run_step

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_BESIDE = Path(sys.executable).with_name("uv")
UV = shutil.which("uv") or (str(_BESIDE) if _BESIDE.exists() else None)
OFFLINE = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ["HOME"],
    "UV_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
    "PX_X": "1",
    "SECRET": "1",
}
WHEEL = "demo_px-1.0-py3-none-any.whl"


def wheel(folder: Path) -> Path:
    """Write a wheel with one module, as a builder would."""
    files = {
        "demo_px/__init__.py": "ANSWER = 42\n",
        "demo_px-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo-px\nVersion: 1.0\n",
        "demo_px-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    csv.writer(record).writerows([name, "", ""] for name in [*files, "demo_px-1.0.dist-info/RECORD"])
    files["demo_px-1.0.dist-info/RECORD"] = record.getvalue()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return folder / WHEEL


async def lines_of(folder: Path, builders: Builders) -> list[str]:
    return [line async for line in sync_tool(load_tool(folder), builders)]


class Scripted:
    """A runner that records its steps and does to the folder what it is told."""

    def __init__(self, *codes: int, lines: tuple[str, ...] = (), block: bool = False) -> None:
        self.codes = list(codes)
        self.lines = lines
        self.block = block
        self.commands: list[BuildCommand] = []
        self.closed = False
        self.running = asyncio.Event()

    async def __call__(self, command: BuildCommand) -> AsyncGenerator[str | StepEnd, None]:
        self.commands.append(command)
        venv = command.cwd / ".venv.new"
        (venv / "bin").mkdir(parents=True, exist_ok=True)
        (venv / "new").touch()
        try:
            for line in self.lines:
                yield line
            self.running.set()
            if self.block:
                await asyncio.Event().wait()
        finally:
            self.closed = True
        code = self.codes.pop(0) if self.codes else 0
        yield StepEnd(code, f"exited {code}")


def shape(folder: Path) -> set[str]:
    """Return the names under `.venv`, and the other names that begin like it."""
    inside = {f".venv/{path.name}" for path in (folder / ".venv").iterdir()} if (folder / ".venv").is_dir() else set()
    return inside | {path.name for path in folder.iterdir() if path.name.startswith(".venv.")}


def tool(tmp_path: Path, **files: str) -> Path:
    return write_tool(tmp_path, "tool", **(files or {"requirements__txt": "demo-px\n"}))


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("builder", ["uv", "pip"])
async def test_what_is_asked_for_can_be_imported_and_is_compiled(tmp_path: Path, builder: str, require: Any) -> None:
    require(builder != "uv" or UV is not None, "uv is not installed")
    folder = tool(tmp_path, requirements__txt=f"./{WHEEL}\n")
    wheel(folder)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "old").touch()
    said = await lines_of(folder, Builders(run_step, OFFLINE, uv=UV if builder == "uv" else None))
    python = folder / ".venv" / "bin" / "python"
    command = [python, "-c", "import demo_px, sys; print(demo_px.ANSWER, sys.prefix)"]
    printed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout.split() == ["42", str(folder / ".venv")]
    assert list((folder / ".venv").glob("lib/python*/site-packages/demo_px/__pycache__/*.pyc"))
    assert not lacks_bytecode(folder / ".venv")
    assert shape(folder) & {".venv/old", ".venv.new", ".venv.old"} == set()
    assert [name for name in os.listdir(folder) if name.startswith(".venv.")] == []
    assert said[0].startswith(f"building {folder / '.venv'} from requirements.txt with")
    assert said[-1].startswith(f"built {folder / '.venv'} in")
    assert load_tool(folder).warnings == ()


@pytest.mark.deep
async def test_the_metadata_of_a_script_is_enough(tmp_path: Path, require: Any) -> None:
    require(UV is not None, "uv is not installed")
    folder = tool(tmp_path, x="")
    needed = wheel(tmp_path).as_uri()
    (folder / "main.py").write_text(f'# /// script\n# dependencies = ["demo-px @ {needed}"]\n# ///\nimport demo_px\n')
    await lines_of(folder, Builders(run_step, OFFLINE, uv=UV))
    command = [folder / ".venv" / "bin" / "python", "main.py"]
    await asyncio.to_thread(subprocess.run, command, cwd=folder, check=True, timeout=60)


@pytest.mark.deep
async def test_a_failure_shows_the_builders_last_words_and_keeps_the_old(tmp_path: Path, require: Any) -> None:
    require(UV is not None, "uv is not installed")
    folder = tool(tmp_path, requirements__txt="surely-no-such-distribution==0\n")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "old").touch()
    with pytest.raises(SyncFailedError) as caught:
        await lines_of(folder, Builders(run_step, OFFLINE, uv=UV))
    assert "surely-no-such-distribution" in caught.value.extra["output_tail"]
    assert "cannot build" in caught.value.detail
    assert caught.value.hint == "mend requirements.txt of the tool, then: pxctl tools sync tool"
    assert shape(folder) == {".venv/old"}


async def test_the_steps_with_uv_and_the_environment_of_builders(tmp_path: Path) -> None:
    folder = tool(tmp_path, pyproject__toml='[project]\nname = "x"\ndependencies = ["demo-px>=1", "b"]\n')
    runner = Scripted()
    await lines_of(folder, Builders(runner, OFFLINE, uv="/uv", python="/py"))
    venv = f"{folder}/.venv.new"
    assert [command.argv for command in runner.commands] == [
        ("/uv", "venv", "--allow-existing", "--python", "/py", venv),
        (
            "/uv",
            "pip",
            "install",
            "--compile-bytecode",
            "--python",
            f"{venv}/bin/python",
            "-r",
            f"{venv}/.px-requirements.txt",
        ),
    ]
    env = runner.commands[0].env
    assert env["UV_OFFLINE"] == "1"
    assert env["VIRTUAL_ENV"] == env["UV_PROJECT_ENVIRONMENT"] == venv
    assert not {"PX_X", "SECRET"} & set(env)
    assert (folder / ".venv" / ".px-requirements.txt").read_text() == "demo-px>=1\nb\n"


async def test_a_lock_file_is_followed_where_there_is_uv(tmp_path: Path) -> None:
    folder = tool(tmp_path, pyproject__toml='[project]\ndependencies = ["a"]\n', uv__lock="")
    runner = Scripted()
    await lines_of(folder, Builders(runner, {}, uv="/uv"))
    assert runner.commands[1].argv[:4] == ("/uv", "sync", "--frozen", "--no-dev")
    runner = Scripted()
    await lines_of(folder, Builders(runner, {}))
    assert runner.commands[1].argv[1:4] == ("-m", "pip", "install")
    assert runner.commands[2].argv[1:3] == ("-m", "compileall")
    assert runner.commands[2].may_fail


async def test_an_empty_list_still_makes_an_environment(tmp_path: Path) -> None:
    folder = tool(tmp_path, pyproject__toml="[project]\n")
    runner = Scripted()
    await lines_of(folder, Builders(runner, {}, uv="/uv"))
    assert len(runner.commands) == 1
    assert shape(folder) == {".venv/bin", ".venv/new"}


async def test_nothing_to_build_is_no_error(tmp_path: Path) -> None:
    runner = Scripted()
    said = await lines_of(tool(tmp_path, x=""), Builders(runner, {}))
    assert said[0].startswith("nothing to build: tool:tool has no requirements.txt")
    own = write_tool(tmp_path, "own", {"name": "own", "python": "python3"}, requirements__txt="a")
    assert "names its own interpreter" in (await lines_of(own, Builders(runner, {})))[0]
    node = write_tool(tmp_path, "node", {"name": "node", "command": ["node", "{port}"]})
    assert "nothing to build" in (await lines_of(node, Builders(runner, {})))[0]
    assert runner.commands == []


async def test_a_failed_step_ends_the_build(tmp_path: Path) -> None:
    runner = Scripted(0, 3, lines=("noise", "the reason", ""))
    with pytest.raises(SyncFailedError, match="exited 3: the reason"):
        await lines_of(tool(tmp_path), Builders(runner, {}, uv="/uv"))
    assert len(runner.commands) == 2
    assert shape(tmp_path / "tool") == set()


async def test_a_step_that_says_nothing_of_its_end_has_failed(tmp_path: Path) -> None:
    async def vanish(_command: BuildCommand) -> AsyncGenerator[str | StepEnd, None]:
        for nothing in ():
            yield nothing

    with pytest.raises(SyncFailedError, match="vanished: it printed nothing"):
        await lines_of(tool(tmp_path), Builders(vanish, {}, uv="/uv"))


async def test_a_cancelled_build_is_undone_and_its_step_stopped(tmp_path: Path) -> None:
    folder = tool(tmp_path)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "old").touch()
    runner = Scripted(block=True)
    task = asyncio.ensure_future(lines_of(folder, Builders(runner, {}, uv="/uv")))
    await asyncio.wait_for(runner.running.wait(), 30)
    assert shape(folder) == {".venv/old", ".venv.new"}
    with pytest.raises(ConflictError, match="is being synced already"):
        await lines_of(folder, Builders(runner, {}))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert runner.closed
    assert shape(folder) == {".venv/old"}
    assert (await lines_of(folder, Builders(Scripted(), {}, uv="/uv")))[-1].startswith("built")


async def test_what_a_killed_build_left_is_cleared_away(tmp_path: Path) -> None:
    folder = tool(tmp_path)
    for name in (".venv.new", ".venv.old"):
        (folder / name / "bin").mkdir(parents=True)
        (folder / name / "left").touch()
    await lines_of(folder, Builders(Scripted(), {}, uv="/uv"))
    assert shape(folder) == {".venv/bin", ".venv/new"}


async def test_scripts_name_the_place_where_they_end_up(tmp_path: Path) -> None:
    folder = tool(tmp_path)

    async def build(command: BuildCommand) -> AsyncGenerator[str | StepEnd, None]:
        (folder / ".venv.new" / "bin").mkdir(exist_ok=True)
        (folder / ".venv.new" / "bin" / "serve").write_text(f"#!{command.env['VIRTUAL_ENV']}/bin/python\n")
        yield StepEnd(0, "")

    await lines_of(folder, Builders(build, {}, uv="/uv"))
    assert (folder / ".venv" / "bin" / "serve").read_text() == f"#!{folder}/.venv/bin/python\n"


async def test_a_linked_environment_loses_the_link_only(tmp_path: Path) -> None:
    folder = tool(tmp_path)
    real = tmp_path / "real"
    real.mkdir()
    (real / "kept").touch()
    (folder / ".venv").symlink_to(real)
    await lines_of(folder, Builders(Scripted(), {}, uv="/uv"))
    assert (real / "kept").exists()
    assert not (folder / ".venv").is_symlink()


async def test_bytecode_is_made_by_the_environments_own_interpreter(tmp_path: Path) -> None:
    folder = tool(tmp_path)
    (folder / ".venv").mkdir()
    runner = Scripted(1, lines=("*** Error compiling bad.py",))
    said = [line async for line in compile_bytecode(load_tool(folder), Builders(runner, {}))]
    assert said == [f"compiling {folder}/.venv", "*** Error compiling bad.py"]
    assert runner.commands[0].argv == (f"{folder}/.venv/bin/python", "-m", "compileall", "-q", f"{folder}/.venv/lib")


def test_the_first_source_wins(tmp_path: Path) -> None:
    folder = tool(tmp_path, requirements__txt="a", pyproject__toml='[project]\ndependencies = ["b"]')
    (folder / "main.py").write_text('# /// script\n# dependencies = ["c"]\n# ///\n')
    found = []
    for gone in ("requirements.txt", "pyproject.toml", "main.py"):
        needs = needs_of(load_tool(folder))
        assert needs is not None
        found.append((needs.source, needs.requirements))
        (folder / gone).unlink() if gone != "main.py" else (folder / gone).write_text("")
    assert found == [(Source.REQUIREMENTS, ()), (Source.PYPROJECT, ("b",)), (Source.SCRIPT, ("c",))]
    assert needs_of(load_tool(folder)) is None


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("# /// script\n# a = 1\n#\n# b = 2\n# ///\n", "a = 1\n\nb = 2"),
        ("import os\n# /// script\n# ///\n", ""),
        ("# /// script\n# a = 1\n", None),
        ("# /// script\n# a = 1\nx = 1\n# ///\n", None),
        ("# /// other\n# a = 1\n# ///\n", None),
        ("", None),
    ],
)
def test_script_metadata(text: str, block: str | None) -> None:
    assert script_block(text) == block


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[[", "is no TOML"),
        ("project = 5", r"\[project\] must be a table"),
        ("[project]\ndependencies = 5", "array of strings"),
        ("[project]\ndependencies = ['--index-url=http://x']", "is no dependency"),
        ('[project]\ndependencies = ["a\\nb"]', "is no dependency"),
    ],
)
def test_broken_metadata_is_named(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        needs_of(load_tool(tool(tmp_path, pyproject__toml=content)))
    assert caught.value.extra["file"] == str(tmp_path / "tool" / "pyproject.toml")


def test_metadata_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    spec = load_tool(tool(tmp_path, x=""))
    (spec.folder / "main.py").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        needs_of(spec)
    (spec.folder / "pyproject.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="decode"):
        needs_of(spec)
