"""The gate that SIGINT comes through in our kernels, by itself: what came at a bad moment is neither lost nor shown."""

from __future__ import annotations

import os
from typing import Any

import pytest

from supervisord_py.kernels.inside import interrupts
from supervisord_py.kernels.inside.interrupts import Gate


class Events:
    def trigger(self) -> None:
        """Call somebody's callbacks."""


class Shell:
    """As much of IPython's as the gate surrounds."""

    def __init__(self) -> None:
        self.events = Events()

    async def run_code(self) -> str:
        return "ran"

    def showtraceback(self) -> None:
        """Show nothing."""

    def user_expressions(self) -> None:
        """Evaluate nothing."""


def run(shell: Shell) -> None:
    shell.run_code().send(None)


def ours(gate: Gate) -> None:
    gate.let_in()


def test_one_that_was_put_off_on_the_way_to_the_code_is_raised_when_it_begins() -> None:
    """It may have hit IPython's own callbacks, and something of ours be called by ipykernel before the code is."""
    gate, shell = Gate(), Shell()
    gate.surround(shell)
    gate.deferred = True
    ours(gate)
    gate.again()
    with pytest.raises(KeyboardInterrupt):
        run(shell)
    with pytest.raises(StopIteration, match="ran"):
        run(shell)


def function(text: str, *, file: str, module: str) -> Any:
    names: dict[str, Any] = {"__name__": module}
    exec(compile(f"def function(*call):\n    {text}", file, "exec"), names)  # noqa: S102 - frames of other files
    return names["function"]


@pytest.mark.parametrize(("beneath", "shown"), [("raise KeyboardInterrupt", 1), ("call[0](*call[1:])", 5)])
def test_a_traceback_ends_where_the_users_code_called_ours(beneath: str, shown: int) -> None:
    """And goes on where ours, and the library that it called, called the user's again."""
    of_ours = function("call[0](*call[1:])", file=os.path.join(os.path.dirname(interrupts.__file__), "x"), module="x")
    library = function(beneath, file="iostream.py", module="ipykernel.iostream")
    python = function("call[0](*call[1:])", file="threading.py", module="threading")
    users = function("raise KeyboardInterrupt", file="<cell>", module="__main__")
    try:
        of_ours(library, python, users)
    except KeyboardInterrupt as error:
        trace = error.__traceback__
        assert trace is not None
        interrupts._cut_off_ours(trace)
        names = []
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        assert len(names) == shown, names
