"""Fixtures of the tests with Jupyter's own programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from beside import free_port
from e2e.house import gone
from jupyter_house import Front, front_end


@pytest.fixture(scope="module")
def shared_front() -> Iterator[Front]:
    with front_end({"PX_API__LISTEN": f"127.0.0.1:{free_port()}"}) as made:
        yield made


@pytest.fixture
def front(shared_front: Front) -> Iterator[Front]:
    yield shared_front
    for name, each in shared_front.living().items():
        shared_front.house.post(f"/api/kernels/{name}/stop")
        gone(each["pid"])


@pytest.fixture
def own_front() -> Iterator[Front]:
    with front_end(started=False) as made:
        yield made
