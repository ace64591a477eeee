"""Pixie's dialect: existing tools load unchanged, and their inputs become one schema, lenient as the original."""

from __future__ import annotations

import base64
import json
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import BadRequestError, ConfigError, InvalidInputError
from supervisord_py.tools.declaring.input import check_input, fill_defaults
from supervisord_py.tools.declaring.manifest import dialect_of, load_tool
from supervisord_py.tools.declaring.pixie_call import pixie_call
from supervisord_py.tools.declaring.pixie_types import INPUT_TYPES, OUTPUT_TYPES
from supervisord_py.tools.declaring.schema import compile_schema, violations
from supervisord_py.tools.spec import Dialect, InputTransport, ListenMode, PixieSecret, ToolSpec
from tool_folders import FULL_INPUTS, OPTIONS, pixie, pixie_manifest, write_tool

GIVEN = {
    "t_slider": 7,
    "t_range": [1, 2],
    "t_select": "b",
    "t_toggle": False,
    "t_radio": 12,
    "t_date": "2026-01-01",
    "t_time": "00:00",
    "t_datetime": "2026-01-01T00:00",
    "t_date_range": ["2026-01-01", "2026-01-02"],
    "t_image": "data:image/png;base64,AAAA",
    "t_audio": "data:audio/wav;base64,AAAA",
    "t_json": {},
    "t_code": "",
    "t_markdown": "",
    "t_tags": [],
    "t_auto": "x",
    "t_table": [{"n": "x"}],
    "t_point": [1, 2],
    "t_bbox": [[1, 2], [3, 4]],
    "t_polygon": [[1, 2]],
    "t_points": [[1, 2]],
}


def pointers(spec: ToolSpec, value: Any) -> dict[str, str]:
    with pytest.raises(InvalidInputError) as caught:
        check_input(spec, value)
    return {each["pointer"]: each["message"] for each in caught.value.extra["errors"]}


def full(tmp_path: Path, **keys: Any) -> ToolSpec:
    outputs = [{"key": f"o_{kind}", "type": kind, "label": kind} for kind in OUTPUT_TYPES]
    return pixie(tmp_path, inputs=FULL_INPUTS, outputs=outputs, **keys)


def test_the_catalogue_of_types_is_whole() -> None:
    assert len(INPUT_TYPES) == 28
    assert len(OUTPUT_TYPES) == 39
    assert {each["type"] for each in FULL_INPUTS} == set(INPUT_TYPES)


def test_a_tool_with_every_type_loads_and_takes_a_full_input(tmp_path: Path) -> None:
    spec = full(tmp_path)
    assert spec.dialect is Dialect.PIXIE
    assert spec.warnings == ()
    check_input(spec, GIVEN)
    assert fill_defaults(spec, GIVEN)["t_hidden"] == "secret-value"


def test_every_key_of_the_original_is_honoured(tmp_path: Path) -> None:
    spec = pixie(
        tmp_path,
        sidecar={"listen": "port", "stop_timeout_seconds": 1, "pinned": False},
        description="d",
        version="0.1.0",
        category="science/dynamics",
        icon=None,
        layout="split",
        warm_keep_seconds=60,
        max_memory_mb=256,
        max_runtime_seconds=10,
        secrets=[{"key": "API_KEY", "description": "k", "required": True}],
        schema_version="1.0",
        concurrent=False,
        validator_timeout_override=90,
        requires_data_persistence=True,
        input_transport="multipart",
        provides_file_endpoint=False,
        provides_autocomplete=True,
        retain_runs=5,
        tags=["a"],
        archived=False,
        pinned_warm=True,
        entrypoint="main.py",
        package=None,
        workspace_default="a",
    )
    assert (spec.title, spec.description, spec.version) == ("A title", "d", "0.1.0")
    assert (spec.warm_keep_seconds, spec.max_memory_mb, spec.max_runtime_seconds) == (60, 256, 10)
    assert (spec.concurrency, spec.pinned, spec.listen, spec.stop_timeout_seconds) == (1, True, ListenMode.PORT, 1)
    assert spec.pixie is not None
    assert spec.pixie.secrets == (PixieSecret("API_KEY", "k", True),)
    assert spec.pixie.input_transport is InputTransport.MULTIPART
    assert (spec.pixie.retain_runs, spec.pixie.validator_timeout_override, spec.pixie.layout) == (5, 90, "split")
    assert spec.pixie.streams is False


