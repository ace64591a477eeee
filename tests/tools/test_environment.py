"""A tool is started with the right interpreter, sees what it is allowed and brings; and what a
build of it leaves.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config.settings import TOOLS_ENV, ToolsSettings
from supervisord_py.errors import ConflictError, StartFailedError, TimedOutError
from supervisord_py.process import program
from supervisord_py.process.child_environment import DENIED, passed, read_dotenv
from supervisord_py.process.program import Completed
from supervisord_py.tools import environment
from supervisord_py.tools.environment import (
    Builder,
    SyncFailedError,
    build_environment,
    find_interpreter,
)
from supervisord_py.tools.manifest import load_tool
from tool_folders import plain, write_tool
from tools.tool_house import ToolHouse


def test_the_layers_in_their_order(tmp_path: Path) -> None:
    spec = plain(tmp_path, env={"B": "env", "C": "env"})
    lines = (
        "A=dotenv",
        "B=dotenv",
        "HOME=/dotenv",
        "LISTEN_FDS=9",
        "PX_OWN=mine",
        "X=${A}-${LC_TIME}-${SECRET:-none}",
    )
    (spec.folder / ".env").write_text("\n".join((*lines, "Y='${X}!'", "Z=$A")))
    source = {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_TIME": "C",
        "SECRET": "x",
        "PX_TOOLS__PATHS": "x",
        "C": "daemon",
    }
    built = build_environment(spec, source, TOOLS_ENV, tmp_path, {"LISTEN_FDS": "1", "C": "extra"})
    assert dict(built) == {
        "PATH": "/bin", "HOME": "/dotenv", "LC_TIME": "C", "PYTHONUNBUFFERED": "1", "A": "dotenv",
        "B": "env",
        "C": "extra", "PX_OWN": "mine", "LISTEN_FDS": "1", "X": "dotenv-C-none",
        "Y": "dotenv-C-none!", "Z": "$A",
    }  # fmt: skip
    assert "dotenv" not in repr(built)


NAMES = st.sampled_from(
    ["PATH", "LC_ALL", "PX_API__TOKEN", "px_home", "SECRET", *DENIED]
) | st.text("aPX_*", min_size=1)


@given(
    st.dictionaries(NAMES, st.text(max_size=4)),
    st.lists(NAMES | NAMES.map("{}*".format) | st.just("*")),
)
def test_what_is_denied_never_passes_whatever_is_allowed(
    source: dict[str, str], allow: list[str]
) -> None:
    got = passed(source, allow)
    assert got.items() <= source.items()
    for name in source:
        allowed = any(
            name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allow
        )
        assert (name in got) == (
            allowed and not name.upper().startswith("PX_") and name not in DENIED
        )


def test_lines_of_dotenv_that_cannot_be_used_are_warnings_without_values(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert read_dotenv(path) == ({}, ())
    lines = (
        "# a comment",
        "A=1",
        "",
        "",
        "export B='two words'",
        "this is hunter2",
        "C",
        "1X=hunter2",
    )
    path.write_text(
        "\n".join((*lines, "PX_INSTANCE=hunter2", "E=", 'F="multi\nline"', "LAST=hunter2\0", ""))
    )
    values, warnings = read_dotenv(path)
    assert values == {"A": "1", "B": "two words", "E": "", "F": "multi\nline"}
    found = [warning.partition(", line ")[2] for warning in warnings]
    wanted = [
        "6: is no NAME",
        "7: C has no",
        "8: the name is none",
        "9: PX_INSTANCE",
        "13: the value holds a NUL",
    ]
    assert all(one.startswith(other) for one, other in zip(found, wanted, strict=True)), found
    assert "hunter2" not in " ".join(warnings)
    path.write_bytes(b"A=\xff")
    assert "not UTF-8" in read_dotenv(path)[1][0]


def test_an_interpreter_that_is_missing_is_named(tmp_path: Path) -> None:
    def trouble(settings_python: str | None = None, **keys: Any) -> str:
        with pytest.raises(StartFailedError) as caught:
            find_interpreter(plain(tmp_path, **keys), settings_python)
        assert caught.value.extra == {"reason": "spawn_failed", "stage": "interpreter"}
        return f"{caught.value.detail}; {caught.value.hint}"

    said = trouble(python="python3.99")
    assert (
        "python3.99 of tool:tool (`python` of the tool) is not there; set `python` in tool.json"
        in said
    )
    assert "`tools.python` of the settings" in (said := trouble("/nowhere/python"))
    assert "set tools.python in pxd.toml" in said
    python = tmp_path / "tool" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    assert "(its .venv) is not there" in trouble()
    python.symlink_to("/nowhere/python3")
    said = trouble()
    assert "it is a link to /nowhere/python3" in said
    assert f"python3 -m venv --clear {python.parent.parent}" in said, (
        "a sync has nothing to build it from"
    )
    (tmp_path / "tool" / "requirements.txt").touch()
    assert trouble().endswith("; pxctl tools sync tool")
    python.unlink()
    python.touch(0o644)
    assert "is not executable" in trouble()


async def test_a_sync_with_nothing_to_build_from_does_not_leave_a_broken_environment_unsaid(
    tmp_path: Path,
) -> None:
    folder = plain(tmp_path).folder
    assert (await synced(folder, Scripted())) == [
        "nothing to build: tool:tool has no requirements.txt or pyproject.toml"
    ]
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/nowhere/python3")
    with pytest.raises(SyncFailedError, match="has no interpreter") as caught:
        await synced(folder, Scripted())
    assert "tools sync" not in str(caught.value.hint)


# -- sync ------------------------------------------------------------------------------------------

_BESIDE = Path(sys.executable).with_name("uv")
UV = shutil.which("uv") or (str(_BESIDE) if _BESIDE.exists() else None)
OFFLINE = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ["HOME"],
    "UV_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
}
WHEEL = "demo_px-1.0-py3-none-any.whl"


def wheel(path: Path) -> None:
    """Write a wheel with one module, as a builder would."""
    files = {
        "demo_px/__init__.py": "ANSWER = 42\n",
        "demo_px-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo-px\nVersion: 1.0\n",
        "demo_px-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: "
        "py3-none-any\n",
    }
    files["demo_px-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


class Scripted:
    """Runs nothing: records the steps and does to the folder what a builder would."""

    def __init__(self, *codes: int, block: bool = False) -> None:
        self.codes, self.block = list(codes), block
        self.steps: list[tuple[str, ...]] = []
        self.running, self.stopped = asyncio.Event(), asyncio.Event()

    async def __call__(self, argv: Sequence[str], *, on_line: Any, cwd: str, **_: Any) -> Completed:
        self.steps.append(tuple(argv))
        made = Path(cwd) / ".venv.new" / "bin"
        made.mkdir(parents=True, exist_ok=True)
        (made / "serve").write_text(f"#!{cwd}/.venv.new/bin/python\n")
        on_line("the reason")
        self.running.set()
        try:
            await (asyncio.Event().wait() if self.block else asyncio.sleep(0))
        finally:
            self.stopped.set()
        return Completed(self.codes.pop(0) if self.codes else 0, None, "the reason\n\n", "")


async def synced(folder: Path, run: Any, uv: str | None = "/uv", **defaults: Any) -> list[str]:
    return [
        line
        async for line in Builder(run, OFFLINE, ToolsSettings(**defaults), uv).sync(
            load_tool(folder)
        )
    ]


def shape(folder: Path) -> set[str]:
    """Return the names under `.venv`, and the other names that begin like it."""
    inside = (
        {f".venv/{path.name}" for path in (folder / ".venv").iterdir()}
        if (folder / ".venv").is_dir()
        else set()
    )
    return inside | {path.name for path in folder.iterdir() if path.name.startswith(".venv.")}


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("builder", ["uv", "pip"])
async def test_what_is_asked_for_can_be_imported_and_is_compiled(
    house: ToolHouse, builder: str, require: Any
) -> None:
    require(builder != "uv" or UV is not None, "uv is not installed")
    folder = write_tool(house.tools, "tool", requirements__txt=f"./{WHEEL}\n")
    wheel(folder / WHEEL)
    run, uv, venv = (
        partial(program.run, house.placement),
        UV if builder == "uv" else None,
        folder / ".venv",
    )
    await synced(folder, run, uv)
    command = [
        venv / "bin" / "python",
        "-c",
        "import demo_px, sys; print(demo_px.ANSWER, sys.prefix)",
    ]
    printed = await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=60)
    assert (printed.split(), environment.lacks_bytecode(venv)) == (["42", str(venv)], False)
    if uv is None:  # which finds an interpreter that fits by itself
        (folder / "requirements.txt").unlink()
        (folder / "pyproject.toml").write_text('[project]\nrequires-python = ">=4"\n')
        with pytest.raises(
            SyncFailedError, match=r"the tool requires Python >=4, this is 3[.\d]+"
        ) as caught:
            await synced(folder, run, None)
        assert ("\n" in caught.value.detail, "install uv" in str(caught.value.hint)) == (
            False,
            True,
        )
        (folder / "pyproject.toml").write_text('[project]\nrequires-python = "new"\n')
        with pytest.raises(SyncFailedError, match=r"requires-python of pyproject.toml: .*new"):
            await synced(folder, run, None)


async def test_a_failed_or_cancelled_build_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tool(tmp_path, "tool", requirements__txt="demo-px\n")
    # the last two were left by a build that was killed
    for name in (".venv", ".venv.new", ".venv.old"):
        (folder / name).mkdir()
    (folder / ".venv" / "old").touch()
    run = Scripted(0, 3)
    with pytest.raises(SyncFailedError, match="exits with 3: the reason"):
        await synced(folder, run)
    assert (len(run.steps), shape(folder)) == (2, {".venv/old"})
    run = Scripted(block=True)
    task = asyncio.ensure_future(synced(folder, run))
    await asyncio.wait_for(run.running.wait(), 30)
    with pytest.raises(ConflictError, match="is being synced already"):
        await synced(folder, run)
    task.cancel()
    await asyncio.wait([task])
    assert run.stopped.is_set()
    monkeypatch.setattr(environment, "BUILD_SECONDS", 0.05)
    with pytest.raises(TimedOutError):
        await synced(folder, Scripted(block=True))
    assert shape(folder) == {".venv/old"}
    (folder / "requirements.txt").unlink()
    (folder / "pyproject.toml").write_text('[project]\nrequires-python = ">=4"\n')
    (folder / ".venv").rename(tmp_path / "real")
    (folder / ".venv").symlink_to(tmp_path / "real")
    run = Scripted()
    assert (await synced(folder, run))[-1].startswith("built")
    assert run.steps == [
        ("/uv", "venv", "--allow-existing", "--python", ">=4", f"{folder}/.venv.new")
    ]
    assert ((tmp_path / "real" / "old").exists(), shape(folder)) == (True, {".venv/bin"})
