"""The plain dialect: every setting checked, every problem found at its line, and no other exception ever."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import ConfigError
from supervisord_py.tools.manifest import (
    COMMON_KEYS,
    OWN_KEYS,
    PIXIE_KEYS,
    PLAIN_KEYS,
    ToolLimits,
    ToolSpec,
    load_tool,
)
from supervisord_py.tools.pixie import INPUT_TYPES, OUTPUT_TYPES
from tool_folders import write_tool

if TYPE_CHECKING:
    from pathlib import Path

FULL = {
    "name": "full", "version": "1.2.3", "description": "everything", "output": {"type": "number"},
    "input": {"type": "object", "properties": {"a": {"type": "integer"}}}, "warm_keep_seconds": 0, "max_memory_mb": 0,
    "max_runtime_seconds": 1.5, "entrypoint": "src/app.py", "python": "python3.12", "listen": "fd", "concurrency": 2,
    "memory_limit": "address_space", "start_timeout_seconds": 10, "stop_timeout_seconds": 0, "pinned": True,
    "preload": ["numpy", "scipy.integrate"], "env": {"A": "hunter2"},
    "limits": {"open_files": 64, "processes": 32, "cpu_seconds": 100, "cpu_percent": 150, "address_space_mb": 2048},
}  # fmt: skip


def failure(parent: Path, manifest: Any, **files: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_tool(write_tool(parent, "tool", manifest, **files))
    return caught.value


def test_every_key_arrives(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "full", FULL)
    (folder / "src").mkdir()
    (folder / "src" / "app.py").touch()
    spec = load_tool(folder)
    assert set(FULL) == {*PLAIN_KEYS, *COMMON_KEYS, *OWN_KEYS} - {"command"}
    for key, value in FULL.items():
        if key not in {"input", "output", "limits", "preload"}:
            assert getattr(spec, key) == value, key
    assert (spec.manifest, spec.input_schema, spec.output_schema) == (FULL, FULL["input"], FULL["output"])
    assert spec.limits == ToolLimits(64, 32, 100, 150, 2048)
    assert (spec.max_rss_bytes, spec.max_address_space_bytes) == (None, 2048 * 1024 * 1024)
    assert "hunter2" not in repr(spec)


def test_the_settings_count_where_a_tool_says_nothing_and_0_is_no_limit(tmp_path: Path) -> None:
    settings = ToolsSettings(warm_keep_seconds=7, max_memory_mb=0, max_runtime_seconds=0)
    spec = load_tool(write_tool(tmp_path, "x"), settings)
    assert (spec.warm_keep_seconds, spec.max_rss_bytes, spec.max_runtime_seconds) == (7, None, 0)


@pytest.mark.parametrize(
    ("keys", "pointer", "words"),
    [
        ({"warm_keep_seconds": -1}, "/warm_keep_seconds", "must be a number >= 0"),
        ({"warm_keep_seconds": 10**400}, "/warm_keep_seconds", "range"),
        ({"max_memory_mb": 1.5}, "/max_memory_mb", "must be a whole number"),
        ({"entrypoint": "../main.py"}, "/entrypoint", "inside the tool's folder"),
        ({"entrypoint": "a\0b"}, "/entrypoint", "regex"),
        ({"entrypoint": "other.py"}, "/entrypoint", "is not there"),
        ({"command": []}, "/command", "length >= 1"),
        ({"command": ["a", ""]}, "/command/1", "length >= 1"),
        ({"command": ["a", "{port}"], "listen": "handover"}, "/listen", "handover needs python"),
        ({"listen": "handower"}, "/listen", "did you mean 'handover'?"),
        ({"listen": None}, "/listen", "not null"),
        ({"preload": True}, "/preload", "array of module names or false"),
        ({"preload": ["os; rm"]}, "/preload/0", "no module name"),
        ({"limits": {"open_file": 5}}, "/limits/open_file", "did you mean 'open_files'?"),
        ({"env": {"A B": "x"}}, "/env/A B", "no name of an environment variable"),
        ({"env": {"PX_UNIT": "x"}}, "/env/PX_UNIT", "no name of an environment variable"),
        ({"input": {"type": "objekt"}}, "/input/type", "JSON Schema"),
        ({"input": {"properties": {"a": {"$ref": "#/$defs/x"}}}}, "/input", "/$defs/x"),
        ({"name": "other"}, "/name", "must equal the folder's name"),
        ({"name": "Tool"}, "/name", "lower-case"),
        ({"inputt": {}}, "/inputt", "did you mean 'input'?"),
        ({"input": {}, "output": {}, "tags": []}, "/tags", "unknown key"),
    ],
)
def test_what_is_wrong_is_named_at_its_line(tmp_path: Path, keys: dict[str, Any], pointer: str, words: str) -> None:
    manifest = {"version": "1", "name": "tool", **keys}
    error = failure(tmp_path, manifest)
    found = {each["pointer"]: each for each in error.extra["errors"]}
    assert words in found[pointer]["message"]
    key = pointer.split("/")[1]
    first = 1 + next(n for n, line in enumerate(json.dumps(manifest, indent=2).splitlines()) if f'  "{key}":' in line)
    assert first <= found[pointer]["line"] <= first + 4
    assert error.extra["file"] == str(tmp_path / "tool" / "tool.json")
    assert error.hint == "mend the file, then: pxctl tools validate tool"


def test_links_may_lead_to_a_tool_but_an_entrypoint_not_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    folder = write_tool(tmp_path, "tool", {"name": "tool", "entrypoint": "link.py"})
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    with pytest.raises(ConfigError, match="inside the tool's folder"):
        load_tool(folder)
    write_tool(tmp_path / "real", "tool")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool").symlink_to(tmp_path / "real" / "tool")
    assert load_tool(tmp_path / "tools" / "tool").folder == tmp_path / "tools" / "tool"


def test_the_digest_changes_with_what_an_instance_loads(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "tool", {"name": "tool", "command": ["node", "main.js", "{port}"]}, main__js="1")
    digests = [load_tool(folder).digest]
    assert load_tool(folder).digest == digests[0]
    for change in (
        lambda: (folder / "main.js").write_text("22"),
        lambda: (folder / "tool.json").write_text('{"name": "tool", "concurrency": 3}'),
        lambda: (folder / "main.py").write_text("print('longer')\n"),
        lambda: (folder / ".env").write_text("A=1\n"),
        lambda: ((folder / ".venv").mkdir(), (folder / ".venv" / "pyvenv.cfg").touch()),
        (folder / "unrelated.txt").touch,
    ):
        change()
        digests.append(load_tool(folder).digest)
    assert len(set(digests)) == 6
    assert digests[-1] == digests[-2]


KEYS = [*PLAIN_KEYS, *PIXIE_KEYS, *COMMON_KEYS, *OWN_KEYS, "type", "key", "label", "options", "min", "max", "show_if"]
KEYS += ["default", "schema", "$ref", "properties", "pattern", "columns", "value", "equals", "open_files", "range"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["tool", "number", "object", "#", "#/input", "main.py", "port", *INPUT_TYPES, *OUTPUT_TYPES])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8) | VALUES, st.none() | VALUES)
def test_any_document_loads_or_is_an_error_with_a_line(tmp_path: Path, manifest: Any, sidecar: Any) -> None:
    if isinstance(manifest, dict):
        manifest = {**manifest, "name": "tool", "id": "tool"} if "id" in manifest else {**manifest, "name": "tool"}
    folder = write_tool(tmp_path, "tool", json.dumps(manifest, indent=1))
    (folder / "pxd.json").unlink(missing_ok=True)
    if sidecar is not None:
        (folder / "pxd.json").write_text(json.dumps(sidecar))
    try:
        assert isinstance(load_tool(folder), ToolSpec)
    except ConfigError as error:
        assert error.extra["errors"]
        assert all(each["line"] is not None or "pxd.json" in each["file"] for each in error.extra["errors"])
        json.dumps(error.problem())