def test_dialects_are_told_apart_by_their_keys() -> None:
    assert dialect_of({"name": "x"}) is Dialect.PLAIN
    assert dialect_of({"name": "x", "input": {}, "tags": []}) is Dialect.PLAIN
    assert dialect_of({"id": "x"}) is Dialect.PIXIE
    assert dialect_of({"name": "x", "inputs": []}) is Dialect.PIXIE
    assert dialect_of({"name": "x", "input": {}, "output": {}, "icon": ""}) is Dialect.PLAIN
    assert dialect_of({"tags": [], "icon": "", "env": {}}) is Dialect.PIXIE


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"listen": "port"}, "/listen", "it belongs into pxd.json"),
        ({"input": {}}, "/input", "belongs to the plain dialect"),
        ({"iconn": "x"}, "/iconn", "did you mean 'icon'?"),
        ({"id": "other"}, "/id", "must equal the folder's name"),
        ({"layout": "chatt"}, "/layout", "did you mean 'chat'?"),
        ({"secrets": [{"key": "A", "label": "x"}]}, "/secrets/0/label", "a secret has a description instead"),
        ({"secrets": [{"key": "A-B"}]}, "/secrets/0/key", "no name of an environment variable"),
        ({"secrets": [{"description": "x"}]}, "/secrets/0", "'key' is missing"),
        ({"retain_runs": -1}, "/retain_runs", "must be 0"),
        ({"inputs": {}}, "/inputs", "must be an array of objects"),
        ({"inputs": [5]}, "/inputs/0", "must be an object"),
        ({"inputs": [{"type": "text", "label": "x"}]}, "/inputs/0", "'key' is missing"),
        ({"inputs": [{"key": "a", "label": "x"}]}, "/inputs/0", "'type' is missing"),
        ({"inputs": [{"key": "a", "type": "slidr"}]}, "/inputs/0/type", "did you mean 'slider'?"),
        ({"inputs": [{"key": "a", "type": "slider", "min": 1}]}, "/inputs/0", "'max' is missing"),
        ({"inputs": [{"key": "a", "type": "slider", "min": 5, "max": 1}]}, "/inputs/0/max", "below min"),
        ({"inputs": [{"key": "a", "type": "number", "min": "x"}]}, "/inputs/0/min", "must be a number"),
        ({"inputs": [{"key": "a", "type": "text", "minn": 1}]}, "/inputs/0/minn", "unknown key"),
        ({"inputs": [{"key": "a", "type": "select", "options": []}]}, "/inputs/0/options", "at least one"),
        (
            {"inputs": [{"key": "a", "type": "select", "options": [{"value": []}]}]},
            "/inputs/0/options/0/value",
            "string, number",
        ),
        (
            {"inputs": [{"key": "a", "type": "select", "options": [{"label": "x"}]}]},
            "/inputs/0/options/0",
            "'value' is missing",
        ),
        ({"inputs": [{"key": "a", "type": "json", "schema": {"type": "x"}}]}, "/inputs/0/schema/type", "JSON Schema"),
        (
            {"inputs": [{"key": "a", "type": "text", "show_if": {"key": "b"}}]},
            "/inputs/0/show_if",
            "'equals' is missing",
        ),
        ({"inputs": [{"key": 5, "type": "text"}]}, "/inputs/0/key", "must be a string"),
        ({"inputs": [{"key": "a", "type": 5}]}, "/inputs/0/type", "must be a string"),
        ({"inputs": [{"key": "a", "type": "text"}, {"key": "a", "type": "text"}]}, "/inputs/1/key", "stands twice"),
        ({"outputs": [{"key": "a", "type": "chart_lin"}]}, "/outputs/0/type", "did you mean 'chart_line'?"),
        ({"outputs": [{"key": "a", "type": "text", "color": 1}]}, "/outputs/0/color", "unknown key"),
        ({"concurrent": "no"}, "/concurrent", "true or false"),
    ],
)
def test_what_the_original_refuses_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tool(write_tool(tmp_path, "tool", pixie_manifest(**change)))
    found = {each["pointer"]: each["message"] for each in caught.value.extra["errors"]}
    assert words in found[pointer]


