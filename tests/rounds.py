"""How often a test that throws dice is played: a few times in every run, always where `PX_TEST_DEEP=1` is set."""

from __future__ import annotations

import os


def rounds(few: int, of: int) -> range:
    """Return the seeds to play: each has its own dice, so that a seed that failed can be played again.

    Args:
        few: In every run; enough for each case that a seed stands for.
        of: All of them (`make deep`).
    """
    return range(of if os.environ.get("PX_TEST_DEEP") == "1" else few)
