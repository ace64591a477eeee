"""The twelve checks, of files and of real tools beside the warm ones; failures in words, each
with its next step.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.config.documents import DocumentError
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.ledger import instances
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason
from supervisord_py.process.pool import Refusal, Refuse
from supervisord_py.tools import failures
from supervisord_py.tools.validate import (
    NAMES,
    Tolerances,
    check_files,
    compare,
    read_tolerances,
    sample_input,
    validate_tool,
)
from tool_folders import FULL_INPUTS, pixie, pixie_manifest, plain, write_tool
from tools.tool_house import ToolHouse, alive

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OUTPUT = {"type": "object", "required": ["echo"]}
FIXTURE = {"inputs": {"n": 2}, "expected_outputs": {"echo": {"n": 2}}}


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert [check["name"] for check in report["checks"]] == list(NAMES)
    return {check["name"]: check for check in report["checks"]}


async def validated(house: ToolHouse) -> dict[str, Any]:
    return await validate_tool(house.launcher, house.tools / "shapes", NOW)


async def test_a_sound_tool_is_tried_beside_its_warm_instance(house: ToolHouse) -> None:
    house.add("shapes", output=OUTPUT)
    (house.tools / "shapes" / "test-request.json").write_text('{"n": 1}')
    (house.tools / "shapes" / "reference").mkdir()
    (house.tools / "shapes" / "reference" / "fixture_a.json").write_text(json.dumps(FIXTURE))
    warm = (await house.ask("shapes"))["pid"]
    report = await validated(house)
    assert {check["status"] for check in report["checks"]} <= {"pass", "skip"}, report["checks"]
    assert by_name(report)["streaming_check"]["status"] == "pass"
    assert by_name(report)["reference_fixtures_match"]["message"] == "1 fixture matches"
    assert (report["schema"], report["overall"], report["tool_id"]) == (
        "px.validation/1",
        "pass",
        "shapes",
    )
    assert report["timestamp"] == "2026-03-01T12:00:00.000Z"
    assert (report["sample_inputs"], report["sample_output"]["echo"]) == ({"n": 1}, {"n": 1})
    assert (alive(warm), (await house.ask("shapes"))["pid"]) == (True, warm)
    (row, _) = await instances.latest(house.ledger, "tool:shapes", limit=2)
    assert (row.start_method, row.reason) == ("probe", "stopped")
    assert await house.placement.take_fd("listen:probe:shapes") is None


LATE = (
    {"max_runtime_seconds": 0.001},
    {"do": "sleep", "number": 5.5},
    "sample_input_run",
    "fail",
    "did not answer",
)


@pytest.mark.parametrize(
    ("keys", "sample", "name", "status", "words"),
    [
        ({"env": {"FAULT": "exits_seven"}}, {}, "tool_spawns", "fail", "exited with code 7"),
        ({"env": {"FAULT": "drift"}}, {}, "schema_matches_disk", "warn", "/version"),
        ({}, [], "sample_input_run", "fail", "no input to try"),
        ({}, {"do": "status", "number": 500}, "sample_input_run", "fail", "answers 500"),
        ({}, {"do": "nan"}, "sample_input_run", "warn", "NaN, which JSON does not have"),
        ({}, {"do": "half"}, "sample_input_run", "fail", "broke off"),
        pytest.param(*LATE, marks=pytest.mark.deep),
        ({"output": {"required": ["x"]}}, {}, "output_conforms", "fail", "/x is required"),
        ({"output": OUTPUT}, {"do": "notjson"}, "output_conforms", "warn", "is no JSON"),
        ({}, {"do": "notjson"}, "output_conforms", "pass", "no output is declared"),
        (
            {"env": {"FAULT": "ignores_term"}, "stop_timeout_seconds": 0.2},
            {},
            "clean_shutdown",
            "warn",
            "was killed",
        ),
    ],
)
async def test_each_check_of_a_running_tool(
    house: ToolHouse, keys: dict[str, Any], sample: Any, name: str, status: str, words: str
) -> None:
    house.add("shapes", input={"type": "object"}, **keys)
    (house.tools / "shapes" / "test-request.json").write_text(json.dumps(sample))
    report = await validated(house)
    check = by_name(report)[name]
    assert (check["status"], report["overall"]) == (status, status), report
    assert words in check["message"]
    assert name != "tool_spawns" or (
        "seven it is" in report["spawn_log"] and "seven it is" in check["details"]
    )
    if status == "fail":
        later = {each["status"] for each in report["checks"][NAMES.index(name) + 1 :]}
        assert later <= {"skip", "pass"}
        assert by_name(report)["reference_fixtures_match"]["status"] == "skip"


def test_what_is_wrong_with_its_files_fails_one_check(tmp_path: Path) -> None:
    for manifest, failing, lines in (
        (None, "folder_structure", 1),
        ("{", "tool_json_parses", 1),
        ({"name": "tool", "input": {"type": "nonsense"}}, "schemas_coherent", 1),
        (
            pixie_manifest(inputs=[{"key": "a", "type": "x"}, {"key": "b", "type": "y"}]),
            "schemas_coherent",
            2,
        ),
    ):
        folder = write_tool(tmp_path, "tool", manifest)
        if manifest is None:
            (folder / "tool.json").unlink()
        _, checks = check_files(folder, ToolsSettings(python=sys.executable))
        failed = {
            name: len((it.details or "").splitlines())
            for name, it in checks.items()
            if it.status == "fail"
        }
        assert failed == {failing: lines}


def test_answers_are_held_against_their_reference(tmp_path: Path) -> None:
    pairs = {"pairs": {"a": 1, "b": 2}}
    answer = {"n": {"value": 1.00001}, "c": {"x": [1.0005], "series": []}, "t": "x", "k": pairs}

    def trouble(expected: Any, **tolerance: Any) -> list[str]:
        return compare({"expected_outputs": expected, "tolerance": tolerance}, answer)

    assert trouble({"n": 1, "c": {"x": [1.0], "series": []}, "t": "x"}) == []
    assert trouble({"n": 1.1}, n={"abs": 0.2}) == trouble({"n": 1.1}, n={"rtol": 0.1}) == []
    assert trouble({"c": {"x": [1.0]}}, c={"rel": 0.1, "allow_extra": True}) == []
    assert trouble({"k": {"a": 1, "b": 2}}) == []
    assert trouble({"k": {"pairs": [{"key": "a", "value": 1}]}}, k={"allow_extra": True}) == []
    everywhere = {"expected_outputs": {"n": 1.1, "k": {"a": 1}}, "atol": 0.2, "allow_extra": True}
    assert compare(everywhere, answer) == []
    assert trouble(
        {"n": 1.1, "t": "y", "zz": 1, "c": {"x": [1.0, 2], "a/b": True, "series": 5}}
    ) == [
        "n/: expected 1.1, got 1.00001",
        "t/: expected 'y', got 'x'",
        "zz is missing in the answer",
        "c/x: expected '2 items', got '1 items'",
        "c/x/1: missing, expected 2",
        "c/a~1b: missing, expected True",
        "c/series: expected 5, got '0 items'",
    ]
    assert len(trouble({"c": {"x": list(range(100))}})) == 50
    assert compare({"expected_outputs": {}}, [1]) == ["the answer is no object"]


def test_tolerances_come_from_the_fixture_then_by_output_then_by_type(tmp_path: Path) -> None:
    spec = pixie(
        tmp_path, outputs=[{"key": key, "type": "number", "label": key} for key in ("a", "b")]
    )
    path = tmp_path / "tolerance.yaml"
    assert read_tolerances(path, spec) == Tolerances()
    path.write_text("defaults:\n  number: {rtol: 0.1}\noverrides:\n  b: {atol: 5}\n")
    found = read_tolerances(path, spec)

    def differ(expected: Any, **fixture: Any) -> list[str]:
        said = compare(
            {"expected_outputs": expected, **fixture}, {"a": 105, "b": 104, "c": 101}, found
        )
        return [each.partition("/")[0] for each in said]

    assert differ({"a": 100, "b": 100}) == []
    assert differ({"a": 90, "b": 90, "c": 100}) == ["a", "b", "c"]
    assert differ({"a": 100, "b": 100}, rtol=0.001) == ["a", "b"], (
        "the fixture's own counts for all"
    )
    assert differ({"a": 100, "b": 100}, tolerance={"a": {"atol": 1}}) == ["a"]
    assert differ({"n": 1}) == ["n is missing in the answer"]
    plain_spec = plain(tmp_path, output={"properties": {"a": {"type": "number"}, "b": True}})
    assert read_tolerances(path, plain_spec).of("a") == {"rtol": 0.1}
    path.write_text("defaults: [1]\n")
    with pytest.raises(DocumentError):
        read_tolerances(path, spec)


async def test_a_fixture_with_a_reason_to_be_skipped_is_not_run(house: ToolHouse) -> None:
    house.add("shapes")
    reference = house.tools / "shapes" / "reference"
    reference.mkdir()
    (reference / "fixture_a.json").write_text(
        json.dumps({**FIXTURE, "expected_outputs": {}, "skip_reason": "no GPU"})
    )
    check = by_name(await validated(house))["reference_fixtures_match"]
    assert (check["status"], check["message"]) == ("skip", "fixture_a.json is skipped: no GPU")
    (reference / "fixture_b.json").write_text(json.dumps(FIXTURE))
    check = by_name(await validated(house))["reference_fixtures_match"]
    assert (check["status"], check["message"]) == ("pass", "1 fixture matches; 1 skipped")
    (reference / "tolerance.yaml").write_text("defaults: 3\n")
    check = by_name(await validated(house))["reference_fixtures_match"]
    assert (check["status"], "tolerance.yaml" in check["message"]) == ("fail", True)


def test_dependencies_of_a_pixie_tool(tmp_path: Path) -> None:
    for content, status, words in (
        ("[[", "fail", "pyproject.toml"),
        ("['FastAPI>=0.1']", "warn", "uvicorn, pydantic, python-dotenv"),
        ("['fastapi', 'uvicorn[x]', 'pydantic', 'python_dotenv']", "pass", "4 dependencies"),
        (
            "['fastapi', 'uvicorn', 'pydantic', 'python-dotenv', 'x @ https://h/x.whl']",
            "warn",
            "not from the package",
        ),
    ):
        text = f"[project]\ndependencies = {content}"
        folder = write_tool(tmp_path, "tool", pixie_manifest(), pyproject__toml=text)
        check = check_files(folder, ToolsSettings(python=sys.executable))[1]["pyproject_ok"]
        assert (check.status, words in check.message) == (status, True), check


@pytest.mark.parametrize(
    ("schema", "sample"),
    [
        ({"const": 7, "default": 1}, 7),
        ({"type": "integer", "minimum": 5, "maximum": 9}, 7),
        ({"type": ["null", "boolean"]}, False),
        ({"type": "array", "minItems": 2, "items": {"type": "integer"}}, [0, 0]),
        ({"$ref": "#/$defs/a"}, "there"),
        (
            {
                "properties": {"a": {"type": "integer"}, "b": {"default": 2}, "c": {}},
                "required": ["a"],
            },
            {"b": 2, "a": 0},
        ),
    ],
)
def test_a_sample_is_as_plain_as_can_be(
    tmp_path: Path, schema: dict[str, Any], sample: Any
) -> None:
    root = {"properties": {"k": schema}, "required": ["k"], "$defs": {"a": {"const": "there"}}}
    found = sample_input(plain(tmp_path, input=root))
    assert (found.value, found.trouble) == ({"k": sample}, "")


def test_pixies_inputs_get_values_that_fit_but_for_optional_and_hidden_ones(tmp_path: Path) -> None:
    inputs = [
        {**each, "required": True, "default": None}
        for each in FULL_INPUTS
        if each["type"] != "hidden"
    ]
    for multiple in (False, True):  # which says something of files alone
        found = sample_input(
            pixie(tmp_path, inputs=[{**each, "multiple": multiple} for each in inputs])
        )
        assert (found.trouble, set(found.value)) == ("", {each["key"] for each in inputs})
    more = [
        {"default": "a"},
        {"show_if": {"key": "i0", "equals": "a"}},
        {"show_if": {"key": "i0", "equals": "b"}},
    ]
    more = [
        {"key": f"i{at}", "type": "text", **each}
        for at, each in enumerate([*more, {"required": False}])
    ]
    assert sample_input(pixie(tmp_path, inputs=more)).value == {"i0": "a", "i1": "sample"}
    assert set(sample_input(pixie(tmp_path, layout="chat")).value) == {"messages", "history"}


# -- failures


@pytest.mark.parametrize("refusal", list(Refusal))
@pytest.mark.parametrize(
    "last", [None, {"detail": "it broke", "hint": "mend it", "stderr_tail": "t"}]
)
def test_every_refusal_has_words_a_next_step_and_a_problem_document(
    refusal: Refusal, last: Any
) -> None:
    error = failures.refusal_error(Refuse(1, "x", refusal, 1.2), ToolsSettings(), last)
    problem = error.problem()
    assert (problem["unit"], error.detail.endswith((".", "broke"))) == ("tool:x", True)
    assert error.hint or refusal is Refusal.REMOVED
    assert problem["status"] != 429 or problem["retry_after_seconds"] == 2


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_concurrency_is_named_where_a_late_run_was_sent_beside_others(
    tmp_path: Path, beside: int
) -> None:
    spec = plain(tmp_path)
    end = End(Reason.RUNTIME_LIMIT)
    for error in (
        failures.limit_exceeded(spec, end, beside=beside),
        failures.late(spec, 1.0, beside=beside),
    ):
        assert ('"concurrency": 1' in str(error.hint)) == (beside > 0)