def test_what_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tool(write_tool(tmp_path, "tool", {"id": "tool"}))
    said = [each["message"] for each in caught.value.extra["errors"]]
    assert said == [f"the key {key!r} is missing" for key in ("name", "inputs", "outputs")]


@pytest.mark.parametrize(
    ("sidecar", "words"),
    [
        ({"lissten": "port"}, "did you mean 'listen'?"),
        ({"warm_keep_seconds": 5}, "it belongs into tool.json"),
        ({"id": "x"}, "it belongs into tool.json"),
        ([], "must be a JSON object"),
    ],
)
def test_a_broken_side_file_is_an_error_of_its_own(tmp_path: Path, sidecar: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=r"pxd\.json") as caught:
        pixie(tmp_path, sidecar=sidecar)
    assert words in caught.value.detail


def test_what_only_the_originals_validator_reports_is_a_warning(tmp_path: Path) -> None:
    inputs = [
        {"key": "h", "type": "hidden", "label": "H"},
        {"key": "s", "type": "text", "label": "S", "show_if": {"key": "nope", "equals": None}},
        {"key": "n", "type": "number", "label": "N", "max": 5, "default": 9},
        {"key": "l", "type": "text"},
    ]
    said = " ".join(pixie(tmp_path, inputs=inputs, outputs=[]).warnings)
    for words in (
        "hidden input needs a default",
        "'nope', which is no input",
        "does not fit its own",
        "no outputs",
        "no label",
    ):
        assert words in said


def test_concurrent_false_wins_over_the_side_file(tmp_path: Path) -> None:
    spec = pixie(tmp_path, sidecar={"concurrency": 8}, concurrent=False)
    assert spec.concurrency == 1
    assert "concurrency in pxd.json is ignored" in spec.warnings[0]


def test_inputs_are_required_unless_defaulted_or_optional(tmp_path: Path) -> None:
    spec = full(tmp_path)
    missing = {f"/{key}": "is required" for key in GIVEN}
    assert pointers(spec, {}) == missing


def test_a_hidden_input_is_required_only_when_it_is_shown(tmp_path: Path) -> None:
    inputs = [
        {"key": "mode", "type": "select", "label": "M", "options": OPTIONS, "default": "a"},
        {"key": "extra", "type": "number", "label": "E", "show_if": {"key": "mode", "equals": "b"}},
    ]
    spec = pixie(tmp_path, inputs=inputs)
    check_input(spec, {})
    check_input(spec, {"mode": "b", "extra": 1})
    assert pointers(spec, {"mode": "b"}) == {"/extra": "is required"}


