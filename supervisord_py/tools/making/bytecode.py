"""Is the bytecode of a virtual environment there? Without it every cold start compiles again, several times slower."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_PACKAGES = 500


def lacks_bytecode(venv: Path) -> bool:
    """Say whether any package at the top of site-packages has no compiled `__init__`; none at all lack none."""
    looked_at = 0
    for packages in sorted(venv.glob("lib/python*/site-packages")):
        for name in sorted(os.listdir(packages)):
            if not os.path.isfile(packages / name / "__init__.py"):
                continue
            if not any((packages / name / "__pycache__").glob("__init__.*.pyc")):
                return True
            looked_at += 1
            if looked_at >= MAX_PACKAGES:
                return False
    return False
