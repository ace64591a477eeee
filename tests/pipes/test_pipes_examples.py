"""The pipes that ship with the package: usable as they are, and the one without a model does its work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipe_texts import usable
from supervisord_py.pipes.catalog import read_pipe
from supervisord_py.pipes.definition import USED
from supervisord_py.pipes.models import PipeDefinition

EXAMPLES = Path(__file__).parents[2] / "supervisord_py" / "examples" / "pipes"
SCHEDULES = (
    "manual",
    "every 30m",
    "every 2 hours",
    "1d",
    "hourly",
    "daily at 9:30am",
    "weekday at 18:00",
    "mon,thu at 8",
    "weekend at 12:00",
    "*/15 8-20 * * 1-5",
    "@daily",
    "at 2099-01-01T09:00:00Z",
    "2026-12-01 10:00",
)


def example(name: str) -> PipeDefinition:
    found = read_pipe(EXAMPLES / name)
    assert isinstance(found, PipeDefinition)
    return found


@pytest.mark.parametrize("name", sorted(each.name for each in EXAMPLES.iterdir()))
def test_an_example_is_a_pipe_without_a_warning(name: str) -> None:
    found = example(name)
    assert found.warnings == ()
    assert found.description
    assert found.title


def test_the_manual_page_has_every_key_and_the_schedules_in_it_are_some() -> None:
    page = (EXAMPLES.parents[2] / "man" / "man5" / "pipe.md.5").read_text()
    text = page.replace("\\-", "-").replace("\\ ", " ")
    assert [key for key in USED if not re.search(rf"\b{key}\b", text)] == []
    for schedule in SCHEDULES:
        assert schedule in text
        usable(f"schedule: '{schedule}'")
