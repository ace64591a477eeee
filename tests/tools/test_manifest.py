"""Declarations of tools: both dialects, every setting checked, every problem found at its line;
and inputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.tools import manifest as module
from supervisord_py.tools.manifest import ToolLimits, ToolSpec, check_input, load_tool
from supervisord_py.tools.pixie import INPUT_TYPES, OUTPUT_TYPES, PixieSecret, fill_defaults
from supervisord_py.tools.schema import compile_schema, schema_problems, violations
from tool_folders import FULL_INPUTS, OPTIONS, pixie, pixie_manifest, write_tool

FULL = {
    "name": "full",
    "version": "1.2.3",
    "description": "everything",
    "output": {"type": "number"},
    "input": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "warm_keep_seconds": 0,
    "max_memory_mb": 0,
    "max_runtime_seconds": 1.5,
    "entrypoint": "src/app.py",
    "python": "python3.12",
    "listen": "fd",
    "concurrency": 2,
    "memory_limit": "address_space",
    "start_timeout_seconds": 10,
    "stop_timeout_seconds": 0,
    "pinned": True,
    "preload": ["numpy", "scipy.integrate"],
    "env": {"A": "hunter2"},
    "limits": {
        "open_files": 64,
        "processes": 32,
        "cpu_seconds": 100,
        "cpu_percent": 150,
        "address_space_mb": 2048,
    },
}


def refused(folder: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_tool(folder)
    return caught.value


def test_every_key_arrives_and_the_settings_count_where_a_tool_says_nothing(tmp_path: Path) -> None:
    folder = write_tool(tmp_path, "full", FULL)
    (folder / "src").mkdir()
    (folder / "src" / "app.py").touch()
    spec = load_tool(folder)
    assert set(FULL) == {*module.PLAIN_KEYS, *module.COMMON_KEYS, *module.OWN_KEYS} - {"command"}
    for key, value in FULL.items():
        if key not in {"limits", "preload"}:
            assert getattr(spec, key) == value, key
    assert (spec.manifest, spec.limits) == (FULL, ToolLimits(64, 32, 100, 150, 2048))
    assert (spec.max_rss_bytes, spec.max_address_space_bytes) == (None, 2048 * 1024 * 1024)
    assert "hunter2" not in repr(spec)
    usual = ToolsSettings(warm_keep_seconds=7, max_memory_mb=0, max_runtime_seconds=0)
    spec = load_tool(write_tool(tmp_path, "x"), usual)
    assert (spec.warm_keep_seconds, spec.max_rss_bytes, spec.max_runtime_seconds) == (7, None, 0), (
        "0 is no limit"
    )


def one(**keys: Any) -> dict[str, Any]:
    return {"inputs": [{"key": "a", "type": "text", "label": "A", **keys}]}


PLAIN_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"warm_keep_seconds": -1}, "/warm_keep_seconds", "must be a number >= 0"),
    ({"warm_keep_seconds": 10**400}, "/warm_keep_seconds", "range"),
    ({"entrypoint": "../main.py"}, "/entrypoint", "inside the tool's folder"),
    ({"entrypoint": "other.py"}, "/entrypoint", "is not there"),
    ({"command": []}, "/command", "length >= 1"),
    ({"command": ["a", "{port}"], "listen": "handover"}, "/listen", "handover needs python"),
    ({"listen": "handower"}, "/listen", "did you mean 'handover'?"),
    ({"preload": True}, "/preload", "array of module names or false"),
    ({"preload": ["os; rm"]}, "/preload/0", "matching regex"),
    ({"limits": {"open_file": 5}}, "/limits/open_file", "did you mean 'open_files'?"),
    ({"env": {"A B": "x"}}, "/env/A B", "no name of an environment variable"),
    ({"env": {"PX_UNIT": "x"}}, "/env/PX_UNIT", "no name of an environment variable"),
    ({"input": {"type": "objekt"}}, "/input/type", "JSON Schema"),
    ({"input": {"properties": {"a": {"$ref": "#/$defs/x"}}}}, "/input", "/$defs/x"),
    ({"name": "other"}, "/name", "must equal the folder's name"),
    ({"name": "Tool"}, "/name", "lower-case"),
    ({"inputt": {}}, "/inputt", "did you mean 'input'?"),
    ({"input": {}, "output": {}, "tags": []}, "/tags", "unknown key"),
]
PIXIE_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"listen": "port"}, "/listen", "unknown key"),
    ({"id": "Other"}, "/id", "lower-case"),
    ({"layout": "chatt"}, "/layout", "did you mean 'chat'?"),
    ({"secrets": [{"key": "A", "label": "x"}]}, "/secrets/0/label", "unknown key"),
    ({"secrets": [{"key": "A-B"}]}, "/secrets/0/key", "no name of an environment variable"),
    ({"inputs": [{"key": "a", "label": "x"}]}, "/inputs/0/type", "'type' is missing"),
    (one(type="slidr"), "/inputs/0/type", "did you mean 'slider'?"),
    (one(type="slider", min=1), "/inputs/0", "'max' is missing"),
    (one(type="select", options=[{"value": []}]), "/inputs/0/options/0/value", "not an array"),
    (one(type="json", schema={"type": "x"}), "/inputs/0/schema/type", "JSON Schema"),
    (one(show_if={"key": "b"}), "/inputs/0/show_if/equals", "'equals' is missing"),
    ({"inputs": [*one()["inputs"], *one()["inputs"]]}, "/inputs/1/key", "stands twice"),
    (
        {"outputs": [{"key": "a", "type": "chart_lin"}]},
        "/outputs/0/type",
        "did you mean 'chart_line'?",
    ),
]
BASES = ({"version": "1", "name": "tool"}, pixie_manifest())
FAULTS = [
    (base, *row)
    for base, rows in zip(BASES, (PLAIN_FAULTS, PIXIE_FAULTS), strict=True)
    for row in rows
]


@pytest.mark.parametrize(("base", "keys", "pointer", "words"), FAULTS)
def test_what_is_wrong_is_named_at_its_line(
    tmp_path: Path, base: Any, keys: Any, pointer: str, words: str
) -> None:
    manifest = {**base, **keys}
    error = refused(write_tool(tmp_path, "tool", manifest))
    found = {each["pointer"]: each for each in error.extra["errors"]}
    assert words in found[pointer]["message"]
    lines = json.dumps(manifest, indent=2).splitlines()
    first = 1 + next(
        n for n, line in enumerate(lines) if line.startswith(f'  "{pointer.split("/")[1]}":')
    )
    assert first <= found[pointer]["line"] <= first + 4 * pointer.count("/")
    assert error.extra["file"] == str(tmp_path / "tool" / "tool.json")
    assert error.hint == "mend the file, then: pxctl tools validate tool"


def test_links_may_lead_to_a_tool_but_an_entrypoint_not_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    folder = write_tool(tmp_path, "tool", {"name": "tool", "entrypoint": "link.py"})
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    assert "inside the tool's folder" in refused(folder).detail
    write_tool(tmp_path / "real", "tool")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool").symlink_to(tmp_path / "real" / "tool")
    assert load_tool(tmp_path / "tools" / "tool").folder == tmp_path / "tools" / "tool"


def test_the_digest_changes_with_what_an_instance_loads(tmp_path: Path) -> None:
    folder = write_tool(
        tmp_path, "tool", {"name": "tool", "command": ["node", "main.js", "{port}"]}, main__js="1"
    )
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


WORDS = [*module.PLAIN_KEYS, *module.PIXIE_KEYS, *module.COMMON_KEYS, *module.OWN_KEYS]
WORDS += [
    "type",
    "key",
    "label",
    "options",
    "min",
    "max",
    "show_if",
    "default",
    "schema",
    "$ref",
    "properties",
]
WORDS += ["pattern", "columns", "value", "equals", "open_files", "range"]
TEXTS = ["tool", "number", "object", "#", "#/input", "main.py", "port", *INPUT_TYPES, *OUTPUT_TYPES]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
KEYED = st.sampled_from(WORDS) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS | st.text(max_size=6) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYED, inner, max_size=6),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=8) | VALUES, st.none() | VALUES)
def test_any_document_loads_or_is_an_error_with_a_line(
    tmp_path: Path, manifest: Any, sidecar: Any
) -> None:
    if isinstance(manifest, dict):
        manifest = (
            {**manifest, "name": "tool", "id": "tool"}
            if "id" in manifest
            else {**manifest, "name": "tool"}
        )
    folder = write_tool(tmp_path, "tool", json.dumps(manifest, indent=1))
    (folder / "pxd.json").unlink(missing_ok=True)
    if sidecar is not None:
        (folder / "pxd.json").write_text(json.dumps(sidecar))
    try:
        assert isinstance(load_tool(folder), ToolSpec)
    except ConfigError as error:
        assert error.extra["errors"]
        assert all(
            each["line"] is not None or "pxd.json" in each["file"] for each in error.extra["errors"]
        )
        json.dumps(error.problem())


# -- Pixie's dialect


URL = "data:audio/wav;base64,AAAA"
GIVEN: dict[str, Any] = {
    "t_slider": 7, "t_range": [1, 2], "t_select": "b", "t_toggle": False, "t_radio": 12,
    "t_date": "2026-01-01",
    "t_time": "00:00", "t_datetime": "2026-01-01T00:00",
    "t_date_range": ["2026-01-01", "2026-01-02"], "t_image": URL,
    "t_audio": URL, "t_json": {}, "t_code": "", "t_markdown": "", "t_tags": [],
    "t_autocomplete": "x",
    "t_table": [{"n": "x"}], "t_map_point": [1, 2], "t_map_bbox": [[1, 2], [3, 4]],
    "t_map_polygon": [[1, 2]],
    "t_map_multipoint": [[1, 2]],
}  # fmt: skip
KEYS = {
    "description": "d", "version": "0.1.0", "category": "science/dynamics", "icon": None,
    "layout": "split",
    "warm_keep_seconds": 60, "max_memory_mb": 256, "max_runtime_seconds": 10, "schema_version":
    "1.0",
    "secrets": [{"key": "API_KEY", "description": "k", "required": True}], "concurrent": False,
    "tags": ["a"],
    "validator_timeout_override": 90, "requires_data_persistence": True, "input_transport":
    "multipart", "provides_file_endpoint": False, "provides_autocomplete": True, "retain_runs": 5,
    "archived": False, "pinned_warm": True, "entrypoint": "main.py", "package": None,
    "workspace_default": "a",
}  # fmt: skip


def pointers(spec: ToolSpec, value: Any) -> dict[str, str]:
    with pytest.raises(InvalidInputError) as caught:
        check_input(spec, value)
    return {each["pointer"]: each["message"] for each in caught.value.extra["errors"]}


def full(tmp_path: Path) -> ToolSpec:
    outputs = [{"key": f"o_{kind}", "type": kind, "label": kind} for kind in OUTPUT_TYPES]
    return pixie(tmp_path, inputs=FULL_INPUTS, outputs=outputs)


def test_a_tool_with_every_type_loads_and_takes_a_full_input(tmp_path: Path) -> None:
    assert (len(INPUT_TYPES), len(OUTPUT_TYPES)) == (28, 39)
    spec = full(tmp_path)
    assert (spec.dialect, spec.warnings) == ("pixie", ())
    for value in (GIVEN, {"run_id": "r", "inputs": GIVEN}):
        check_input(spec, value)
    assert spec.pixie is not None
    assert fill_defaults(spec.pixie, GIVEN)["t_hidden"] == "secret-value"


def test_every_key_of_the_original_is_honoured(tmp_path: Path) -> None:
    assert set(KEYS) >= set(module.PIXIE_KEYS) - {"id", "name", "inputs", "outputs"}
    spec = pixie(
        tmp_path, sidecar={"listen": "port", "stop_timeout_seconds": 1, "pinned": False}, **KEYS
    )
    assert (spec.title, spec.description, spec.version) == ("A title", "d", "0.1.0")
    assert (spec.warm_keep_seconds, spec.max_memory_mb, spec.max_runtime_seconds) == (60, 256, 10)
    assert (spec.concurrency, spec.pinned, spec.listen, spec.stop_timeout_seconds) == (
        1,
        True,
        "port",
        1,
    )
    traits = spec.pixie
    assert traits is not None
    assert traits.secrets == (PixieSecret("API_KEY", "k", True),)
    assert (traits.input_transport, traits.streams) == ("multipart", False)
    assert (traits.retain_runs, traits.validator_timeout_override, traits.layout) == (
        5,
        90,
        "split",
    )


def test_what_only_the_originals_validator_reports_is_a_warning(tmp_path: Path) -> None:
    inputs = [
        {"key": "h", "type": "hidden", "label": "H"},
        {"key": "s", "type": "text", "label": "S", "show_if": {"key": "nope", "equals": None}},
        {"key": "n", "type": "number", "label": "N", "max": 5, "default": 9},
    ]
    spec = pixie(tmp_path, inputs=inputs, outputs=[], concurrent=False, sidecar={"concurrency": 8})
    words = [
        "hidden input needs a default",
        "'nope', which is no input",
        "no outputs",
        "does not fit its own",
    ]
    assert all(each in " ".join(spec.warnings) for each in words)
    assert spec.concurrency == 1


def test_inputs_are_required_unless_defaulted_optional_hidden_or_a_file(tmp_path: Path) -> None:
    assert pointers(full(tmp_path), {}) == {
        f"/{key}": "is required" for key in GIVEN if GIVEN[key] is not URL
    }
    inputs = [
        {"key": "mode", "type": "select", "label": "M", "options": OPTIONS, "default": "a"},
        {"key": "extra", "type": "number", "label": "E", "show_if": {"key": "mode", "equals": "b"}},
        {"key": "csv", "type": "file", "label": "C"},
        {"key": "s", "type": "select", "label": "S", "options": OPTIONS, "required": False},
        {"key": "h", "type": "hidden", "label": "H", "required": False},
    ]
    spec = pixie(tmp_path, inputs=inputs)
    check_input(spec, {})
    check_input(spec, {"mode": "b", "extra": 1, "csv": None, "s": None, "h": None})
    assert pointers(spec, {"mode": "b"}) == {"/extra": "is required"}


# -- schemas


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rho": {"type": "number", "minimum": 0},
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "steps": {"type": "array", "items": {"type": "integer"}},
        "either": {
            "anyOf": [{"properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"const": 5}]
        },
        "deep": {"$ref": "#/$defs/point"},
    },
    "required": ["rho"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "$defs": {"point": {"type": "object", "required": ["x", "y"]}},
}


def test_every_place_is_named_in_order_and_odd_values_are_no_crash() -> None:
    def found(value: Any, schema: Any = SCHEMA) -> list[tuple[str, str]]:
        return [(each.pointer, each.message) for each in violations(compile_schema(schema), value)]

    assert (
        found({"rho": 28, "x-note": 1, "steps": [1], "either": 5, "deep": {"x": 1, "y": 2}}) == []
    )
    assert found(
        {"roh": 1, "name": "A1", "steps": [1, "2", 3.5], "deep": {"x": 1}, "either": {"x": "1"}}
    ) == [
        ("/deep/y", "is required"),
        (
            "/either",
            """{"x":"1"} is not valid under any of the schemas listed in the 'anyOf' keyword""",
        ),
        ("/name", '"A1" does not match "^[a-z]+$"'),
        ("/rho", "is required"),
        ("/roh", "is not known here"),
        ("/steps/1", '"2" is not of type "integer"'),
        ("/steps/2", '3.5 is not of type "integer"'),
    ]
    nested: Any = 0
    for _ in range(5000):
        nested = [nested]
    endless = {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}
    for each in (nested, "\ud800", 10**400, -(2**70), 1e300):
        found(each, endless)
        assert found(each, False)


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"$ref": "https://example.org/x.json"}, "", "nothing is fetched"),
        ({"allOf": [{"$ref": "#/allOf/9"}]}, "", "/allOf/9"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "another dialect"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern", "regex"),
        ({"type": "objekt", "minimum": "5"}, "/minimum", "number"),
        ({"$id": "http://[", "$defs": {"a": {"$id": "x"}}}, "", "http://["),
    ],
)
def test_a_schema_that_cannot_be_asked_is_refused(schema: Any, pointer: str, words: str) -> None:
    assert words in {each.pointer: each.message for each in schema_problems(schema)}[pointer]
