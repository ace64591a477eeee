"""Front matters of other programs: what `pxctl pipe validate` says of each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.house import of_module, until
from e2e.pipe_house import PipeHouse, pipes_house
from foreign_front_matters import FAILS, FRONTS
from supervisord_py.pipes.definition import USED

shared = of_module(pipes_house)


@pytest.fixture(scope="module")
def findings(shared: PipeHouse) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """All of them in one house, and what one call says of them: the findings by pipe."""
    for name, foreign in FRONTS.items():
        shared.write(name, foreign.front)
    until(lambda: shared.names() >= set(FRONTS), "all are seen")
    answer = shared.json("pipe", "validate", "*", code=None)
    yield {each["pipe"]: each["checks"] for each in answer["pipes"]}


@pytest.mark.parametrize("name", FRONTS)
def test_no_key_is_silent_and_each_has_its_cure(
    findings: dict[str, list[dict[str, Any]]], name: str
) -> None:
    front, told = FRONTS[name]
    texts = {each["name"]: f"{each['detail']}; {each['hint']}" for each in findings[name]}
    everything = "\n".join(texts.values())
    if FAILS in told:
        assert told[FAILS] in everything
        return
    for key in yaml.load(front, yaml.BaseLoader):  # noqa: S506 - it makes nothing but texts
        if key.startswith("x-"):
            assert key not in everything, f"{key} is somebody's own: {texts}"
            continue
        assert key in USED or key in everything, f"{key} is silent: {texts}"
    for key, cure in told.items():
        assert cure in texts.get(key, ""), texts


def test_each_finding_names_its_line(findings: dict[str, list[dict[str, Any]]]) -> None:
    [zone] = [each for each in findings["cron-tz"] if each["name"] == "tz"]
    assert (zone["verdict"], zone["line"], zone["detail"]) == ("warn", 3, "tz has no effect here")
