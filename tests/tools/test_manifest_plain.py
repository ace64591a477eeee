"""The plain dialect: every setting checked, every problem found at its line, and no other exception ever."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisord_py.errors import ConfigError
from supervisord_py.tools.config import ToolDefaults
from supervisord_py.tools.declaring import pixie
from supervisord_py.tools.declaring.declaration import PLAIN_KEYS
from supervisord_py.tools.declaring.manifest import load_tool
from supervisord_py.tools.declaring.own_settings import COMMON_KEYS, OWN_KEYS
from supervisord_py.tools.declaring.pixie_types import INPUT_TYPES, OUTPUT_TYPES
from supervisord_py.tools.spec import Dialect, ListenMode, MemoryMode, ToolLimits, ToolSpec
from tool_folders import plain as plain_tool
from tool_folders import write_tool

if TYPE_CHECKING:
    from pathlib import Path

FULL = {
    "name": "full",
    "version": "1.2.3",
    "description": "everything",
    "input": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "output": {"type": "number"},
    "warm_keep_seconds": 0,
    "max_memory_mb": 0,
    "max_runtime_seconds": 1.5,
    "entrypoint": "src/app.py",
    "python": "python3.12",
    "listen": "fd",
    "memory_limit": "address_space",
    "start_timeout_seconds": 10,
    "stop_timeout_seconds": 0,
    "concurrency": 2,
    "preload": ["numpy", "scipy.integrate"],
    "env": {"A": "1"},
    "pinned": True,
    "limits": {"open_files": 64, "processes": 32, "cpu_seconds": 100, "address_space_mb": 2048},
}


def failure(parent: Path, manifest: Any, name: str = "tool", **files: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_tool(write_tool(parent, name, manifest, **files))
    return caught.value


def messages(error: ConfigError) -> dict[str, str]:
    return {each["pointer"]: each["message"] for each in error.extra["errors"]}


def test_a_name_is_enough_and_the_settings_give_the_rest(tmp_path: Path) -> None:
    defaults = ToolDefaults(warm_keep_seconds=7, max_memory_mb=9, concurrency=3, stop_timeout_seconds=2)
    spec = load_tool(write_tool(tmp_path, "x"), defaults)
    assert (spec.name, spec.unit, spec.title, spec.dialect) == ("x", "tool:x", "x", Dialect.PLAIN)
    assert (spec.warm_keep_seconds, spec.max_memory_mb, spec.concurrency, spec.stop_timeout_seconds) == (7, 9, 3, 2)
    assert (spec.max_runtime_seconds, spec.start_timeout_seconds) == (60, 30)
    assert (spec.listen, spec.memory_limit, spec.forkable) == (ListenMode.HANDOVER, MemoryMode.RESIDENT, True)
    assert spec.input_schema == {}
    assert spec.pixie is None
    assert spec.max_rss_bytes == 9 * 1024 * 1024
    assert spec.max_address_space_bytes is None


def test_every_key_arrives(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "full", FULL)
    (folder / "src").mkdir()
    (folder / "src" / "app.py").touch()
    spec = load_tool(folder)
    assert spec.manifest == FULL
    assert spec.version == "1.2.3"
    assert spec.description == "everything"
    assert spec.input_schema == FULL["input"]
    assert spec.output_schema == {"type": "number"}
    assert (spec.warm_keep_seconds, spec.max_memory_mb, spec.max_runtime_seconds) == (0, 0, 1.5)
    assert (spec.entrypoint, spec.python, spec.listen) == ("src/app.py", "python3.12", ListenMode.FD)
    assert spec.memory_limit is MemoryMode.ADDRESS_SPACE
    assert (spec.start_timeout_seconds, spec.stop_timeout_seconds, spec.concurrency) == (10, 0, 2)
    assert (spec.preload, spec.forkable) == (("numpy", "scipy.integrate"), True)
    assert (dict(spec.env), spec.pinned) == ({"A": "1"}, True)
    assert spec.limits == ToolLimits(64, 32, 100, 2048)
    assert spec.max_rss_bytes is None
    assert spec.max_address_space_bytes == 2048 * 1024 * 1024


def test_secrets_of_env_stay_out_of_repr(tmp_path: Path) -> None:
    assert "hunter2" not in repr(plain_tool(tmp_path, env={"PASSWORD": "hunter2"}))


def test_the_address_space_is_the_smaller_of_both_limits(tmp_path: Path) -> None:
    spec = plain_tool(tmp_path, memory_limit="address_space", max_memory_mb=100, limits={"address_space_mb": 50})
    assert spec.max_address_space_bytes == 50 * 1024 * 1024


def test_a_command_listens_on_a_port_and_needs_no_entrypoint(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "x", {"name": "x", "command": ["node", "main.js", "--port", "{port}"]})
    (folder / "main.py").unlink()
    spec = load_tool(folder)
    assert spec.command == ("node", "main.js", "--port", "{port}")
    assert spec.listen is ListenMode.PORT
    assert spec.warnings == ()


def test_a_command_that_is_not_told_its_port_is_doubtful(tmp_path: Path) -> None:
    assert "{port}" in plain_tool(tmp_path, command=["./serve"]).warnings[0]
    assert plain_tool(tmp_path, command=["./serve"], listen="fd").warnings == ()


def test_preload_false_forbids_the_fork(tmp_path: Path) -> None:
    assert plain_tool(tmp_path, preload=False).forkable is False


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("warm_keep_seconds", -1, "must be 0 to"),
        ("warm_keep_seconds", True, "not a boolean"),
        ("warm_keep_seconds", "5", "not a string"),
        ("warm_keep_seconds", 10**300, "must be 0 to"),
        ("max_memory_mb", 1.5, "whole number"),
        ("max_memory_mb", -1, "not -1"),
        ("max_runtime_seconds", 0, "must be 0.001"),
        ("start_timeout_seconds", 0, "must be 0.1"),
        ("stop_timeout_seconds", -0.5, "must be 0 to"),
        ("concurrency", 0, "must be 1 to"),
        ("entrypoint", "../main.py", "inside the tool's folder"),
        ("entrypoint", "/etc/passwd", "inside the tool's folder"),
        ("entrypoint", "", "inside the tool's folder"),
        ("entrypoint", "other.py", "is not there"),
        ("entrypoint", ".", "is no file"),
        ("entrypoint", 5, "not a number"),
        ("entrypoint", "a\u0000b", "without NUL"),
        ("command", [], "at least the program"),
        ("command", "node main.js", "array of strings"),
        ("python", "", "must not be empty"),
        ("listen", "handower", "did you mean 'handover'?"),
        ("listen", None, "not null"),
        ("memory_limit", "rss", "one of resident, address_space"),
        ("preload", True, "array of module names or false"),
        ("preload", ["os; rm"], "no module name"),
        ("pinned", 1, "true or false"),
        ("version", 1, "must be a string"),
        ("limits", [], "must be an object"),
        ("env", {"A B": "x"}, None),
        ("input", [], "must be a JSON Schema"),
        ("name", "other", "must equal the folder's name"),
        ("name", "Tool", "lower-case"),
        ("name", "x" * 65, "longer than 64"),
    ],
)
def test_values_out_of_range_are_named_at_their_pointer(
    tmp_path: Path, key: str, value: Any, words: str | None
) -> None:
    manifest = {"name": "tool", "version": "1", key: value}
    error = failure(tmp_path, manifest)
    found = messages(error)
    pointer = f"/{key}" if words else "/env/A B"
    assert (words or "no name of an environment variable") in found[pointer]
    line = 1 + list(manifest).index(key) + 1 + (words is None)
    assert error.extra["line"] == line
    assert error.extra["file"] == str(tmp_path / "tool" / "tool.json")
    assert f"line {line}" in error.detail
    assert error.hint == "mend the file, then: pxctl tools validate tool"


@pytest.mark.parametrize(
    ("manifest", "pointer", "words"),
    [
        ({"name": "tool", "command": ["a", "{port}"], "listen": "handover"}, "/listen", "handover needs python"),
        ({"name": "tool", "command": ["a", "", 5]}, "/command/1", "non-empty string"),
        ({"name": "tool", "env": {"PX_UNIT": "x"}}, "/env/PX_UNIT", "daemon's own mark"),
        ({"name": "tool", "env": {"A": 1}}, "/env/A", "must be a string"),
        ({"name": "tool", "limits": {"open_file": 5}}, "/limits/open_file", "did you mean 'open_files'?"),
        ({"name": "tool", "limits": {"open_files": 1}}, "/limits/open_files", "must be 16"),
        ({"name": "tool", "inputt": {}}, "/inputt", "did you mean 'input'?"),
        ({"name": "tool", "WARM_KEEP_SECONDS": 5}, "/WARM_KEEP_SECONDS", "did you mean 'warm_keep_seconds'?"),
        ({"name": "tool", "zzz": 5}, "/zzz", "unknown key 'zzz'"),
        ({"name": "tool", "input": {}, "output": {}, "tags": []}, "/tags", "belongs to Pixie's dialect"),
        ({"name": "tool", "input": {"type": "objekt"}}, "/input/type", "JSON Schema"),
        (
            {"name": "tool", "input": {"properties": {"a": {"$ref": "#/$defs/x"}}}},
            "/input/properties/a/$ref",
            "leads nowhere",
        ),
        ({"name": "tool", "input": {"pattern": "("}}, "/input/pattern", "JSON Schema"),
        ({"name": "tool", "output": {"minimum": "5"}}, "/output/minimum", "JSON Schema"),
        ({"version": "1"}, "", "'name' is missing"),
    ],
)
def test_what_does_not_belong_is_named(tmp_path: Path, manifest: Any, pointer: str, words: str) -> None:
    assert words in messages(failure(tmp_path, manifest))[pointer]


def test_all_problems_of_a_file_are_found_at_once(tmp_path: Path) -> None:
    error = failure(tmp_path, {"name": "nope", "concurrency": 0, "limits": {"x": 1}, "huh": 1})
    assert set(messages(error)) == {"/name", "/concurrency", "/limits/x", "/huh"}
    assert error.detail.endswith("(and 3 more)")


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ('{\n  "name": "tool",\n}', 3, "double quotes"),
        ('{\n  "name": "tool",\n  "name": "tool"\n}', 3, "stands twice"),
        ("[]", 1, "must be a JSON object, not an array"),
        (b"\xef\xbb\xbf{}", 1, "byte order mark"),
        (b'{"name": "\xff"}', 1, "not UTF-8"),
        ("", 1, "Expecting value"),
    ],
)
def test_what_is_no_json_has_a_line(tmp_path: Path, content: str | bytes, line: int, words: str) -> None:
    error = failure(tmp_path, content)
    assert words in error.detail
    assert error.extra["line"] == line


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "tool", " " * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load_tool(folder)
    (folder / "tool.json").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        load_tool(folder)
    os.mkfifo(folder / "tool.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_tool(folder)
    with pytest.raises(ConfigError, match="lower-case"):
        load_tool(tmp_path / "No Tool")


def test_an_entrypoint_cannot_leave_the_folder_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    folder = write_tool(tmp_path, "tool", {"name": "tool", "entrypoint": "link.py"})
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    with pytest.raises(ConfigError, match="leads out of the tool's folder"):
        load_tool(folder)


def test_a_linked_folder_is_a_tool_all_the_same(tmp_path: Path) -> None:
    write_tool(tmp_path / "real", "tool")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool").symlink_to(tmp_path / "real" / "tool")
    spec = load_tool(tmp_path / "tools" / "tool")
    assert spec.folder == tmp_path / "tools" / "tool"


def test_a_side_file_belongs_to_pixie_tools_only(tmp_path: Path) -> None:
    error = failure(tmp_path, {"name": "tool"}, pxd__json="{}")
    assert "put its keys into tool.json" in error.detail


def test_booleans_are_schemas(tmp_path: Path) -> None:
    spec = plain_tool(tmp_path, input=True, output=False)
    assert (spec.input_schema, spec.output_schema) == ({}, {"not": {}})


def test_the_digest_changes_with_what_an_instance_loads(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "tool")
    digests = [load_tool(folder).digest]
    assert load_tool(folder).digest == digests[0]
    for change in (
        lambda: (folder / "main.py").write_text("print('longer')\n"),
        lambda: (folder / ".env").write_text("A=1\n"),
        lambda: (folder / "tool.json").write_text('{"name": "tool", "concurrency": 3}'),
        lambda: ((folder / ".venv").mkdir(), (folder / ".venv" / "pyvenv.cfg").touch()),
        (folder / "unrelated.txt").touch,
    ):
        change()
        digests.append(load_tool(folder).digest)
    assert len(set(digests)) == 5
    assert digests[-1] == digests[-2]


def test_the_digest_of_a_command_follows_the_files_that_it_names(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "tool", {"name": "tool", "command": ["node", "main.js", "{port}"]}, main__js="1")
    before = load_tool(folder).digest
    (folder / "main.js").write_text("22")
    assert load_tool(folder).digest != before


KEYS = [*PLAIN_KEYS, *pixie.KEYS, *COMMON_KEYS, *OWN_KEYS, "type", "key", "label", "options", "min", "max", "show_if"]
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
    outcome = loaded(folder)
    if isinstance(outcome, ToolSpec):
        return
    assert outcome.extra["errors"]
    for each in outcome.extra["errors"]:
        assert each["line"] is not None or "pxd.json" in each["file"]
    json.dumps(outcome.problem())


def loaded(folder: Path) -> ToolSpec | ConfigError:
    try:
        return load_tool(folder)
    except ConfigError as error:
        return error
