"""The gate itself: what passes it, and what does not."""

from __future__ import annotations

from typing import Any

from repo.coverage_gate import PURE, low, misses


def report(percent: float = 95.0, **changed: Any) -> dict[str, Any]:
    whole = {"missing_lines": [], "missing_branches": [], "summary": {"percent_covered": 100.0}}
    return {"totals": {"percent_covered": percent}, "files": dict.fromkeys(PURE, whole) | changed}


def test_a_good_report_passes() -> None:
    assert misses(report()) == []


def test_too_little_is_missed() -> None:
    assert misses(report(89.994)) == ["coverage is 89.99 %, below 90 %"]


def test_a_pure_module_that_was_not_measured_is_missed() -> None:
    found = report()
    del found["files"][PURE[0]]
    assert misses(found) == [f"{PURE[0]} was not measured"]


def test_a_pure_module_lacks_no_line_and_no_branch() -> None:
    lacking = {"missing_lines": [7], "missing_branches": [[3, 5]], "summary": {"percent_covered": 99.0}}
    found = report(99.9, **{PURE[1]: lacking})
    assert misses(found) == [f"{PURE[1]} is pure and lacks lines [7]", f"{PURE[1]} is pure and lacks branches [[3, 5]]"]


def test_low_files_are_listed_lowest_first() -> None:
    def of(percent: float) -> dict[str, Any]:
        return {"summary": {"percent_covered": percent}}

    assert low(report(b=of(80.0), a=of(30.5))) == ["  30.5 %  a", "  80.0 %  b"]
