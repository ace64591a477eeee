"""What one request passes on its way through the control plane. `make hops` prints the lists: an introduction."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.house import House, house, server

pytestmark = pytest.mark.deep
HOOK = Path(__file__).parent / "hops_hook"


@pytest.fixture(scope="module")
def daemon() -> Iterator[House]:
    with house({"PYTHONPATH": str(HOOK)}) as px:
        px.settings = {**px.settings, "PX_HOPS": str(px.home / "hops")}
        px.tool("double", server("return {'double': 2 * body['n']}"))
        folder = px.home / "pipes" / "tick"
        folder.mkdir(parents=True)
        (folder / "pipe.md").write_text("---\nschedule: manual\nagent: command\ncommand: [cat]\n---\nhello\n")
        px.start()
        yield px


def passed(px: House, call: Callable[[], object]) -> list[str]:
    """Return which functions of ours, in order, the control plane passes in a call that was made twice before."""
    call()
    call()
    with socket.socket(socket.AF_UNIX) as hook:
        hook.connect(str(px.home / "hops"))
        hook.sendall(b".")
        assert hook.recv(1) == b"."
        call()
        hook.sendall(b".")
        hook.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: hook.recv(65536), b"")).decode().splitlines()


def succeeds(px: House, *words: str) -> None:
    done = px.pxctl(*words)
    assert done.returncode == 0, done.stderr


# At most what is passed today, and a few: the numbers only go down. One of a few tries leaves out what happens to
# run beside a call: watches look once a second. The design's own aims are 40, 110 and 170.
CALLS: dict[str, tuple[Callable[[House], object], int]] = {
    "POST /api/tools/double/run, warm": (lambda px: px.run("double", {"n": 2}), 40),
    "pxctl exec '1+1'": (lambda px: succeeds(px, "exec", "1+1"), 158),
    "pxctl pipe run tick": (lambda px: succeeds(px, "pipe", "run", "tick"), 222),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_passes_few_functions(daemon: House, name: str) -> None:
    call, most = CALLS[name]
    tries = (passed(daemon, lambda: call(daemon)) for _ in range(8))
    functions = next((each for each in tries if len(each) <= most), None) or passed(daemon, lambda: call(daemon))
    files = {each.partition(":")[0] for each in functions}
    print(f"\n{name}: {len(functions)} functions in {len(files)} files (at most {most})")
    print("\n".join(f"  {each}" for each in functions))
    assert len(functions) <= most
