"""An explanation names what decided, each thing on a line of its own."""

from __future__ import annotations

from pxctl.explaining import explanation_lines


def plain(text: str, *_: str) -> str:
    return text


def test_a_kernelspec_that_decided_is_named() -> None:
    document = {"cwd": "/w", "kernelspec": "ir", "candidates": [], "environment": {}}
    lines = list(explanation_lines(document, plain))  # type: ignore[arg-type]  # it paints nothing
    assert lines[:2] == ["in /w", "by the kernelspec ir"]


def test_without_one_there_is_no_such_line() -> None:
    lines = list(explanation_lines({"cwd": "/w"}, plain))  # type: ignore[arg-type]
    assert not [line for line in lines if "kernelspec" in line]
