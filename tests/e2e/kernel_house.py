"""Kernels of a whole daemon, as a stranger with a socket calls them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from e2e.house import DEADLINE, NDJSON, QUICK, Answer, House, Later, alive, house, marked, until

NOBODY_IS_EVICTED = {"PX_KERNELS__IDLE_SECONDS": "3600", "PX_KERNELS__MAX_SESSIONS": "30"}
PATIENT = {
    "PX_KERNELS__TIMEOUT_MIN_SECONDS": "0.1",
    "PX_KERNELS__TIMEOUT_SECONDS": "50",
    "PX_KERNELS__LADDER_TERMINATE_SECONDS": "60",
    "PX_KERNELS__LADDER_KILL_SECONDS": "65",
}
"""One SIGINT must do. A kernel that this machine lets wait is not taken for a deaf one."""
GATEWAY = "gateway-local"


class Call(Answer):
    """One answer of `POST …/execute`: a problem document, or what came of each cell."""

    @property
    def document(self) -> dict[str, Any]:
        return self.json()

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    @property
    def ok(self) -> bool:
        return self.status == 200 and self["status"] == "ok"

    @property
    def ended(self) -> tuple[str, str]:
        return self["status"], self["variables"]

    @property
    def cell(self) -> dict[str, Any]:
        (found,) = self["cells"]
        return dict(found)

    @property
    def statuses(self) -> list[str]:
        return [cell["status"] for cell in self["cells"]]

    @property
    def text(self) -> str:
        return str(self.cell["text"]).rstrip("\n")

    @property
    def told(self) -> str:
        words = [
            self.document.get("message"),
            self.document.get("detail"),
            *self.document.get("notices", ()),
        ]
        for cell in self.document.get("cells", ()):
            words += [*cell["notices"], (cell["error"] or {}).get("value")]
        return "\n".join(word for word in words if word)


class Stream:
    """One NDJSON answer that is read when the test wishes."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def until(self, name: str) -> dict[str, Any]:
        """Read on to the next event of that name; `done` and problems end every wait."""
        while True:
            line = self._response.readline()
            assert line, "the stream ended without a last word"
            event: dict[str, Any] = json.loads(line)
            if event.get("event") == name:
                return event
            assert event.get("event") not in {"done", None}, event

    def rest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._response if line.strip()]


