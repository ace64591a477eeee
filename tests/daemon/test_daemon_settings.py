"""Settings: who wins, what is refused, and how a mistake is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config.settings import DEFAULTS, HIDDEN, KEYS
from supervisord_py.daemon import settings
from supervisord_py.daemon.settings import Flags, Loaded, SettingsError, recall_valid, restart_needed
from supervisord_py.daemon.settings_reader import read_settings

Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def run(text: str | bytes = "", *, flags: tuple[str, ...] = (), **environ: str) -> Loaded:
        (tmp_path / "pxd.toml").write_bytes(text.encode() if isinstance(text, str) else text)
        with patch.dict(os.environ, {"PX_HOME": str(tmp_path), **environ}, clear=True):
            return read_settings(Flags(settings=flags))

    return run


def mistakes(load: Load, *args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    assert caught.value.exit_code == 78
    return str(caught.value).splitlines()


def test_precedence_is_file_dropins_environment_flags(load: Load, tmp_path: Path) -> None:
    conf = tmp_path / "conf.d"
    conf.mkdir()
    (conf / "20-b.toml").write_text("[tools]\nmax_body_bytes = 3\nqueue_max = 30\nwarm_keep_max = 3\n")
    (conf / "10-a.toml").write_text("[tools]\nmax_body_bytes = 2\nwarm_keep_max = 20\n")
    for name in (".hidden.toml", "note.txt"):
        (conf / name).write_text("nonsense")
    text, flags = "[tools]\nmax_body_bytes = 1\nwarm_keep_max = 1\n\npython = 'p'\n", ("tools.max_body_bytes=5",)
    loaded = load(text, flags=flags, PX_TOOLS__MAX_BODY_BYTES="4", PX_TOOLS__QUEUE_MAX="40")
    rows = {row["key"].removeprefix("tools."): (row["value"], row["origin"]) for row in loaded.rows()}
    assert rows.items() >= {
        ("max_body_bytes", (5, "flag --set tools.max_body_bytes")),
        ("queue_max", (40, "env PX_TOOLS__QUEUE_MAX")),
        ("warm_keep_max", (3, f"{conf}/20-b.toml:4")),
        ("python", ("p", f"{tmp_path}/pxd.toml:5")),
        ("max_memory_mb", (512, "default")),
    }


MISTAKES: list[tuple[str | bytes, list[str]]] = [
    ("# c\n[tools]\nqueue_max = 1\nwarm_keep_mxa = 3\n", [
        ":4: unknown setting tools.warm_keep_mxa; did you mean tools.warm_keep_max?"]),
    ("warm_keep_max = 1\nqqqq = 1\n[tols]\nx = 1\n[api]\nqueue_mux = 3\nqueue_max = 3\n", [
        ":1: unknown setting warm_keep_max; did you mean tools.warm_keep_max?",
        ":2: unknown section qqqq",
        ":3: unknown section tols; did you mean tools?",
        ":6: unknown setting api.queue_mux; did you mean tools.queue_max?",
        ":7: unknown setting api.queue_max; did you mean tools.queue_max?"]),
    ("[pipes]\nfoo = 1\nspeed = 1\n[daemon]\nport = 1\n", [
        ":2: unknown setting pipes.foo", ":3: unknown setting pipes.speed", ":5: unknown setting daemon.port"]),
    ('[tools]\nwarm_keep_max = "x"', [":2: tools.warm_keep_max: expected a valid integer, got 'x'"]),
    ("[tools]\nwarm_keep_seconds = nan", [":2: tools.warm_keep_seconds: expected a finite number, got nan"]),
    ("[tools]\npaths = [5]", [":2: tools.paths.0: expected a valid string, got 5"]),
    (f"[tools]\npython = [\"{'x' * 500}\"]", [f":2: tools.python: expected a valid string, got ['{'x' * 57}…"]),
    ('[kernels]\nexpose = "Bash"\n', [
        ":2: kernels.expose: expected 'both', 'python' or 'bash', got 'Bash'; did you mean bash?"]),
    ("[tools]\n\nwarm_keep_max = \n", [":3: no valid TOML: Invalid value"]),
    ("a = 1\na = 2\n", [":2: no valid TOML: Cannot overwrite a value"]),
    (b"[tools]\n# caf\xe9\n", [":2: no valid TOML: not UTF-8: byte 0xe9 (invalid continuation byte)"]),
    ('[pipes]\ntimezone = "Europe/Berlni"\n', [
        ":2: pipes.timezone is no time zone of the IANA list, like Europe/Berlin"]),
    ('[pipes]\nredact = ["a+", "("]\n', [":2: pipes.redact has '(', which is no regular expression: missing ), "
                                          "unterminated subpattern at position 0"]),
    ('[api]\nlisten = "0.0.0.0:80"\n', [
        ":2: api.listen has 0.0.0.0, which is no loopback address; use 127.0.0.1 and a tunnel from outside"]),
    ("[daemon]\nbackoff_initial_seconds = 9\nbackoff_max_seconds = 1\n", [
        ":3: daemon.backoff_max_seconds must not be below daemon.backoff_initial_seconds (9)"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_each_mistake_of_a_file_is_told_with_its_line_and_cure(
    load: Load, tmp_path: Path, text: str | bytes, told: list[str]
) -> None:
    file = f"{tmp_path}/pxd.toml"
    assert mistakes(load, text) == [file + line for line in told]


def test_mistakes_of_environment_and_flags_name_variable_and_flag(load: Load) -> None:
    flags = ("tools.queue=3", "tools.queue_max", "tools.queue_max=-1")
    told = mistakes(load, flags=flags, PX_TOOLS__MAX_BODY_BYTES="many", PX_TOOL__PYTHON="/x", PX_A__B__C="1")
    assert sorted(told) == [
        "env PX_A__B__C: unknown section a",
        "env PX_TOOLS__MAX_BODY_BYTES: tools.max_body_bytes: expected a valid integer, got 'many'",
        "env PX_TOOL__PYTHON: unknown section tool; did you mean tools?",
        "flag --set tools.queue: unknown setting tools.queue; did you mean tools.queue_max?",
        "flag --set tools.queue_max: expected section.key=value",
        "flag --set tools.queue_max: tools.queue_max: expected greater than or equal to 0, got '-1'",
    ]
    loaded = load(PX_INSTANCE="i", PATH="", PX_TOOLS_QUEUE_MAX="3")
    assert loaded.warnings == (
        "the variable PX_TOOLS_QUEUE_MAX is no setting and is ignored; did you mean PX_TOOLS__QUEUE_MAX?",
    )


def test_problems_are_a_document_for_machines(load: Load, tmp_path: Path) -> None:
    (told,) = mistakes(load, "tools = 5\n", PX_TOOLS__QUEUE_MAX="3")
    assert told.endswith(":1: tools: expected a table: [tools], got 5"), "whatever other sources say"
    with pytest.raises(SettingsError) as caught:
        load("[tools]\nwarm_keep_mxa = 3\n")
    file, key = f"{tmp_path}/pxd.toml", "tools.warm_keep_mxa"
    problem = {"origin": f"{file}:2", "file": file, "line": 2, "key": key, "nearest": "tools.warm_keep_max"}
    assert caught.value.problem()["problems"] == [{**problem, "message": f"unknown setting {key}"}]


@given(st.sampled_from(KEYS), st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_text_is_a_value_or_a_problem(key: tuple[str, str], text: str) -> None:
    variable = f"PX_{key[0]}__{key[1]}".upper()
    try:
        with patch.dict(os.environ, {"PX_HOME": "/none", variable: text}, clear=True):
            loaded = read_settings(Flags())
    except SettingsError as error:
        assert ".".join(key) in str(error)
    else:
        assert {row["origin"] for row in loaded.rows()} == {"default", f"env {variable}"}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("tools.env_allow", "A, B,,LC_*", ["A", "B", "LC_*"]),
        ("tools.env_allow", '["A"]', ["A"]),
        ("tools.paths", f"/a,b{os.pathsep}/c", ["/a,b", "/c"]),
        ("tools.memory_budget_mb", "", None),
        ("kernels.managed", "off", False),
        ("kernels.managed", "YES", True),
    ],
)
def test_texts_become_lists_switches_and_nothing(load: Load, key: str, text: str, value: object) -> None:
    for loaded in (load(flags=(f"{key}={text}",)), load(**{f"PX_{key.replace('.', '__')}".upper(): text})):
        assert (key, value) in [(row["key"], row["value"]) for row in loaded.rows()]


def test_a_secret_is_shown_nowhere_and_stands_in_no_command_line(load: Load) -> None:
    loaded = load('[kernels]\ngateway_token = "s3cr3t"\n')
    assert "s3cr3t" not in repr(loaded)
    assert ("kernels.gateway_token", HIDDEN) in [(row["key"], row["value"]) for row in loaded.rows()]
    assert "s3cr3t" not in str(mistakes(load, '[kernels]\ngateway_token = ["s3cr3t"]\n'))
    (told,) = mistakes(load, "", flags=("kernels.gateway_token=s3cr3t",))
    assert told.endswith(
        "is a secret, which every process could read in a command line; did you mean PX_KERNELS__GATEWAY_TOKEN?"
    )


def test_the_variables_of_the_original_stand_between_files_and_our_own(load: Load) -> None:
    file = '[kernels]\nexpose = "python"\nskip_check = false\n'
    loaded = load(file, PI_PY="bash", PI_PYTHON_SKIP_CHECK="1", PI_PYTHON_IPC_TRACE="nonsense")
    assert (loaded.settings.kernels.expose, loaded.settings.kernels.skip_check) == ("bash", True)
    assert loaded.origin("kernels.expose") == "env PI_PY"
    assert any("PI_PYTHON_IPC_TRACE" in warning for warning in loaded.warnings)
    assert load(file, PI_PY="bash", PX_KERNELS__EXPOSE="both").settings.kernels.expose == "both"


def test_settings_that_are_gone_are_told_and_harm_nothing(load: Load) -> None:
    text = "[kernels]\nspares = 3\n[pipes]\nretry_growth = 'x'\n[ledger]\nkeep_days = 9\n"
    loaded = load(text, flags=("tools.listen_backlog=3",), PX_LOGS__SPILL_BYTES="1")
    told = [warning.partition(" no longer exists and is ignored: ")[0].split()[-1] for warning in loaded.warnings]
    gone = ["kernels.spares", "pipes.retry_growth", "ledger.keep_days", "logs.spill_bytes", "tools.listen_backlog"]
    assert (loaded.settings, told) == (DEFAULTS, gone)


def test_settings_in_force_are_recalled_with_their_secrets(load: Load, tmp_path: Path) -> None:
    loaded = load('[tools]\npaths = ["/a", "b"]\nmemory_budget_mb = 3\n', PX_KERNELS__GATEWAY_TOKEN="s3cr3t")  # noqa: S106  # of none
    settings.keep_valid(tmp_path, loaded)
    assert recall_valid(tmp_path) == loaded
    assert (tmp_path / settings.VALID_NAME).stat().st_mode & 0o777 == 0o600
    for text in ("", "\xff", '{"settings": {"tools": {"gone": 1}}}'):
        (tmp_path / settings.VALID_NAME).write_text(text, "latin-1")
        assert recall_valid(tmp_path) is None


def test_the_stamp_changes_with_whatever_is_read_and_with_nothing_else(tmp_path: Path) -> None:
    def stamp(*flags: str, **more: str) -> str:
        environ = {"PX_HOME": str(tmp_path), "PX_TOOLS__QUEUE_MAX": "3", "PX_INSTANCE": "a", "HOME": "/", **more}
        with patch.dict(os.environ, environ, clear=True):
            return Flags(settings=flags).stamp()

    assert stamp() == stamp(PX_INSTANCE="b", HOME="/h")
    seen = {stamp(), stamp(PI_PY="1"), stamp("tools.queue_max=3")}
    (tmp_path / "conf.d").mkdir()
    for change in ("pxd.toml", "conf.d/a.toml"):
        for text in ("", "a"):
            (tmp_path / change).write_text(text)
            seen.add(stamp())
    assert len(seen) == 7


def test_what_a_changed_setting_needs() -> None:
    assert [restart_needed(key) for key in ("tools.warm_keep_max", "daemon.log_level")] == [None, None]
    assert {restart_needed(key) for key in ("tools.max_body_bytes", "api.listen")} == {"pxctl daemon restart"}
    assert restart_needed("logs.total_bytes") == "pxctl daemon restart --all"
