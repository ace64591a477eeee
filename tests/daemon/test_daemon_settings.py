"""Settings: who wins, what is refused, and how a mistake is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config.settings import DEFAULTS, HIDDEN, KEYS
from supervisord_py.daemon.settings import (
    VALID_NAME,
    Loaded,
    SettingsError,
    Sources,
    changed_keys,
    keep_valid,
    recall_valid,
    restart_needed,
)
from supervisord_py.daemon.settings_reader import read_settings
from supervisord_py.daemon.sockets import parse_listen

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Loaded]:
    def run(
        text: str | bytes | None = None, *, named: bool = False, flags: tuple[str, ...] = (), **environ: str
    ) -> Loaded:
        file = tmp_path / "pxd.toml"
        if text is not None:
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_settings(Sources(file, tmp_path / "conf.d", named, environ, flags))

    return run


def mistakes(load: Callable[..., Loaded], *args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    assert caught.value.exit_code == 78
    return str(caught.value).splitlines()


def test_without_any_source_all_are_defaults(load: Callable[..., Loaded]) -> None:
    loaded = load()
    assert loaded.settings == DEFAULTS
    assert {origin for _, _, origin in loaded.rows()} == {"default"}
    assert [key for key, _, _ in loaded.rows()] == [".".join(key) for key in KEYS]
    assert len(KEYS) <= 60


def test_the_documented_defaults(load: Callable[..., Loaded]) -> None:
    tools = load().settings.tools
    assert (tools.warm_keep_max, tools.warm_keep_seconds, tools.queue_max) == (5, 300.0, 512)
    assert (tools.max_memory_mb, tools.max_runtime_seconds, tools.memory_budget_mb) == (512, 60.0, None)


def test_precedence_is_file_dropins_environment_flags(load: Callable[..., Loaded], tmp_path: Path) -> None:
    conf = tmp_path / "conf.d"
    conf.mkdir()
    (conf / "20-b.toml").write_text("[tools]\nmax_body_bytes = 3\nqueue_max = 30\nwarm_keep_max = 3\n")
    (conf / "10-a.toml").write_text("[tools]\nmax_body_bytes = 2\nqueue_max = 20\n")
    (conf / ".hidden.toml").write_text("nonsense")
    (conf / "note.txt").write_text("nonsense")
    loaded = load(
        "[tools]\nmax_body_bytes = 1\nmax_memory_mb = 1\n\npython = 'p'\n",
        flags=("tools.max_body_bytes=5",),
        PX_TOOLS__MAX_BODY_BYTES="4",
        PX_TOOLS__QUEUE_MAX="40",
    )
    tools = loaded.settings.tools
    assert (tools.max_body_bytes, tools.queue_max, tools.warm_keep_max, tools.max_memory_mb) == (5, 40, 3, 1)
    assert loaded.origin("tools.max_body_bytes") == "flag --set tools.max_body_bytes"
    assert loaded.origin("tools.queue_max") == "env PX_TOOLS__QUEUE_MAX"
    assert loaded.origin("tools.warm_keep_max") == f"{conf}/20-b.toml:4"
    assert loaded.origin("tools.python") == f"{tmp_path}/pxd.toml:5"
    assert loaded.origin("tools.env_allow") == "default"


def test_folders_of_tools_add_up(load: Callable[..., Loaded]) -> None:
    loaded = load('[tools]\npaths = ["/file"]\n', PX_TOOLS__PATHS=f"/one{os.pathsep}/two")
    assert loaded.settings.tools.paths == ("/file", "/one", "/two")


def test_an_unknown_key_names_file_line_key_and_the_nearest(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert mistakes(load, "# c\n[tools]\nqueue_max = 1\nwarm_keep_mxa = 3\n") == [
        f"{tmp_path}/pxd.toml:4: unknown setting tools.warm_keep_mxa; did you mean tools.warm_keep_max?"
    ]


def test_unknown_sections_and_keys_in_the_wrong_place(load: Callable[..., Loaded], tmp_path: Path) -> None:
    told = mistakes(
        load, "warm_keep_max = 1\nqqqq = 1\n[tols]\nx = 1\n[api]\nqueue_mux = 3\nqueue_max = 3\n[logs]\nzzz = 1\n"
    )
    where = f"{tmp_path}/pxd.toml"
    assert told == [
        f"{where}:1: unknown setting warm_keep_max; did you mean tools.warm_keep_max?",
        f"{where}:2: unknown section qqqq",
        f"{where}:3: unknown section tols; did you mean tools?",
        f"{where}:6: unknown setting api.queue_mux",
        f"{where}:7: unknown setting api.queue_max; did you mean tools.queue_max?",
        f"{where}:9: unknown setting logs.zzz",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('warm_keep_max = "5"', "tools.warm_keep_max: expected a valid integer, got '5'"),
        ("warm_keep_max = true", "tools.warm_keep_max: expected a valid integer, got True"),
        ("warm_keep_max = 0", "tools.warm_keep_max: expected greater than or equal to 1, got 0"),
        ("warm_keep_seconds = nan", "tools.warm_keep_seconds: expected a finite number, got nan"),
        ("paths = 5", "tools.paths: expected a valid tuple, got 5"),
        ("paths = [5]", "tools.paths.0: expected a valid string, got 5"),
        ("python = [1]", "tools.python: expected a valid string, got [1]"),
    ],
)
def test_wrong_values_say_what_was_expected(
    load: Callable[..., Loaded], tmp_path: Path, line: str, expected: str
) -> None:
    assert mistakes(load, f"[tools]\n{line}\n") == [f"{tmp_path}/pxd.toml:2: {expected}"]


def test_a_section_that_is_no_table(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert mistakes(load, "tools = 5\n") == [f"{tmp_path}/pxd.toml:1: tools: expected a table: [tools], got 5"]


def test_a_long_wrong_value_is_cut(load: Callable[..., Loaded]) -> None:
    (told,) = mistakes(load, f"[tools]\nwarm_keep_max = '{'x' * 500}'\n")
    assert told.endswith("…")
    assert len(told) < 300


def test_a_word_outside_its_list_names_the_list(load: Callable[..., Loaded]) -> None:
    (told,) = mistakes(load, '[kernels]\nexpose = "Bash"\n')
    assert told.endswith("kernels.expose: expected 'both', 'python' or 'bash', got 'Bash'; did you mean bash?")


def test_toml_that_is_none_has_its_line(load: Callable[..., Loaded], tmp_path: Path) -> None:
    (told,) = mistakes(load, "[tools]\n\nwarm_keep_max = \n")
    assert told.startswith(f"{tmp_path}/pxd.toml:3: no valid TOML: ")


def test_bytes_that_are_no_text_have_their_line(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert mistakes(load, b"[tools]\n# caf\xe9\n") == [
        f"{tmp_path}/pxd.toml:2: no valid TOML: not UTF-8: byte 0xe9 (invalid continuation byte)"
    ]


def test_a_byte_order_mark_is_no_mistake(load: Callable[..., Loaded]) -> None:
    assert load(b"\xef\xbb\xbf[tools]\nwarm_keep_max = 7\n").settings.tools.warm_keep_max == 7


def test_a_named_file_must_exist_and_be_readable(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert mistakes(load, named=True) == [f"{tmp_path}/pxd.toml: cannot be read: No such file or directory"]
    (tmp_path / "pxd.toml").mkdir()
    assert mistakes(load) == [f"{tmp_path}/pxd.toml: cannot be read: Is a directory"]


def test_a_dangling_link_is_no_missing_file(load: Callable[..., Loaded], tmp_path: Path) -> None:
    (tmp_path / "pxd.toml").symlink_to(tmp_path / "nowhere")
    assert mistakes(load) == [f"{tmp_path}/pxd.toml: cannot be read: No such file or directory"]


def test_mistakes_of_the_environment_name_the_variable(load: Callable[..., Loaded]) -> None:
    told = mistakes(
        load, PX_TOOLS__WARM_KEEP_MXA="3", PX_TOOLS__MAX_BODY_BYTES="many", PX_TOOL__PYTHON="/x", PX_A__B__C="1"
    )
    assert told == [
        "env PX_A__B__C: unknown setting a.b.c",
        "env PX_TOOLS__WARM_KEEP_MXA: unknown setting tools.warm_keep_mxa; did you mean PX_TOOLS__WARM_KEEP_MAX?",
        "env PX_TOOL__PYTHON: unknown setting tool.python; did you mean PX_TOOLS__PYTHON?",
        "env PX_TOOLS__MAX_BODY_BYTES: tools.max_body_bytes: expected a valid integer, got 'many'",
    ]


def test_variables_that_are_no_settings_pass(load: Callable[..., Loaded]) -> None:
    loaded = load(PX_HOME="/x", PX_SOCKET="/y", PX_AUTOSTART="0", PX_INSTANCE="i", PX_UNIT="u", PX_CONTROL="1", PATH="")
    assert loaded.warnings == ()
    warned = load(PX_FOO="1", PX_TOOLS_QUEUE_MAX="3").warnings
    assert warned == (
        "the variable PX_FOO is no setting and is ignored",
        "the variable PX_TOOLS_QUEUE_MAX is no setting and is ignored; did you mean PX_TOOLS__QUEUE_MAX?",
    )


def test_mistakes_of_flags_name_the_flag(load: Callable[..., Loaded]) -> None:
    assert mistakes(load, flags=("tools.queue=3", "tools.queue_max", "tools.queue_max=-1")) == [
        "flag --set tools.queue: unknown setting tools.queue; did you mean tools.queue_max?",
        "flag --set tools.queue_max: expected section.key=value",
        "flag --set tools.queue_max: tools.queue_max: expected greater than or equal to 0, got '-1'",
    ]


def test_all_mistakes_of_all_sources_are_told_at_once(load: Callable[..., Loaded], tmp_path: Path) -> None:
    """Also one that a stronger source hides: `queue_max` of the file is wrong though the environment sets it well."""
    conf = tmp_path / "conf.d"
    conf.mkdir()
    (conf / "a.toml").write_text("[\n")
    told = mistakes(load, "[tools]\nqueue_max = -1\n", PX_TOOLS__QUEUE_MAX="3", PX_LOGS__X="1")
    assert len(told) == 3


def test_problems_are_a_document_for_machines(load: Callable[..., Loaded], tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load("[tools]\nwarm_keep_mxa = 3\n", PX_LOGS__SEGMENT_BYTES="x")
    assert json.loads(json.dumps(caught.value.problem()["problems"])) == [
        {
            "origin": f"{tmp_path}/pxd.toml:2",
            "file": f"{tmp_path}/pxd.toml",
            "line": 2,
            "key": "tools.warm_keep_mxa",
            "message": "unknown setting tools.warm_keep_mxa",
            "nearest": "tools.warm_keep_max",
        },
        {
            "origin": "env PX_LOGS__SEGMENT_BYTES",
            "file": None,
            "line": None,
            "key": "logs.segment_bytes",
            "message": "logs.segment_bytes: expected a valid integer, got 'x'",
            "nearest": None,
        },
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[daemon]\nbackoff_initial_seconds = 9\nbackoff_max_seconds = 1\n", "daemon.backoff_max_seconds"),
        ("[logs]\ntotal_bytes = 200000\n", "logs.total_bytes"),
        ('[api]\nlisten = "0.0.0.0:80"\n', "api.listen"),
        ('[pipes]\ntimezone = "Mars/X"\n', "pipes.timezone"),
        ('[pipes]\nredact = ["sk-[a-z]+", "("]\n', "pipes.redact"),
    ],
)
def test_what_contradicts_itself_is_refused(load: Callable[..., Loaded], text: str, key: str) -> None:
    (told,) = mistakes(load, text)
    assert f": {key} " in told
    assert "pxd.toml:" in told


def test_the_nearest_zone_and_the_fault_of_an_expression_are_told(load: Callable[..., Loaded]) -> None:
    (zone,) = mistakes(load, '[pipes]\ntimezone = "Europe/Berlni"\n')
    assert "there is no such time zone" in zone
    assert "did you mean Europe/Berlin?" in zone
    (pattern,) = mistakes(load, '[pipes]\nredact = ["("]\n')
    assert "has '(', which is no regular expression: missing )" in pattern
    assert load('[pipes]\ntimezone = "Europe/Berlin"\nredact = ["a+"]\n').settings.pipes.timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("127.0.0.1:7860", ("127.0.0.1", 7860)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("127.0.0.1", 65535)),
        ("127.8.9.1:1", ("127.8.9.1", 1)),
    ],
)
def test_loopback_addresses_are_taken(text: str, pair: tuple[str, int]) -> None:
    assert parse_listen(text) == pair


@pytest.mark.parametrize(
    "text",
    ["", "7860", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "h:1", "10.0.0.1:1", "[::]:1", "127.0.0.1:65536", "::1:²"],
)
def test_all_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|has "):
        parse_listen(text)


@given(st.integers(0, 10**6), st.floats(0, 10**6, allow_nan=False))
def test_numbers_survive_the_environment(count: int, seconds: float) -> None:
    environ = {"PX_TOOLS__QUEUE_MAX": str(count), "PX_TOOLS__WARM_KEEP_SECONDS": repr(seconds)}
    tools = read_settings(Sources(Path("/none"), Path("/none"), False, environ)).settings.tools
    assert (tools.queue_max, tools.warm_keep_seconds) == (count, seconds)


@given(st.sampled_from(KEYS), st.text(st.characters(exclude_characters="\0")))
def test_any_text_is_a_value_or_a_problem(key: tuple[str, str], text: str) -> None:
    variable = f"PX_{key[0]}__{key[1]}".upper()
    try:
        loaded = read_settings(Sources(Path("/none"), Path("/none"), False, {variable: text}))
    except SettingsError as error:
        assert ".".join(key) in str(error)
    else:
        assert {origin for _, _, origin in loaded.rows()} == {"default", f"env {variable}"}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("tools.env_allow", "A, B,,LC_*", ("A", "B", "LC_*")),
        ("tools.env_allow", '["A"]', ("A",)),
        ("tools.paths", f"/a,b{os.pathsep}/c", ("/a,b", "/c")),
        ("tools.memory_budget_mb", "", None),
        ("tools.python", "", None),
        ("kernels.managed", "off", False),
        ("kernels.managed", "YES", True),
    ],
)
def test_texts_become_lists_switches_and_nothing(
    load: Callable[..., Loaded], key: str, text: str, value: object
) -> None:
    section, name = key.split(".")
    for loaded in (load(flags=(f"{key}={text}",)), load(**{f"PX_{section}__{name}".upper(): text})):
        assert getattr(getattr(loaded.settings, section), name) == value


def test_a_secret_is_shown_nowhere_and_stands_in_no_command_line(load: Callable[..., Loaded]) -> None:
    loaded = load('[kernels]\ngateway_token = "s3cr3t"\n')
    assert "s3cr3t" not in repr(loaded)
    assert ("kernels.gateway_token", HIDDEN) in [row[:2] for row in loaded.rows()]
    assert "s3cr3t" not in str(mistakes(load, '[kernels]\ngateway_token = ["s3cr3t"]\n'))
    (told,) = mistakes(load, "", flags=("kernels.gateway_token=s3cr3t",))
    assert told.endswith(
        "is a secret, which every process could read in a command line; did you mean PX_KERNELS__GATEWAY_TOKEN?"
    )


def test_the_variables_of_the_original_stand_between_files_and_our_own(load: Callable[..., Loaded]) -> None:
    file = '[kernels]\nexpose = "python"\nskip_check = false\n'
    loaded = load(file, PI_PY="bash", PI_PYTHON_SKIP_CHECK="1", PI_DEBUG_STARTUP="1", PI_PYTHON_IPC_TRACE="nonsense")
    kernels = loaded.settings.kernels
    assert (kernels.expose, kernels.skip_check, kernels.trace) == ("bash", True, True)
    assert loaded.origin("kernels.expose") == "env PI_PY"
    assert any("PI_PYTHON_IPC_TRACE" in warning for warning in loaded.warnings)
    assert load(file, PI_PY="bash", PX_KERNELS__EXPOSE="both").settings.kernels.expose == "both"


def test_settings_that_are_gone_are_told_and_harm_nothing(load: Callable[..., Loaded]) -> None:
    kernels = "[kernels]\nspare_idle_seconds = 3\nladder_nudge_seconds = 9\n"
    text = f"{kernels}[pipes]\nretry_growth = 'x'\n[ledger]\nkeep_days = 9\n"
    loaded = load(text, flags=("tools.listen_backlog=3",), PX_LOGS__SPILL_BYTES="1")
    assert loaded.settings == DEFAULTS
    assert [
        warning.split(" no longer exists and is ignored: ")[0].split("the setting ")[1] for warning in loaded.warnings
    ] == [
        "kernels.spare_idle_seconds",
        "kernels.ladder_nudge_seconds",
        "pipes.retry_growth",
        "ledger.keep_days",
        "logs.spill_bytes",
        "tools.listen_backlog",
    ]


@pytest.mark.parametrize(("text", "line"), [("a = 1\n\nb = [1,\n", 4), ("a = 1\na = 2\n", 2), ("\n\n= 1", 3)])
def test_a_syntax_error_has_its_line(load: Callable[..., Loaded], text: str, line: int) -> None:
    (told,) = mistakes(load, text)
    assert f"pxd.toml:{line}: " in told


def test_settings_in_force_are_recalled_with_their_secrets(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert recall_valid(tmp_path) is None
    loaded = load('[tools]\npaths = ["/a", "b"]\nmemory_budget_mb = 3\n', PX_KERNELS__GATEWAY_TOKEN="s3cr3t")  # noqa: S106  # of none
    keep_valid(tmp_path, loaded)
    assert recall_valid(tmp_path) == loaded
    assert (tmp_path / VALID_NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="No such file"):
        keep_valid(tmp_path / "none", loaded)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "\xff", '{"settings": {"tools": {"gone": 1}}}', '{"settings": {"tools": {"queue_max": "x"}}}'],
)
def test_what_cannot_be_recalled_is_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / VALID_NAME).write_text(text, "latin-1")
    assert recall_valid(tmp_path) is None


def test_the_stamp_changes_with_whatever_is_read_and_with_nothing_else(tmp_path: Path) -> None:
    environ = {"PX_TOOLS__QUEUE_MAX": "3", "PX_INSTANCE": "a", "HOME": "/"}
    sources = Sources(tmp_path / "pxd.toml", tmp_path / "conf.d", False, environ)
    before = sources.stamp()
    others = {**environ, "PX_INSTANCE": "b", "HOME": "/h"}
    assert Sources(sources.config_file, sources.conf_dir, False, others).stamp() == before
    seen = {before}
    sources.conf_dir.mkdir()
    for change in ("pxd.toml", "conf.d/a.toml"):
        for text in ("", "a"):
            (tmp_path / change).write_text(text)
            seen.add(sources.stamp())
    seen.add(Sources(sources.config_file, sources.conf_dir, False, {**environ, "PI_PY": "1"}).stamp())
    seen.add(Sources(sources.config_file, sources.conf_dir, False, environ, ("tools.queue_max=3",)).stamp())
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("tools.warm_keep_max", None),
        ("daemon.log_level", None),
        ("tools.max_body_bytes", "pxctl daemon restart"),
        ("api.listen", "pxctl daemon restart"),
        ("logs.total_bytes", "pxctl daemon restart --all"),
    ],
)
def test_what_a_changed_setting_needs(key: str, command: str | None) -> None:
    assert restart_needed(key) == command


def test_what_has_changed(load: Callable[..., Loaded]) -> None:
    changed = load("[tools]\nwarm_keep_max = 1\nqueue_max = 512\n[logs]\nsegment_bytes = 99999\n").settings
    assert changed_keys(DEFAULTS, changed) == ("logs.segment_bytes", "tools.warm_keep_max")
