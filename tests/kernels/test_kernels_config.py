"""The settings of kernels as the room reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kernels.cell_folder import config_in

GIB = 1 << 30


@pytest.mark.parametrize(
    ("setting", "machine", "limit"),
    [
        (None, 16 * GIB, 8 * GIB),
        (None, 0, 0),
        (1024, 16 * GIB, GIB),
        (0, 16 * GIB, 0),
        (65536, 16 * GIB, 64 * GIB),
    ],
)
def test_the_soft_limit_is_half_of_the_machine_unless_it_is_set(
    tmp_path: Path, setting: int | None, machine: int, limit: int
) -> None:
    assert replace(config_in(tmp_path), soft_memory_mb=setting).soft_memory_bytes(machine) == limit
