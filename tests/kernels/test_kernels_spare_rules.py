"""For whom a spare will do: the rules, without any process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.spare_pool import Recipe, recipe_of
from supervisord_py.process.model import ResourceLimit

ENV = {"HOME": "/home/u", "PATH": "/venv/bin:/bin", "LANG": "C.UTF-8", "PI_MODE": "x", "PYTHONHASHSEED": "7"}
LAUNCH = Launch("s-000000", "key", "/venv/bin/python", "/work", ENV, Path("/cells"), tag="t")


def recipe(**changes: object) -> Recipe:
    made = recipe_of(replace(LAUNCH, **changes))  # type: ignore[arg-type]  # the tests name its fields
    assert made is not None
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "t-000000", "instance": "other", "cwd": "/elsewhere", "cells_dir": Path("/c2"), "tag": "u"},
        {"modules": ("/m",), "prelude": False},
        {"env": ENV | {"PATH": "/venv/bin:/sbin", "PI_MODE": "y", "XDG_DATA_HOME": "/d", "VIRTUAL_ENV": "/venv"}},
    ],
)
def test_what_an_order_can_bring_needs_no_other_spare(changes: dict[str, object]) -> None:
    assert recipe(**changes) == recipe()


@pytest.mark.parametrize(
    "changes",
    [
        {"interpreter": "/other/bin/python"},
        {"overlay": "/overlay"},
        {"limits": (ResourceLimit("nofile", 64, 64),)},
        {"max_rss_bytes": 1 << 30},
        *({"env": ENV | {name: "other"}} for name in ("PYTHONHASHSEED", "HOME", "LC_ALL", "LD_PRELOAD", "OMP_DYNAMIC")),
        {"env": {name: value for name, value in ENV.items() if name != "LANG"}},
    ],
)
def test_what_acts_before_the_order_needs_one_of_its_own(changes: dict[str, object]) -> None:
    assert recipe(**changes) != recipe()


@pytest.mark.parametrize(
    "changes",
    [
        {"interpreter": None},
        {"interpreter": "python3"},
        *({"env": ENV | {"PYTHONPATH": path}} for path in ("src", "/a:src", "/a::/b", ":/a")),
    ],
)
def test_where_no_spare_can_be_right_there_is_none(changes: dict[str, object]) -> None:
    assert recipe_of(replace(LAUNCH, **changes)) is None  # type: ignore[arg-type]  # as above
