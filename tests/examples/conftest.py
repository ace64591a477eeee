"""The example tools, each started once for the tests of a module."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from examples.running_tool import NAMES, RunningTool, running_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Require = Callable[[object, str], None]


def _needs(name: str, require: Require) -> None:
    if name == "text-stats":
        require(shutil.which("node"), "needs node")


@pytest.fixture(scope="module", params=NAMES)
def each_tool(request: pytest.FixtureRequest, require: Require) -> Iterator[RunningTool]:
    """Each of the tools in turn."""
    _needs(request.param, require)
    with running_tool(request.param) as tool:
        yield tool


@pytest.fixture(scope="module")
def interest() -> Iterator[RunningTool]:
    with running_tool("compound-interest") as tool:
        yield tool


@pytest.fixture(scope="module")
def lorenz() -> Iterator[RunningTool]:
    with running_tool("lorenz-ode-solver") as tool:
        yield tool


@pytest.fixture(scope="module")
def text_stats(require: Require) -> Iterator[RunningTool]:
    _needs("text-stats", require)
    with running_tool("text-stats") as tool:
        yield tool
