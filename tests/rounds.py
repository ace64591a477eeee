"""How often a test that throws dice is played: a few times in every run, always where
`PX_TEST_DEEP=1` is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

DEEP = os.environ.get("PX_TEST_DEEP") == "1"


def rounds(few: int, of: int) -> range:
    """Return the seeds to play: each has its own dice, so that a seed that failed can be played
    again.

    Args:
        few: In every run; enough for each case that a seed stands for.
        of: All of them (`make deep`).
    """
    return range(of if DEEP else few)


def mostly_deep(rows: Iterable[str], *at_once: str) -> list[Any]:
    """Return rows of a table as parameters: those that are named in every run, all others only
    where all are played.
    """
    return [pytest.param(row, marks=[] if row in at_once else [pytest.mark.deep]) for row in rows]