class Calls:
    """The kernels of one daemon; sessions are in `cwd` where a call names no other folder."""

    def __init__(self, home: House, cwd: Path | None = None) -> None:
        self.house, self.cwd = home, str(cwd or home.home)

    def body(self, code: str | list[Any] | None, **members: Any) -> dict[str, Any]:
        cells = (
            [{"code": item} if isinstance(item, str) else item for item in code]
            if isinstance(code, list)
            else None
        )
        code_of = {"cells": cells} if cells is not None else {} if code is None else {"code": code}
        return {"cwd": self.cwd, **code_of, **members}

    def ask(
        self,
        kernel: str,
        code: str | list[Any] | None = None,
        *,
        seconds: float = DEADLINE,
        **members: Any,
    ) -> Call:
        body = self.body(code, **members)
        return Call(
            **vars(
                self.house.request("POST", f"/api/kernels/{kernel}/execute", body, seconds=seconds)
            )
        )

    def run(self, kernel: str, code: str | list[Any], **members: Any) -> Call:
        call = self.ask(kernel, code, **members)
        assert (call.status, call.document.get("schema")) == (200, "px.exec/1"), call.body
        return call

    def value(self, kernel: str, code: str, **members: Any) -> str:
        call = self.run(kernel, code, **members)
        assert call.ok, call.document
        return call.text

    def later(self, kernel: str, code: str | list[Any], **members: Any) -> Later:
        return Later(lambda: self.ask(kernel, code, **members))

    def begun(self, kernel: str, code: str, **members: Any) -> Later:
        mark = self.house.home / "begun"
        mark.unlink(missing_ok=True)
        line = (
            f": > {mark}"
            if members.get("language") == "bash"
            else f"open({str(mark)!r}, 'w').close()"
        )
        later = self.later(kernel, f"{line}\n{code}", **members)
        until(lambda: mark.exists() or later.done(), "the cell has begun")
        assert mark.exists(), later.result().body
        return later

    @contextlib.contextmanager
    def stream(self, kernel: str, code: str | list[Any], **members: Any) -> Iterator[Stream]:
        path, headers = f"/api/kernels/{kernel}/execute", {"Accept": NDJSON}
        with self.house.asking(
            "POST", path, self.body(code, **members), headers=headers
        ) as response:
            yield Stream(response)

    def interrupt(self, kernel: str) -> dict[str, Any]:
        return self.house.post(f"/api/kernels/{kernel}/interrupt")

    def end(self, kernel: str) -> None:
        assert self.house.pxctl("kernel", "stop", self.show(kernel)["id"]).returncode == 0

    def known(self) -> dict[str, dict[str, Any]]:
        return {item["name"]: item for item in self.house.get("/api/kernels")["kernels"]}

    def show(self, kernel: str) -> dict[str, Any]:
        return self.house.get(f"/api/kernels/{kernel}")

    def state(self, kernel: str) -> str | None:
        return self.known().get(kernel, {}).get("state")

    def wait_state(self, kernel: str, *states: str) -> None:
        until(lambda: self.state(kernel) in states, f"{kernel} is {' or '.join(states)}")

    def wait_running(self, kernel: str) -> str:
        """Return the id of the cell that runs, once one was sent; its code may not have begun."""
        return until(
            lambda: self.known().get(kernel, {}).get("running"), f"a cell of {kernel} runs"
        )

    def history(self, kernel: str) -> list[dict[str, Any]]:
        return self.house.get(f"/api/kernels/{self.show(kernel)['id']}/cells")["cells"]

    def last(self, kernel: str) -> dict[str, Any]:
        cells = until(
            lambda: [c for c in self.history(kernel)[-1:] if c["ended_at"]],
            f"{kernel}'s last cell ended",
        )
        return dict(cells[0])

    def output(self, kernel: str, cell: str, query: str = "", **how: Any) -> bytes:
        return self.house.paged(
            f"/api/kernels/{self.show(kernel)['id']}/cells/{cell}/output{query}", **how
        )

    def events(self, kernel: str, *names: str) -> list[dict[str, Any]]:
        return self.house.events(f"kernel:{self.show(kernel)['id']}", *names)


def actions(cell: Mapping[str, Any]) -> list[str]:
    return [step["action"] for step in cell["steps"]]


def waits_for(path: Path, also: str = "None") -> str:
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n{also}"


def environment(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True
    )
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@contextlib.contextmanager
def kernels_house(
    settings: Mapping[str, str] | None = None, *, measured: bool = False, **more: str
) -> Iterator[Calls]:
    """Open a house whose daemon serves, evicts nobody, and knows the kernelspecs of
    `home/jupyter`.
    """
    with house(
        {**QUICK, **NOBODY_IS_EVICTED, **(settings or {}), **more}, measured=measured
    ) as home:
        home.settings = {**home.settings, "JUPYTER_PATH": str(home.home / "jupyter")}
        home.start()
        yield Calls(home)


def gateways(home: House) -> dict[int, str]:
    """Return the processes of the daemon's own gateway: pid → command line and environment."""
    found = {}
    for pid in marked(home.daemon_id):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            argv, environ = (
                Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ")
            )
            if "--KernelGatewayApp.port=" in argv:
                found[pid] = argv + environ
    return found


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # it may end meanwhile, and so may each of its threads
        for task in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as words,
            ):
                children += map(int, words.read().split())
    return [one for child in children if alive(child) for one in (child, *descendants(child))]
