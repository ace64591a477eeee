"""`pxctl tools new NAME`: a working tool to start from, with its test request. Never overwrites anything."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import BadRequestError, ConflictError
from supervisord_py.tools.declaring.declaration import name_trouble
from supervisord_py.tools.making.placing import placed
from supervisord_py.tools.making.templates import FASTAPI_MAIN, NODE_MAIN, STDLIB_MAIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REQUEST = {"text": "hello", "times": 3}


class Template(StrEnum):
    """What the new tool is written with."""

    STDLIB = "stdlib"
    FASTAPI = "fastapi"
    NODE = "node"


def new_tool(tools_dir: Path, name: str, template: Template = Template.STDLIB) -> Path:
    """Write a new tool and return its folder; it appears whole or not at all.

    Raises:
        BadRequestError: The name cannot be a tool's.
        ConflictError: There is something of that name already.
    """
    trouble = name_trouble(name)
    if trouble:
        raise BadRequestError(f"{name[:80]!r} {trouble}", hint="pxctl tools new my-tool")
    folder = tools_dir / name
    if os.path.lexists(folder):
        raise ConflictError(f"{folder} is there already", hint="choose another name", unit=f"tool:{name}")
    with placed(folder) as draft:
        os.mkdir(draft, 0o700)
        for file, content in files_of(name, template).items():
            (draft / file).write_text(content, encoding="utf-8")
    return folder


def files_of(name: str, template: Template) -> dict[str, str]:
    """Return the files of a new tool by name."""
    files = {
        "tool.json": _pretty(_manifest(name, template)),
        "test-request.json": json.dumps(REQUEST) + "\n",
        "README.md": f"# {name}\n\nRepeats a text. Try it: `pxctl run {name} text=hello times=3`\n",
    }
    match template:
        case Template.STDLIB:
            return files | {"main.py": STDLIB_MAIN}
        case Template.FASTAPI:
            return files | {"main.py": FASTAPI_MAIN, "requirements.txt": "fastapi>=0.115\nuvicorn>=0.32\n"}
        case Template.NODE:
            return files | {"main.js": NODE_MAIN}


def _manifest(name: str, template: Template) -> dict[str, Any]:
    command = {"command": ["node", "main.js", "--port", "{port}"]} if template is Template.NODE else {}
    return {
        "name": name,
        "version": "0.1.0",
        "description": "Repeats a text",
        **command,
        "input": {
            "type": "object",
            "properties": {
                "text": {"description": "What to repeat", "type": "string", "maxLength": 10000},
                "times": {"description": "How often", "type": "integer", "minimum": 1, "maximum": 100, "default": 2},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        "output": {
            "type": "object",
            "properties": {"result": {"type": "string"}, "length": {"type": "integer"}},
            "required": ["result", "length"],
        },
    }


def _pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
