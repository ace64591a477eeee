"""Texts, folders and settings of pipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supervisord_py.pipes.definition import declare
from supervisord_py.pipes.models import BrokenPipe, Declared, PipeDefinition, PipesConfig


def pipe_text(header: str = "", body: str = "Do it.") -> str:
    return f"---\n{header}{'' if header.endswith(chr(10)) or not header else chr(10)}---\n{body}\n"


def read(text: str | bytes, name: str = "mine") -> Declared:
    raw = text if isinstance(text, bytes) else text.encode()
    return declare(raw, folder=Path("/pipes") / name)


def usable(header: str, body: str = "Do it.", name: str = "mine") -> PipeDefinition:
    found = read(pipe_text(header, body), name)
    assert isinstance(found, PipeDefinition), found
    return found


def broken(header: str, body: str = "Do it.") -> BrokenPipe:
    found = read(pipe_text(header, body))
    assert isinstance(found, BrokenPipe), found
    return found


def write_folder(pipes_dir: Path, name: str, header: str = "", body: str = "Do it.") -> Path:
    folder = pipes_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pipe.md").write_text(pipe_text(header, body), encoding="utf-8")
    return folder


def scripted_agent(name: str, script: str) -> str:
    """Return the table of an agent that is a shell script."""
    argv = json.dumps(["/bin/sh", "-c", script])
    success = '{ require = "nothing" }'
    return f'\n[agents.{name}]\nargv = {argv}\nprompt = "stdin"\nparser = "text"\nsuccess = {success}\n'


EXAMPLES = Path(__file__).parents[1] / "supervisord_py" / "examples" / "pipes"


def pipes_config(root: Path, **changes: Any) -> PipesConfig:
    places = {name: root / name.partition("_")[0] for name in ("pipes_dir", "executions_dir")}
    places |= {
        name: root / name.replace("_file", ".toml") for name in ("presets_file", "agents_file")
    }
    return PipesConfig(
        **{"examples_dir": EXAMPLES, "socket": str(root / "pxd.sock"), **places, **changes}
    )