@pytest.mark.parametrize(
    ("value", "pointer", "words"),
    [
        ({"t_number": 101}, "/t_number", "maximum"),
        ({"t_number": True}, "/t_number", "must be of type number, not a boolean"),
        ({"t_text": "x" * 21}, "/t_text", "too long"),
        ({"t_select": "c"}, "/t_select", "must be one of 'a', 'b'"),
        ({"t_radio": "1"}, "/t_radio", "must be one of 1, 12"),
        ({"t_range": [1, 2, 3]}, "/t_range", "too long"),
        ({"t_table": []}, "/t_table", ""),
        ({"t_multi": ["a", "z"]}, "/t_multi/1", "must be one of"),
        ({"t_texxt": 1}, "/t_texxt", "did you mean 't_text'?"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, value: dict[str, Any], pointer: str, words: str) -> None:
    found = pointers(full(tmp_path), {**GIVEN, **value})
    assert words in found[pointer]


def test_null_stands_for_an_optional_input_that_is_not_given(tmp_path: Path) -> None:
    inputs = [
        {"key": "s", "type": "select", "label": "S", "options": OPTIONS, "required": False},
        {"key": "f", "type": "file", "label": "F", "required": False},
        {"key": "h", "type": "hidden", "label": "H", "required": False},
    ]
    check_input(pixie(tmp_path, inputs=inputs), {"s": None, "f": None, "h": None})


def test_a_default_out_of_its_own_bounds_still_runs(tmp_path: Path) -> None:
    spec = pixie(tmp_path, inputs=[{"key": "n", "type": "number", "label": "N", "max": 5, "default": 9}])
    check_input(spec, {})
    check_input(spec, {"n": 4})
    assert set(pointers(spec, {"n": 8})) == {"/n"}


def test_descriptions_and_types_of_options_reach_the_schema(tmp_path: Path) -> None:
    def choice(key: str, *values: Any) -> dict[str, Any]:
        options = [{"value": value, "label": str(value)} for value in values]
        return {"key": key, "type": "select", "label": "L", "description": "D", "options": options}

    spec = pixie(tmp_path, inputs=[choice("n", 1, 2.5), choice("b", *(True, False)), choice("m", 1, "x")])
    members = spec.input_schema["properties"]
    assert members["n"] == {"title": "L", "description": "D", "type": "number", "enum": [1, 2.5]}
    assert members["b"]["type"] == "boolean"
    assert "type" not in members["m"]


def test_a_chat_takes_any_conversation(tmp_path: Path) -> None:
    inputs = [{"key": "messages", "type": "json", "label": "M"}]
    check_input(pixie(tmp_path, layout="chat", inputs=inputs), {"messages": [], "history": []})


def test_the_answer_schema_knows_both_forms_of_a_scalar(tmp_path: Path) -> None:
    outputs = [
        {"key": "n", "type": "number", "label": "N"},
        {"key": "t", "type": "table", "label": "T"},
        {"key": "s", "type": "stream_text", "label": "S", "streaming": True},
    ]
    spec = pixie(tmp_path, outputs=outputs)
    assert spec.pixie is not None
    assert spec.pixie.streams
    ask = compile_schema(spec.output_schema)
    table = {"columns": [], "rows": []}
    assert violations(ask, {"n": 1, "t": table, "more": 1}) == []
    assert violations(ask, {"n": {"value": 1, "format": "currency"}, "t": table}) == []
    assert [each.pointer for each in violations(ask, {"n": {"valu": 1}, "t": {"rows": []}})] == [
        "/n/value",
        "/t/columns",
    ]


def test_the_body_repeats_the_inputs_and_names_the_run(tmp_path: Path) -> None:
    spec = pixie(tmp_path)
    call = pixie_call(spec, {}, "run-1", Path("/artefacts"))
    assert json.loads(call.body) == {
        "run_id": "run-1",
        "inputs": {"a": 1},
        "a": 1,
        "_pixie": {"run_id": "run-1", "artefacts_dir": "/artefacts/tool/run-1"},
    }
    assert call.headers == {
        "Content-Type": "application/json",
        "X-Pixie-Run-Id": "run-1",
        "X-Pixie-Artefacts-Dir": "/artefacts/tool/run-1",
    }
    assert call.artefacts_dir == Path("/artefacts/tool/run-1")


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "x" * 65, "a\n", "-a"])
def test_a_run_id_cannot_be_a_path(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(BadRequestError):
        pixie_call(pixie(tmp_path), {}, run_id, tmp_path)


def test_multipart_sends_files_as_files(tmp_path: Path) -> None:
    inputs = [
        {"key": "pic", "type": "image", "label": "P"},
        {"key": "files", "type": "file", "label": "F", "multiple": True},
        {"key": "words", "type": "text", "label": "W"},
        {"key": "list", "type": "tags", "label": "L"},
        {"key": "none", "type": "text", "label": "N", "required": False},
    ]
    spec = pixie(tmp_path, inputs=inputs, input_transport="multipart")
    value = {
        "pic": "data:image/png;base64,iVBO",
        "files": ["data:,a%20b", "no url"],
        "words": "grüße",
        "list": ["a"],
        "none": None,
    }
    call = pixie_call(spec, value, "r", tmp_path)
    message = BytesParser().parsebytes(
        b"Content-Type: " + call.headers["Content-Type"].encode() + b"\r\n\r\n" + call.body
    )
    parts = [
        (part.get_param("name", header="content-disposition"), part.get_filename(), part.get_payload(decode=True))
        for part in message.walk()
        if not part.is_multipart()
    ]
    assert parts[:5] == [
        ("pic", "pic-0.png", base64.b64decode("iVBO")),
        ("files", "files-0.txt", b"a b"),
        ("files", "files-1", b"no url"),
        ("words", None, "grüße".encode()),
        ("list", None, b'["a"]'),
    ]
    assert [name for name, _, _ in parts[5:]] == ["run_id", "_pixie"]
    with pytest.raises(BadRequestError, match="broken base64"):
        pixie_call(spec, {"pic": "data:image/png;base64,x"}, "r", tmp_path)
