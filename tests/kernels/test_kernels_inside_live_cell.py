"""How often other clients are told of a cell's output, whenever it is printed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.kernels.inside import live_cell
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.inside.live_cell import FIRST_DELAY, SPACING, LiveCell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class Told:
    """A publisher whose rounds are run by the test."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, Callable[[], None]]] = []
        self.text = ""
        self.meanwhile: Callable[[], Any] = int

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self.rounds.append((delay, action))

    def drain(self) -> None:
        """Have nothing left."""

    def stream(self, _header: Mapping[str, Any], _stream: str, text: str) -> None:
        self.text += text
        self.meanwhile()

    def tick(self, _header: Mapping[str, Any], _total: int) -> None:
        """Say nothing."""


@pytest.mark.parametrize("when", ["the time is noted", "the text is sent"])
def test_what_is_printed_while_others_are_told_waits_for_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Another thread may print between any two steps of the one that tells."""
    told = Told()
    cell = LiveCell(CellWriter(str(tmp_path), "c", 1000), {}, 1000, told)  # type: ignore[arg-type]
    late = [b"b"]

    def print_once() -> None:
        if late:
            cell.write("stdout", late.pop())

    def monotonic() -> float:
        if when == "the time is noted" and told.rounds:
            print_once()
        return 50.0

    monkeypatch.setattr(live_cell, "time", SimpleNamespace(monotonic=monotonic))
    if when == "the text is sent":
        told.meanwhile = print_once
    cell.write("stdout", b"a")
    for delay, action in told.rounds:
        assert delay == (FIRST_DELAY if action is told.rounds[0][1] and not told.text else pytest.approx(SPACING))
        action()
    assert told.text == "ab"
    cell.writer.close()
