"""Pixie's dialect: existing tools load unchanged, and their inputs become one schema, lenient as the original."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.tools.manifest import PIXIE_KEYS, ToolSpec, check_input, load_tool
from supervisord_py.tools.pixie import INPUT_TYPES, OUTPUT_TYPES, PixieSecret, fill_defaults, pixie_call
from tool_folders import FULL_INPUTS, OPTIONS, pixie, pixie_manifest, write_tool

URL = "data:audio/wav;base64,AAAA"
GIVEN: dict[str, Any] = {
    "t_slider": 7, "t_range": [1, 2], "t_select": "b", "t_toggle": False, "t_radio": 12, "t_date": "2026-01-01",
    "t_time": "00:00", "t_datetime": "2026-01-01T00:00", "t_date_range": ["2026-01-01", "2026-01-02"], "t_image": URL,
    "t_audio": URL, "t_json": {}, "t_code": "", "t_markdown": "", "t_tags": [], "t_autocomplete": "x",
    "t_table": [{"n": "x"}], "t_map_point": [1, 2], "t_map_bbox": [[1, 2], [3, 4]], "t_map_polygon": [[1, 2]],
    "t_map_multipoint": [[1, 2]],
}  # fmt: skip
KEYS = {
    "description": "d", "version": "0.1.0", "category": "science/dynamics", "icon": None, "layout": "split",
    "warm_keep_seconds": 60, "max_memory_mb": 256, "max_runtime_seconds": 10, "schema_version": "1.0",
    "secrets": [{"key": "API_KEY", "description": "k", "required": True}], "concurrent": False, "tags": ["a"],
    "validator_timeout_override": 90, "requires_data_persistence": True, "input_transport": "multipart",
    "provides_file_endpoint": False, "provides_autocomplete": True, "retain_runs": 5, "archived": False,
    "pinned_warm": True, "entrypoint": "main.py", "package": None, "workspace_default": "a",
}  # fmt: skip


def pointers(spec: ToolSpec, value: Any) -> dict[str, str]:
    with pytest.raises(InvalidInputError) as caught:
        check_input(spec, value)
    return {each["pointer"]: each["message"] for each in caught.value.extra["errors"]}


def full(tmp_path: Path, **keys: Any) -> ToolSpec:
    outputs = [{"key": f"o_{kind}", "type": kind, "label": kind} for kind in OUTPUT_TYPES]
    return pixie(tmp_path, inputs=FULL_INPUTS, outputs=outputs, **keys)


def test_a_tool_with_every_type_loads_and_takes_a_full_input(tmp_path: Path) -> None:
    assert (len(INPUT_TYPES), len(OUTPUT_TYPES)) == (28, 39)
    spec = full(tmp_path)
    assert (spec.dialect, spec.warnings) == ("pixie", ())
    check_input(spec, GIVEN)
    check_input(spec, {"run_id": "r", "inputs": GIVEN})
    assert spec.pixie is not None
    assert fill_defaults(spec.pixie, GIVEN)["t_hidden"] == "secret-value"


def test_every_key_of_the_original_is_honoured(tmp_path: Path) -> None:
    assert set(KEYS) >= set(PIXIE_KEYS) - {"id", "name", "inputs", "outputs"}
    spec = pixie(tmp_path, sidecar={"listen": "port", "stop_timeout_seconds": 1, "pinned": False}, **KEYS)
    assert (spec.title, spec.description, spec.version) == ("A title", "d", "0.1.0")
    assert (spec.warm_keep_seconds, spec.max_memory_mb, spec.max_runtime_seconds) == (60, 256, 10)
    assert (spec.concurrency, spec.pinned, spec.listen, spec.stop_timeout_seconds) == (1, True, "port", 1)
    traits = spec.pixie
    assert traits is not None
    assert traits.secrets == (PixieSecret("API_KEY", "k", True),)
    assert (traits.input_transport, traits.streams) == ("multipart", False)
    assert (traits.retain_runs, traits.validator_timeout_override, traits.layout) == (5, 90, "split")


def one(**keys: Any) -> dict[str, Any]:
    return {"inputs": [{"key": "a", "type": "text", "label": "A", **keys}]}


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"listen": "port"}, "/listen", "unknown key"),
        ({"iconn": "x"}, "/iconn", "did you mean 'icon'?"),
        ({"id": "Other"}, "/id", "lower-case"),
        ({"layout": "chatt"}, "/layout", "did you mean 'chat'?"),
        ({"secrets": [{"key": "A", "label": "x"}]}, "/secrets/0/label", "unknown key"),
        ({"secrets": [{"key": "A-B"}]}, "/secrets/0/key", "no name of an environment variable"),
        ({"inputs": {}}, "/inputs", "must be an array"),
        ({"inputs": [{"key": "a", "label": "x"}]}, "/inputs/0/type", "'type' is missing"),
        (one(type="slidr"), "/inputs/0/type", "did you mean 'slider'?"),
        (one(type="slider", min=1), "/inputs/0", "'max' is missing"),
        (one(type="number", min="x"), "/inputs/0/min", "must be a number"),
        (one(type="select", options=[{"value": []}]), "/inputs/0/options/0/value", "not an array"),
        (one(type="json", schema={"type": "x"}), "/inputs/0/schema/type", "JSON Schema"),
        (one(show_if={"key": "b"}), "/inputs/0/show_if/equals", "'equals' is missing"),
        ({"inputs": [*one()["inputs"], *one()["inputs"]]}, "/inputs/1/key", "stands twice"),
        ({"outputs": [{"key": "a", "type": "chart_lin"}]}, "/outputs/0/type", "did you mean 'chart_line'?"),
    ],
)
def test_what_the_original_refuses_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tool(write_tool(tmp_path, "tool", pixie_manifest(**change)))
    found = {each["pointer"]: each["message"] for each in caught.value.extra["errors"]}
    assert words in found[pointer]


def test_what_only_the_originals_validator_reports_is_a_warning(tmp_path: Path) -> None:
    inputs = [
        {"key": "h", "type": "hidden", "label": "H"},
        {"key": "s", "type": "text", "label": "S", "show_if": {"key": "nope", "equals": None}},
        {"key": "n", "type": "number", "label": "N", "max": 5, "default": 9},
    ]
    spec = pixie(tmp_path, inputs=inputs, outputs=[], concurrent=False, sidecar={"concurrency": 8})
    words = ["hidden input needs a default", "'nope', which is no input", "no outputs", "does not fit its own"]
    assert all(each in " ".join(spec.warnings) for each in words)
    assert spec.concurrency == 1


def test_inputs_are_required_unless_defaulted_optional_hidden_or_a_file(tmp_path: Path) -> None:
    assert pointers(full(tmp_path), {}) == {f"/{key}": "is required" for key in GIVEN if GIVEN[key] is not URL}
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


def test_the_body_repeats_the_inputs_and_names_the_run(tmp_path: Path) -> None:
    traits = pixie(tmp_path).pixie
    assert traits is not None
    body, headers = pixie_call(traits, "tool", {}, "run-1", Path("/artefacts"))
    names = {"run_id": "run-1", "_pixie": {"run_id": "run-1", "artefacts_dir": "/artefacts/tool/run-1"}}
    assert json.loads(body) == {"inputs": {"a": 1}, "a": 1, **names}
    assert headers == {
        "Content-Type": "application/json",
        "X-Pixie-Run-Id": "run-1",
        "X-Pixie-Artefacts-Dir": "/artefacts/tool/run-1",
    }
    body, _ = pixie_call(traits, "tool", {"run_id": "x", "inputs": {"a": 2}}, "r", tmp_path)
    assert json.loads(body)["inputs"] == {"a": 2}
