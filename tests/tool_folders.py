"""Tool folders to load, for the tests of the tools room."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from supervisord_py.tools.manifest import ToolSpec, load_tool

OLD = 1_700_000_000
OPTIONS = [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]
FULL_INPUTS: list[dict[str, Any]] = [
    {"key": "t_text", "type": "text", "label": "x", "default": "hi", "placeholder": "p", "max_length": 20},
    {"key": "t_textarea", "type": "textarea", "label": "x", "monospace": True, "default": ""},
    {"key": "t_number", "type": "number", "label": "x", "min": 0, "max": 100, "step": 1, "unit": "ms", "default": 42},
    {"key": "t_slider", "type": "slider", "label": "x", "min": 0, "max": 100, "step": 1},
    {"key": "t_range", "type": "slider", "label": "x", "min": 0, "max": 100, "range": True},
    {"key": "t_select", "type": "select", "label": "x", "options": OPTIONS, "searchable": True},
    {"key": "t_multi", "type": "multiselect", "label": "x", "options": OPTIONS, "default": ["a"]},
    {"key": "t_checkbox", "type": "checkbox", "label": "x", "default": True, "required": False},
    {"key": "t_toggle", "type": "toggle", "label": "x"},
    {
        "key": "t_radio",
        "type": "radio",
        "label": "x",
        "options": [{"value": 1, "label": "1"}, {"value": 12, "label": "12"}],
    },
    {"key": "t_date", "type": "date", "label": "x", "min": "2020-01-01"},
    {"key": "t_time", "type": "time", "label": "x"},
    {"key": "t_datetime", "type": "datetime", "label": "x"},
    {"key": "t_date_range", "type": "date_range", "label": "x"},
    {"key": "t_file", "type": "file", "label": "x", "multiple": True, "accept": ".csv", "required": False},
    {"key": "t_image", "type": "image", "label": "x", "max_size_mb": 8},
    {"key": "t_audio", "type": "audio", "label": "x"},
    {"key": "t_colour", "type": "colour", "label": "x", "default": "#5563d1"},
    {"key": "t_json", "type": "json", "label": "x", "schema": {"type": "object"}},
    {"key": "t_code", "type": "code", "label": "x", "language": "python"},
    {"key": "t_markdown", "type": "markdown", "label": "x"},
    {"key": "t_tags", "type": "tags", "label": "x", "suggestions": ["a"]},
    {"key": "t_auto", "type": "autocomplete", "label": "x", "endpoint": "cities"},
    {
        "key": "t_table",
        "type": "table",
        "label": "x",
        "columns": [{"key": "n", "label": "N", "type": "text"}],
        "min_rows": 1,
    },
    {"key": "t_point", "type": "map_point", "label": "x", "default_center": [51.5, -0.1], "default_zoom": 3},
    {"key": "t_bbox", "type": "map_bbox", "label": "x"},
    {"key": "t_polygon", "type": "map_polygon", "label": "x"},
    {"key": "t_points", "type": "map_multipoint", "label": "x"},
    {"key": "t_hidden", "type": "hidden", "label": "x", "default": "secret-value"},
]
"""Every input type of Pixie's dialect once, sliders twice."""


def write_tool(parent: Path, name: str, manifest: Any = None, **files: str | bytes) -> Path:
    """Write a tool folder; `manifest` may be text, bytes or a JSON value; `files` are named with `__` for dots."""
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


def pixie(parent: Path, name: str = "tool", sidecar: dict[str, Any] | None = None, **keys: Any) -> ToolSpec:
    """Load a tool of Pixie's dialect."""
    files = {} if sidecar is None else {"pxd__json": json.dumps(sidecar)}
    return load_tool(write_tool(parent, name, pixie_manifest(name, **keys), **files))
