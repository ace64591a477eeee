"""In which order several processes play the tests: long files first, each whole, and as many tests for each process.

Law: what comes in random order stays in it, but that long files go before the rest. pytest-xdist's worksteal cuts the
list into as many equal pieces as there are processes; a process that is done steals the end of the longest piece. What
lies there should be short, so that nobody plays a minute's test when the others are done, and of no file whose tests
share a daemon, which would be started once more.
"""

from __future__ import annotations

from itertools import chain, groupby
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONG = (
    "tests/e2e/",
    "tests/kernels/test_kernels_inside_start.py",
    "tests/kernels/test_kernels_gateway_shared.py",
    "tests/kernels/test_kernels_policy_machine.py",
    "tests/tools/test_sync.py",
    "tests/repo/test_readme_tour.py",
    "tests/repo/test_demo.py",
    "tests/daemon/test_daemon_life.py",
    "tests/jupyter/test_jupyter_server.py",
    "tests/cli/test_cli_streams.py",
)
"""Beginnings of the ids of tests that share a daemon, or of which one takes more than five seconds of a processor."""
T = TypeVar("T")


def dealt(tests: Sequence[T], hands: int, name_of: Callable[[T], str]) -> list[T]:
    """Return the tests in the order in which `hands` processes should have them.

    Args:
        tests: In any order, those of a file side by side.
        hands: How many equal pieces the list will be cut into, at least 1.
        name_of: A test's id, `FOLDER/FILE.py::…`.
    """
    files = [list(group) for _, group in groupby(tests, key=lambda test: name_of(test).partition("::")[0])]
    long = [file for file in files if name_of(file[0]).startswith(LONG)]
    short = [test for test in tests if not name_of(test).startswith(LONG)]
    heaps = [list(chain.from_iterable(long[hand::hands])) for hand in range(hands)]
    left = len(tests)
    for hand, heap in enumerate(heaps):
        room = max(0, left // (hands - hand) - len(heap))
        heap.extend(short[:room])
        del short[:room]
        left -= len(heap)
    return [*chain.from_iterable(heaps), *short]
