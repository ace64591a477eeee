"""What one request passes on its way through the control plane.

`make hops` prints the lists: an introduction.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.house import House, house, server

pytestmark = pytest.mark.deep
HOOK = Path(__file__).parent / "hops_hook"


@pytest.fixture(scope="module")
def daemon() -> Iterator[House]:
    # Nothing is made ready for the next start beside the calls that are looked at.
    with house({"PYTHONPATH": str(HOOK), "PX_DAEMON__ZYGOTES": "0"}) as px:
        px.settings = {**px.settings, "PX_HOPS": str(px.home / "hops")}
        px.tool("double", server("return {'double': 2 * body['n']}"))
        folder = px.home / "pipes" / "tick"
        folder.mkdir(parents=True)
        (folder / "pipe.md").write_text(
            "---\nschedule: manual\nagent: command\ncommand: [cat]\n---\nhello\n"
        )
        px.start()
        yield px


def passed(px: House, call: Callable[[], object]) -> list[str]:
    """Return which functions of ours, in order, the control plane passes in a call that was made
    twice before.
    """
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


def follows(px: House) -> None:
    """Ask as `executes` does, to the end, and give the daemon the moment that it has while a
    pxctl ends.
    """
    answer = px.request(
        "POST", "/api/pipes/tick/run", {}, headers={"Idempotency-Key": os.urandom(16).hex()}
    )
    target = f"/api/pipes/tick/executions/{answer.json()['id']}/tail"
    assert (
        b'"status":"completed"'
        in px.request("GET", target, headers={"Accept": "application/x-ndjson"}).body
    )
    time.sleep(0.05)


def executes(px: House) -> None:
    """Ask as pxctl does, without its start: the less time a call takes, the less runs beside it."""
    body = {"code": "1+1", "cwd": str(px.home), "environ": {}}
    answer = px.request(
        "POST", "/api/kernels/default/execute", body, headers={"Accept": "application/x-ndjson"}
    )
    assert b'"status":"ok"' in answer.body


CALLS: dict[str, Callable[[House], object]] = {
    "POST /api/tools/double/run, warm": lambda px: px.run("double", {"n": 2}),
    "pxctl exec '1+1'": executes,
    "pxctl pipe run tick": follows,
}


@pytest.mark.parametrize("name", CALLS)
def test_report_the_functions_of_a_call(daemon: House, name: str) -> None:
    """A report without a limit: it only fails where a call passes nothing of ours."""
    call = CALLS[name]
    # The middle one of a few calls counts: watches that look once a second run beside some of them.
    functions = sorted((passed(daemon, lambda: call(daemon)) for _ in range(5)), key=len)[2]
    files = {each.partition(":")[0] for each in functions}
    print(f"\n{name}: {len(functions)} functions in {len(files)} files")
    print("\n".join(f"  {each}" for each in functions))
    assert functions
