"""Tool folders to load, for the tests of the tools room."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from supervisord_py.tools.manifest import ToolSpec, load_tool
from supervisord_py.tools.pixie import INPUT_TYPES

OLD = 1_700_000_000
OPTIONS = [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]
_MORE: dict[str, dict[str, Any]] = {
    "text": {"default": "hi", "max_length": 20}, "textarea": {"monospace": True, "default": ""},
    "number": {"min": 0, "max": 100, "step": 1, "default": 42},
    "slider": {"min": 0, "max": 100, "step": 1},
    "select": {"options": OPTIONS}, "multiselect": {"options": OPTIONS, "default": ["a"]},
    "radio": {"options": [{"value": 1, "label": "1"}, {"value": 12, "label": "12"}]},
    "checkbox": {"default": True, "required": False}, "date": {"min": "2020-01-01"},
    "colour": {"default": "#5563d1"},
    "file": {"multiple": True, "accept": ".csv", "required": False},
    "json": {"schema": {"type": "object"}},
    "autocomplete": {"endpoint": "cities"},
    "table": {"columns": [{"key": "n", "type": "text"}], "min_rows": 1},
    "map_point": {"default_center": [51.5, -0.1]}, "hidden": {"default": "secret-value"},
}  # fmt: skip
FULL_INPUTS: list[dict[str, Any]] = [
    {"key": f"t_{kind}", "type": kind, "label": "x", "placeholder": "p", **_MORE.get(kind, {})}
    for kind in sorted(INPUT_TYPES)
]
FULL_INPUTS.append({"key": "t_range", "type": "slider", "min": 0, "max": 100, "range": True})
"""Every input type of Pixie's dialect once, sliders twice."""


def write_tool(parent: Path, name: str, manifest: Any = None, **files: str | bytes) -> Path:
    """Write a tool folder; `manifest` may be text, bytes or a JSON value; `files` are named with
    `__` for dots.
    """
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.py").write_text("print('x')\n")
    if manifest is None:
        manifest = {"name": name}
    if not isinstance(manifest, (str, bytes)):
        manifest = json.dumps(manifest, indent=2)
    (folder / "tool.json").write_bytes(manifest.encode() if isinstance(manifest, str) else manifest)
    for file, content in files.items():
        path = folder / file.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def age(folder: Path) -> None:
    """Make every file of a folder old, so that its stamps can be trusted."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (OLD, OLD))


def plain(parent: Path, name: str = "tool", **keys: Any) -> ToolSpec:
    """Load a tool of the plain dialect."""
    return load_tool(write_tool(parent, name, {"name": name, **keys}))


def pixie_manifest(name: str = "tool", **keys: Any) -> dict[str, Any]:
    """Return a small manifest of Pixie's dialect."""
    return {
        "id": name,
        "name": "A title",
        "inputs": [{"key": "a", "type": "number", "label": "A", "default": 1}],
        "outputs": [{"key": "out", "type": "number", "label": "Out"}],
        **keys,
    }


def pixie(
    parent: Path, name: str = "tool", sidecar: dict[str, Any] | None = None, **keys: Any
) -> ToolSpec:
    """Load a tool of Pixie's dialect."""
    files = {} if sidecar is None else {"pxd__json": json.dumps(sidecar)}
    return load_tool(write_tool(parent, name, pixie_manifest(name, **keys), **files))
