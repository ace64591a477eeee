"""What a kernel finds around it: variables, interpreter, modules, memory; and which kinds of
cells there are at all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.house import House, house, of_module, until
from e2e.kernel_house import Calls, kernels_house
from kernels.gateway_house import TOKEN, gateway
from rounds import mostly_deep

PROVIDERS = "OPENAI ANTHROPIC GOOGLE GEMINI OPENROUTER PERPLEXITY EXA AZURE_OPENAI MISTRAL".split()  # noqa: SIM905
SECRETS = dict.fromkeys(
    [*(f"{name}_API_KEY" for name in PROVIDERS), "PERPLEXITY_COOKIES"], "secret-value"
)
PASSED = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_TIME": "C.UTF-8", "https_proxy": "http://127.0.0.1:9"}
PASSED |= dict.fromkeys(["XDG_MINE", "PI_MINE", "OMP_NUM_THREADS", "ALLOWED_BY_SETTING"], "1")
KEPT_BACK = SECRETS | dict.fromkeys(
    ["PX_KERNELS__GATEWAY_TOKEN", "PI_PYTHON_GATEWAY_TOKEN"], "token-of-ours"
)
KEPT_BACK |= {
    "XDG_DENIED": "denied by setting",
    "UNKNOWN_NAME": "not allowed",
    "PX_API__LISTEN": "127.0.0.1:0",
}
ALLOW = [
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "https_proxy",
    "OMP_NUM_THREADS",
    "ALLOWED_BY_SETTING",
    "VIRTUAL_ENV",
]
ALLOW += ["OPENAI_API_KEY"]
"""The last one is denied as well: deny wins."""


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    with house({**PASSED, **KEPT_BACK}, measured=True) as made:
        (made.home / "pxd.toml").write_text(
            f"[kernels]\nenv_allow = {json.dumps(ALLOW)}\nenv_deny = "
            f"{json.dumps([*SECRETS, 'XDG_DENIED'])}\n"
        )
        made.start()
        yield Calls(made)


def test_the_kernel_gets_what_is_allowed_and_none_of_the_secrets(calls: Calls) -> None:
    environ = json.loads(calls.value("env", "import json, os; print(json.dumps(dict(os.environ)))"))
    assert environ.keys() >= PASSED.keys()
    assert not {*KEPT_BACK, "PX_HOME", "PX_CONTROL"} & environ.keys()
    tokens = [
        path.read_text().strip() for path in calls.house.home.rglob("*token*") if path.is_file()
    ]
    assert tokens, "the listener has a token file"
    for text in ("\n".join(environ.values()), calls.value("shell-env", "env", language="bash")):
        assert not [
            secret for secret in (*tokens, "token-of-ours", "secret-value") if secret in text
        ]
    assert environ["PX_SOCKET"] == calls.house.socket
    assert environ["PX_UNIT"] == f"kernel:{calls.show('env')['id']}"
    assert environ["PATH"].split(":")[0] == str(Path(sys.prefix) / "bin")
    assert environ["VIRTUAL_ENV"] == sys.prefix


def test_explain_names_what_is_passed_and_what_is_dropped_and_starts_nothing(calls: Calls) -> None:
    document = calls.house.json("kernel", "start", "explained", "--explain")
    assert document["schema"] == "px.kernel-explanation/1"
    assert set(document["environment"]["passed"]) >= {"TZ", "XDG_MINE"}
    dropped = {item["name"]: item["why"] for item in document["environment"]["dropped"]}
    assert dropped.keys() >= {"OPENAI_API_KEY", "UNKNOWN_NAME", "XDG_DENIED"}
    assert dropped["XDG_DENIED"] != dropped["UNKNOWN_NAME"], dropped
    assert "secret-value" not in json.dumps(document)
    assert sum(candidate["taken"] for candidate in document["candidates"]) == 1
    assert "explained" not in calls.known()


EXPOSED = {
    "PX_PY=0": ({"PX_PY": "0"}, (False, True)),
    "PX_PY=1": ({"PX_PY": "1"}, (True, False)),
    "no python": ({"PX_KERNELS__MANAGED": "false"}, (False, True)),
}


@pytest.mark.parametrize("row", mostly_deep(EXPOSED, "PX_PY=0"))
def test_capabilities_say_which_cells_are_offered_and_the_others_are_refused(
    tmp_path: Path, row: str
) -> None:
    settings, offered = EXPOSED[row]
    if row == "no python":
        for name in ("bash", "sh", "sleep"):
            (tmp_path / name).symlink_to(f"/bin/{name}")
        settings = {**settings, "PATH": str(tmp_path)}
    with house(settings, start=True) as made:
        calls = Calls(made, tmp_path)
        document = made.get(f"/api/capabilities?cwd={tmp_path}")
        assert document["schema"] == "px.capabilities/1"
        for language, expected in zip(("python", "bash"), offered, strict=True):
            assert document[language]["offered"] is expected, document
            call = calls.ask(
                "kind", "echo 1" if language == "bash" else "print(1)", language=language
            )
            assert (call.status == 200) is expected, call.body
            assert expected or (document[language]["reason"] and call["hint"])


@pytest.mark.deep
def test_the_names_of_the_original_are_accepted() -> None:
    """PI_PYTHON_GATEWAY_URL makes the external gateway the backend; its token is taken, shown
    nowhere.
    """
    flags = dict.fromkeys(("PI_PYTHON_SKIP_CHECK", "PI_PYTHON_IPC_TRACE", "PI_DEBUG_STARTUP"), "1")
    settings = {
        "PI_PYTHON_GATEWAY_URL": "http://127.0.0.1:9",
        "PI_PYTHON_GATEWAY_TOKEN": "token-of-ours-3",
    }
    with house({**settings, **flags}, start=True) as made:
        calls, log = Calls(made), made.home / "pxd.stderr"
        assert made.get("/api/capabilities")["backend"] == "gateway-external"
        refused = calls.ask("x", "1")
        assert (refused.status, b"127.0.0.1:9" in refused.body) == (503, True), refused
        assert calls.value("x", "1 + 1", backend="direct") == "2"
        assert "token-of-ours-3" not in made.pxctl("config", "show").stdout
        until(
            lambda: "execute_request" in log.read_text(errors="replace"),
            "PI_PYTHON_IPC_TRACE logs the messages",
        )
        assert "token-of-ours-3" not in log.read_text(errors="replace")


@pytest.mark.deep
def test_what_is_wrong_with_an_external_gateway_is_said_and_a_reload_repairs_it(
    home: House, tmp_path: Path
) -> None:
    """A wrong token names its setting, an address where nobody listens is named, the right
    settings work.
    """
    calls, file = Calls(home), home.home / "pxd.toml"
    file.touch(0o600)

    def configured(url: str, token: str) -> Any:
        file.write_text(f'[kernels]\ngateway_url = "{url}"\ngateway_token = "{token}"\n')
        if home.process is None:
            home.start()
        home.post("/api/daemon/reload")
        return calls.ask("x", "1 + 1", backend="gateway-external")

    with gateway(tmp_path / "gateway") as url:
        refused = configured(url, "not-the-token").body
        assert (b"gateway_token" in refused, b"not-the-token" in refused) == (True, False), refused
        file.write_text(f'{file.read_text()}backend = "gateway-external"\n')
        home.post("/api/daemon/reload")
        checks = {check["name"]: check for check in home.json("doctor", code=None)["checks"]}
        assert "gateway_token" in checks["kernels:python"]["repair"], checks["kernels:python"]
        refused = configured("http://127.0.0.1:9", TOKEN)
        assert (refused.status, b"127.0.0.1:9" in refused.body) == (503, True), refused
        assert configured(url, TOKEN).text == "2"


def test_modules_of_the_project_override_the_users_by_name_and_its_folder_is_on_the_path(
    calls: Calls, tmp_path: Path
) -> None:
    users, projects = calls.house.home / "modules", tmp_path / ".pxd" / "modules"
    users.mkdir(exist_ok=True)
    projects.mkdir(parents=True)
    (tmp_path / "beside.py").write_text("here = 'yes'\n")
    for folder, text in ((users, "user"), (projects, "project")):
        (folder / "both.py").write_text(f"which = lambda: {text!r}\n")
        (folder / f"only_{text}.py").write_text(f"def of_{text}(): return {text!r}\n")
    code = "import os, sys\nprint(which(), of_user(), of_project(), os.getcwd() in sys.path)\n"
    code += "os.chdir('/')\nimport beside\nbeside.here"
    assert calls.value("modules", code, cwd=str(tmp_path)) == "project user project True\n'yes'"
    for path in users.glob("*.py"):
        path.unlink()


def test_a_broken_module_names_file_and_line_and_stops_nobody(calls: Calls, tmp_path: Path) -> None:
    module = tmp_path / ".pxd" / "modules" / "broken.py"
    module.parent.mkdir(parents=True)
    module.write_text("good = 1\nraise KeyError('in the module')\n")
    told = calls.value("broken", "1", cwd=str(tmp_path))
    assert f"{module}:2: KeyError: 'in the module'" in told
    assert calls.value("broken", "1", cwd=str(tmp_path)) == "1", "it is told once"
    module.write_text("good = 1\n")
    assert calls.value("broken", "good", cwd=str(tmp_path), reset=True) == "1"


def test_a_kernel_that_hangs_in_its_start_is_replaced_by_a_reset_and_by_a_call_after_the_repair(
    calls: Calls, tmp_path: Path
) -> None:
    module = tmp_path / ".pxd" / "modules" / "slow.py"
    module.parent.mkdir(parents=True)
    where = {"cwd": str(tmp_path)}
    hang = f"import time\nopen({str(tmp_path / 'hangs')!r}, 'w').close()\ntime.sleep(1000)\n"
    for again in ({"reset": True}, {}):
        module.write_text(hang)
        (tmp_path / "hangs").unlink(missing_ok=True)
        name = f"slow{len(again)}"
        late = calls.ask(name, "1", timeout=-5, **where).refused(504)
        assert ("--reset" in late["hint"], "raised to 1 s" in late["detail"]) == (True, True), late
        until((tmp_path / "hangs").exists, "its start hangs")
        why = calls.house.json("why", calls.show(name)["unit"])
        assert ("loading" in why["summary"], why["state"]) == (True, "starting"), why
        if not again:
            waiting = calls.later(name, "2", timeout=50, **where)
            until(
                lambda name=name: calls.show(name)["queued"] == 1,
                "somebody waits for the kernel that hangs",
            )
        module.write_text("mine = 3\n")
        assert calls.value(name, "mine", timeout=50, **where, **again) == "3"
        if not again:
            assert waiting.result().text == "2"


# -- memory ----------------------------------------------------------------------------------------

FORKS = """
import os, signal
data = bytearray(60 << 20)
data[::4096] = b"x" * len(data[::4096])
workers = [os.fork() or os._exit(signal.pause() or 0) for _ in range(2)]
"""
tight = of_module(kernels_house, PX_KERNELS__SOFT_MEMORY_MB="150", PX_KERNELS__HARD_MEMORY_MB="300")
"""A daemon whose kernels may have 150 MB for long, and 300 MB at all."""


@pytest.mark.deep
def test_over_soft_memory_the_kernel_is_replaced_after_the_call_with_a_notice(tight: Calls) -> None:
    before = tight.run("soft", "mine = 1")
    assert before["notices"] == []
    call = tight.run("soft", ["big = bytearray(180 << 20); mine += 1", "mine"])
    assert (call.statuses, call["cells"][1]["text"], call["variables"]) == (
        ["ok", "ok"],
        "2\n",
        "lost",
    )
    assert "memory" in call.told
    after = tight.run("soft", "'mine' in globals()")
    assert (after.text, after["instance"] != before["instance"]) == ("False", True)
    assert "over its soft memory limit" in after.told
    assert "killed" not in after.told
    assert tight.events("soft", "recycled")


def test_memory_is_shown_with_shared_pages_counted_once_and_says_so(calls: Calls) -> None:
    """Eight workers forked over 60 MB of data: over 540 MB if each process is counted whole."""
    calls.run("shown", FORKS.replace("range(2)", "range(8)"))
    unit = calls.show("shown")["unit"]
    (shown,) = calls.house.get(f"/api/status?unit={unit}")["units"]
    listed = calls.show("shown")
    for document in (shown, listed):
        assert (document["memory_kind"], document["rss_bytes"] > 500 << 20) == ("pss", True), (
            document
        )
        assert 60 << 20 < document["memory_bytes"] < 200 << 20, document
    calls.run("shown", "for pid in workers: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)")


@pytest.mark.deep
def test_by_default_the_soft_limit_is_half_of_the_machine(calls: Calls) -> None:
    """What was too much once, 1024 MiB, is not."""
    call = calls.run("large", ["big = bytearray(1100 << 20)", "mine = len(big)"])
    assert (call["variables"], call["notices"]) == ("kept", [])
    assert calls.value("large", "del big; mine") == str(1100 << 20)


@pytest.mark.deep
def test_pages_that_forked_workers_share_count_once(tight: Calls) -> None:
    """Two workers forked over 60 MB of data: 300 MB if each process is counted whole, 110 MB of
    real memory.
    """
    call = tight.run("forks", FORKS)
    assert (call["variables"], call["notices"]) == ("kept", []), call.document
    assert tight.value("forks", "len(data)") == str(60 << 20)
    tight.run("forks", "for pid in workers: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)")


@pytest.mark.parametrize("language", mostly_deep(["python", "bash"], "python"))
def test_over_hard_memory_the_cell_is_ended_and_the_limit_is_named(
    tight: Calls, language: str
) -> None:
    eater = "held = []\nwhile True: held.append(bytearray(20 << 20))"
    code = eater if language == "python" else f"{sys.executable} -c '{eater}'"
    tight.run(f"hard-{language}", "mine = 1", language=language)
    call = tight.run(f"hard-{language}", code, language=language)
    assert (call.cell["status"], call.cell["error"]["name"]) == (
        "error",
        "ResourceLimitExceeded",
    ), call.document
    assert "memory" in call.cell["error"]["value"]
    if language == "python":
        assert call["variables"] == "lost"
        assert tight.value("hard-python", "'mine' in globals()") == "False"
        assert tight.events("hard-python", "died", "stopped")[-1]["reason"] == "memory_limit"
        assert tight.house.pxctl("exec", "--kernel", "hard-python", code).returncode == 9
