"""What every example tool promises, whatever language it is written in (CONTRACT §5)."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from jsonschema_rs import Draft202012Validator, meta

from examples.running_tool import (
    DEADLINE,
    NAMES,
    RunningTool,
    folder_of,
    manifest_of,
    request_of,
    running_tool,
)
from supervisord_py.tools.install import Template, new_tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.deep


def test_its_schema_is_its_manifest(each_tool: RunningTool) -> None:
    answer = each_tool.ask("GET", "/schema")
    assert (answer.status, answer.json()) == (200, manifest_of(each_tool.name))


def test_its_test_request_gives_an_answer_that_fits_its_output_schema(each_tool: RunningTool) -> None:
    answer = each_tool.post("/run", request_of(each_tool.name))
    assert (answer.status, answer.content_type) == (200, "application/json")
    Draft202012Validator(manifest_of(each_tool.name)["output"]).validate(answer.json())


def test_streaming_gives_lines_of_json(each_tool: RunningTool) -> None:
    answer = each_tool.post("/stream", request_of(each_tool.name))
    assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
    assert len(answer.lines()) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_well_on_sigterm(name: str, require: Callable[[object, str], None]) -> None:
    require(name != "text-stats" or shutil.which("node"), "needs node")
    with running_tool(name) as tool:
        idle = http.client.HTTPConnection("127.0.0.1", tool.port, timeout=DEADLINE)
        idle.request("GET", "/healthz")
        idle.getresponse().read()  # the connection stays open: a kept-alive client must not hold up the end
        assert tool.end() == (0, b"")
        idle.close()


def test_who_hangs_up_amid_a_stream_leaves_no_traceback(tmp_path: Path) -> None:
    compound = running_tool("compound-interest")
    template = running_tool("mine", new_tool(tmp_path, "mine", Template.STDLIB))
    long = ({"principal": 1, "annual_rate": 0.1, "years": 100}, {"text": "hello" * 100, "times": 100})
    with compound as first, template as second:
        for tool, body in zip((first, second), long, strict=True):
            for _ in range(10):
                connection = http.client.HTTPConnection("127.0.0.1", tool.port, timeout=DEADLINE)
                connection.request("POST", "/stream", body=json.dumps(body))
                connection.getresponse().read(1)
                connection.close()
            assert tool.post("/run", body).status == 200
            assert tool.end() == (0, b"")


@pytest.mark.parametrize("name", NAMES)
def test_its_manifest_is_complete(name: str) -> None:
    manifest = manifest_of(name)
    assert manifest["name"] == name
    assert manifest["input"]["additionalProperties"] is False
    for side in ("input", "output"):
        meta.validate(manifest[side])
    assert Draft202012Validator(manifest["input"]).is_valid(request_of(name))
    for key, rule in manifest["input"]["properties"].items():
        assert rule["title"], key
        assert key in manifest["input"].get("required", []) or "default" in rule, key
        if "default" in rule:
            Draft202012Validator(rule).validate(rule["default"])
    assert (folder_of(name) / "README.md").read_text().startswith(f"# {name}\n")


def test_compound_interest_imports_nothing_but_the_standard_library() -> None:
    """It works with no install: -S hides site-packages."""
    argv = [sys.executable, "-I", "-S", "-c", "import runpy; runpy.run_path('main.py')"]
    ended = subprocess.run(argv, cwd=folder_of("compound-interest"), capture_output=True, timeout=DEADLINE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


# -- what they work out -----------------------------------------------------------------------------------------------


def test_a_deposit_grows_as_the_formula_says(interest: RunningTool) -> None:
    for times in (1, 4, 12, 365):
        deposit = {"principal": 1000, "annual_rate": 0.05, "years": 10, "compounds_per_year": times}
        answer = interest.post("/run", deposit).json()
        assert answer["final_balance"] == round(1000 * (1 + 0.05 / times) ** (10 * times), 2)
        assert answer["interest"] == pytest.approx(answer["final_balance"] - 1000)


def test_the_schedule_adds_up(interest: RunningTool) -> None:
    deposit = {"principal": 500, "annual_rate": -0.1, "years": 4, "monthly_contribution": 10}
    answer = interest.post("/run", deposit).json()
    assert [row["year"] for row in answer["schedule"]] == [1, 2, 3, 4]
    balance = 500.0
    for row in answer["schedule"]:
        balance += row["contribution"] + row["interest"]
        assert row["balance"] == pytest.approx(balance, abs=0.05)
    assert answer["final_balance"] == answer["schedule"][-1]["balance"]


def test_the_stream_is_the_schedule(interest: RunningTool) -> None:
    deposit = {"principal": 1000, "annual_rate": 0.05, "years": 3}
    assert interest.post("/stream", deposit).lines() == interest.post("/run", deposit).json()["schedule"]


def test_it_counts(text_stats: RunningTool) -> None:
    answer = text_stats.post("/run", request_of("text-stats")).json()
    assert answer["frequent"] == [
        {"word": "sea", "count": 3},
        {"word": "the", "count": 3},
        {"word": "calm", "count": 1},
    ]
    counts = {key: answer[key] for key in ("characters", "words", "unique_words", "sentences", "paragraphs")}
    assert counts == {"characters": 63, "words": 12, "unique_words": 8, "sentences": 3, "paragraphs": 2}
    assert answer["average_word_length"] == 3.83
    assert answer["reading_seconds"] == 3.1


def test_characters_are_what_a_reader_sees(text_stats: RunningTool) -> None:
    """A combining accent, a flag and a family of code points are one character each."""
    assert text_stats.post("/run", {"text": "e\u0301🇩🇪👨‍👩‍👧"}).json()["characters"] == 3


def test_the_stream_has_each_paragraph_and_then_the_whole(text_stats: RunningTool) -> None:
    body = request_of("text-stats")
    *paragraphs, whole = text_stats.post("/stream", body).lines()
    assert [(line["paragraph"], line["of"], line["words"]) for line in paragraphs] == [(1, 2, 10), (2, 2, 2)]
    assert whole == {"done": True} | text_stats.post("/run", body).json()
