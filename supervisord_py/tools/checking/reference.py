"""Check 12: answers to known inputs against what is expected, with the tolerance that suits each output's type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.process.bounded_file import read_bounded
from supervisord_py.tools.declaring.difference import Tolerance, differences
from supervisord_py.tools.declaring.json_positions import JsonSyntaxError, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.tools.spec import ToolSpec

FOLDER = "reference"
NUMBER = Tolerance(absolute=1e-6, relative=1e-4)
CELL = Tolerance(absolute=1e-6)
CHART = Tolerance(absolute=1e-9, relative=1e-3)


@dataclass(frozen=True, slots=True)
class Fixture:
    """One known case. `tolerance` maps an output's key to `{abs, rel}`."""

    file: str
    inputs: Any
    expected: Mapping[str, Any]
    tolerance: Mapping[str, Any]


def fixtures_of(folder: Path) -> tuple[list[Fixture], list[str]]:
    """Read `reference/fixture_*.json`; what cannot be read is a sentence."""
    found: list[Fixture] = []
    troubles: list[str] = []
    for path in sorted((folder / FOLDER).glob("fixture_*.json")):
        try:
            document = parse_bytes(read_bounded(path)).value
        except (OSError, JsonSyntaxError) as error:
            troubles.append(f"{path.name}: {error}")
            continue
        if not isinstance(document, dict) or not isinstance(document.get("expected_outputs"), dict):
            troubles.append(f"{path.name}: must be an object with inputs and expected_outputs")
            continue
        tolerance = document.get("tolerance")
        known = tolerance if isinstance(tolerance, dict) else {}
        found.append(Fixture(path.name, document.get("inputs", {}), document["expected_outputs"], known))
    return found, troubles


def compare(spec: ToolSpec, fixture: Fixture, answer: Any) -> list[str]:
    """Return how an answer differs from what a fixture expects; empty when it does not."""
    if not isinstance(answer, dict):
        return [f"{fixture.file}: the answer is no object"]
    found: list[str] = []
    for key, expected in fixture.expected.items():
        if key not in answer:
            found.append(f"{fixture.file}: {key} is missing in the answer")
            continue
        tolerance = _tolerance(spec, key, fixture.tolerance.get(key))
        sentences = differences(bare(expected), bare(answer[key]), tolerance)
        found.extend(f"{fixture.file}: {key}{sentence}" for sentence in sentences)
    return found


def bare(value: Any) -> Any:
    """Unwrap the `{"value": …}` form that scalars may have."""
    return value["value"] if isinstance(value, dict) and "value" in value else value


def _tolerance(spec: ToolSpec, key: str, asked: Any) -> Tolerance:
    if isinstance(asked, dict):
        return Tolerance(_number(asked.get("abs")), _number(asked.get("rel")))
    outputs = spec.pixie.outputs if spec.pixie is not None else ()
    kind = next((each.type for each in outputs if each.key == key), "number")
    if kind.startswith("chart_"):
        return CHART
    return NUMBER if kind == "number" else CELL


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
