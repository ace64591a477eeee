"""A real daemon: start, second daemon, modes, replaced and killed control planes, killed keepers, inherited sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import pytest

from e2e.house import BIN, House, alive, server, until
from ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

ECHO = server("return {'echo': body}")


def facts(house: House, event: str) -> list[dict[str, Any]]:
    """Return the log entries of that event so far."""
    found = []
    for line in (house.home / "pxd.stderr").read_text().splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if entry["event"] == event:
                found.append(entry)
    return found


def test_another_runtime_directory_gives_no_second_daemon_on_the_same_ledger(running: House, short_tmp: Path) -> None:
    """Sessions of one user may disagree about XDG_RUNTIME_DIR; the state directory decides."""
    environ = {**running.environ, "RUNTIME_DIRECTORY": str(short_tmp / "run")}
    done = subprocess.run([BIN / "pxd"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 8
    assert f"pid {running.pids()[0]}" in done.stderr
    assert str(running.home / "state") in done.stderr


@pytest.mark.parametrize("which", ["run/pxd.lock", "state/pxd.lock"])
def test_a_deleted_lock_changes_nothing(running: House, which: str) -> None:
    """Another lock still holds, or else the socket answers; it is not unlinked (S5)."""
    (running.home / which).unlink()
    done = subprocess.run([BIN / "pxd"], env=running.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 8
    assert running.answers()


def test_without_any_lock_a_living_socket_is_respected(running: House) -> None:
    for which in ("run/pxd.lock", "state/pxd.lock"):
        (running.home / which).unlink()
    done = subprocess.run([BIN / "pxd"], env=running.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 8
    assert any(f"pid {pid}" in done.stderr for pid in running.pids()), "whoever listens is named"
    assert running.answers()


def test_term_to_the_control_plane_alone_replaces_it(running: House) -> None:
    running.tool("echo", ECHO)
    assert running.run("echo").status == 200
    tool = running.status("echo")["pid"]
    keeper, control = running.pids()
    os.kill(control, signal.SIGTERM)
    until(lambda: not alive(control), "it is gone")
    assert running.pids()[0] == keeper
    assert running.status("echo")["pid"] == tool
    (exited,) = facts(running, "control_exited")
    assert exited["planned"]
    assert exited["code"] in {0, -signal.SIGKILL}, "after its last word it has five seconds to go"


def test_a_keeper_that_dies_during_the_stop_leaves_nothing_either(running: House) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    running.tool("deaf", deaf + ECHO, stop_timeout_seconds=50)
    assert running.run("deaf").status == 200
    tool = running.status("deaf")["pid"]
    keeper, control = running.pids()
    os.kill(keeper, signal.SIGTERM)
    until(lambda: len(facts(running, "stopping")) == 2, "both have begun to stop")
    os.kill(keeper, signal.SIGKILL)
    assert running.process is not None
    running.process.wait(60)
    until(lambda: not alive(control), "the clean-up has ended")
    assert not alive(tool)
    assert len(facts(running, "sweeping")) == 1


def test_what_dies_in_the_background_ends_the_control_plane_loudly(home: House, short_tmp: Path) -> None:
    """Nothing goes on half alive: it exits, the keeper starts another one, the children stay."""
    fault = short_tmp / "fault"
    (short_tmp / "sitecustomize.py").write_text(
        "import os\n"
        f"if os.path.exists({str(fault)!r}):\n"
        "    from supervisord_py.daemon import control_plane\n"
        "    async def broken(*_):\n"
        "        raise RuntimeError('a task broke')\n"
        "    control_plane.FIRST_PRUNE_SECONDS = 0.0\n"
        "    control_plane.retention.prune = broken\n"
    )
    house = House(home.home, {"PYTHONPATH": str(short_tmp)})
    fault.touch()
    try:
        house.start(wait=False)
        until(lambda: facts(house, "control_crashed"), "it has crashed")
        fault.unlink()
        until(house.answers, "another one serves")
        assert "a task broke" in facts(house, "control_crashed")[0]["exception"]
        assert {entry["code"] for entry in facts(house, "control_exited")} == {1}
    finally:
        house.tear_down()


def test_a_stopped_keeper_is_no_dead_keeper(running: House) -> None:
    """SIGSTOP makes it silent, not dead: nobody may sweep its children."""
    running.tool("echo", ECHO)
    assert running.run("echo").status == 200
    tool = running.status("echo")["pid"]
    keeper, _ = running.pids()
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert running.run("echo").status == 200
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert running.run("echo").status == 200
    assert running.status("echo")["pid"] == tool
    assert facts(running, "sweeping") == []


def test_reload_by_signal_keeps_the_last_good_settings_and_says_so(running: House) -> None:
    assert running.process is not None
    settings = running.home / "pxd.toml"
    settings.write_text('[tools]\nqueue_max = 7\n[kernels]\nexpose = "bash"\n')
    running.process.send_signal(signal.SIGHUP)
    until(lambda: setting(running, "tools.queue_max") == (7, f"{settings}:2"), "the new setting is in force")
    assert running.get("/api/capabilities")["expose"] == "bash"
    settings.write_text("[tools]\nqueue_mux = 7\n")
    running.process.send_signal(signal.SIGHUP)
    until(lambda: running.get("/api/health")["degraded"], "the mistake is shown")
    (degraded,) = running.get("/api/health")["degraded"]
    assert degraded["part"] == "config"
    assert "did you mean tools.queue_max?" in degraded["detail"]
    assert setting(running, "tools.queue_max")[0] == 7
    refused = running.request("POST", "/api/daemon/restart")
    assert refused.status == 422
    settings.unlink()
    running.process.send_signal(signal.SIGHUP)
    until(lambda: not running.get("/api/health")["degraded"], "all is well again")
    assert running.get("/api/daemon")["control"]["restarts"] == 0


def setting(house: House, key: str) -> tuple[Any, str]:
    return next((one["value"], one["origin"]) for one in house.get("/api/config")["settings"] if one["key"] == key)


def test_a_crash_while_the_settings_are_broken_does_not_end_the_daemon(running: House) -> None:
    running.tool("echo", ECHO)
    assert running.run("echo").status == 200
    tool = running.status("echo")["pid"]
    (running.home / "pxd.toml").write_text("[")
    _, control = running.pids()
    os.kill(control, signal.SIGKILL)
    until(lambda: not alive(control), "it is dead")
    assert running.status("echo")["pid"] == tool
    (degraded,) = until(lambda: running.get("/api/health")["degraded"], "what is broken is told")
    assert "those that worked last are in force" in degraded["detail"]


def test_a_state_dump_on_request(running: House) -> None:
    assert running.process is not None
    running.tool("echo", ECHO)
    assert running.run("echo").status == 200
    running.process.send_signal(signal.SIGUSR1)

    def dumped() -> list[dict[str, Any]]:
        return [entry for entry in facts(running, "state") if "tools" in entry]

    (entry,) = until(dumped, "the state is in the log")
    assert [tool["unit"] for tool in entry["tools"]] == ["tool:echo"]
    assert any(child.startswith("tool:echo ") for child in entry["children"])


def test_a_socket_of_the_service_manager_is_served_and_left_in_place(home: House, short_tmp: Path) -> None:
    """As systemd does it: the socket is descriptor 3 and LISTEN_PID is the pid of whoever is executed."""
    path = str(short_tmp / "given.sock")
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "os.dup2(s.fileno(), 3)\n"
        "os.set_inheritable(3, True)\n"
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n"
        "os.execv(sys.argv[2], [sys.argv[2]])\n"
    )
    log = open(home.home / "pxd.stderr", "ab")  # noqa: SIM115 - closed below, the child keeps its own
    words = [sys.executable, "-c", code, path, str(BIN / "pxd")]
    home.process = subprocess.Popen(words, env={**home.environ, "PX_SOCKET": path}, stderr=log)
    log.close()
    until(lambda: listens(path), "the socket is there")
    with Unix(path) as client:
        assert client.get("/api/daemon")["socket"] == path
        control = client.get("/api/daemon")["control"]["pid"]
    # Restarting everything must keep the socket: nobody but the service manager could make it again.
    with Unix(path) as client:
        client.post("/api/daemon/restart?all=1")
    until(lambda: not alive(control), "the old control plane is gone")
    with Unix(path) as client:
        assert client.get("/api/daemon")["keeper"]["pid"] == home.process.pid
    assert home.stop() == 0
    assert os.path.exists(path)


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


class Unix(http.client.HTTPConnection):
    """One client on a socket path."""

    def __init__(self, path: str) -> None:
        super().__init__("px", timeout=60)
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)

    def get(self, path: str) -> Any:
        self.request("GET", path)
        return json.loads(self.getresponse().read())

    def post(self, path: str) -> None:
        self.request("POST", path)
        self.getresponse().read()


@pytest.fixture
def port() -> int:
    return free_port()


ASKS_THE_API = """\
import os, re, sys, urllib.request
told = re.search(r"^API: (\\S+) \\(bearer token in the file \\$(\\w+)\\)$", sys.stdin.read(), re.M)
address, variable = told.groups()
token = open(os.environ[variable]).read().strip()
assert not any(token in text for text in [*os.environ.values(), *sys.argv])
asked = urllib.request.Request(address + "/api/status", headers={"Authorization": "Bearer " + token})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).status)
"""


def test_the_loopback_listener_wants_its_token(home: House, port: int) -> None:
    folder = home.home / "pipes" / "asks"
    folder.mkdir(parents=True)
    (folder / "ask.py").write_text(ASKS_THE_API)
    (folder / "pipe.md").write_text(f"---\nagent: command\ncommand: [{sys.executable}, ask.py]\n---\nGo\n")
    home.start("--set", f"api.listen=127.0.0.1:{port}")
    token = (home.home / "state" / "api.token").read_text().strip()

    def ask(**headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/api/health", headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    assert ask() in {401, 403}
    assert ask(Authorization="Bearer nonsense") in {401, 403}
    assert ask(Authorization=f"Bearer {token}") == 200
    agent = home.request("POST", "/api/pipes/asks/run?wait=1").json()
    assert (agent["status"], agent["stdout"]) == ("completed", "200\n"), agent["stderr"]
    assert token not in agent["rendered_prompt"]
    assert token not in (home.home / "pxd.stderr").read_text()


def test_a_port_that_is_taken_degrades_the_daemon_but_does_not_stop_it(home: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        home.start("--set", f"api.listen=127.0.0.1:{taken.getsockname()[1]}")
        (degraded,) = home.get("/api/health")["degraded"]
    assert degraded["part"] == "tcp"
    assert "Address already in use" in degraded["detail"]


def test_places_may_be_relative_to_where_it_was_started(home: House) -> None:
    log = open(home.home / "pxd.stderr", "ab")  # noqa: SIM115 - closed below, the child keeps its own
    environ = {**home.environ, "PX_HOME": home.home.name}
    home.process = subprocess.Popen([BIN / "pxd"], env=environ, cwd=home.home.parent, stderr=log)
    log.close()
    until(home.answers, "it serves")
    control = home.pids()[1]
    with open(f"/proc/{control}/environ", "rb") as file:
        assert f"PX_HOME={home.home}".encode() in file.read().split(b"\0")
    assert home.stop() == 0
