"""Settings: who wins, what is refused, and how a mistake is told."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon.schema import KEYS, Settings, typed
from supervisord_py.daemon.settings import (
    VALID_NAME,
    Loaded,
    contradictions,
    keep_valid,
    load_settings,
    parse_listen,
    recall_valid,
)
from supervisord_py.daemon.sources import SettingsError, Sources, key_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Loaded]:
    def run(
        text: str | bytes | None = None, *, named: bool = False, flags: tuple[str, ...] = (), **environ: str
    ) -> Loaded:
        file = tmp_path / "pxd.toml"
        if text is not None:
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_settings(Sources(file, tmp_path / "conf.d", named, environ, flags))

    return run


def mistakes(load: Callable[..., Loaded], *args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    assert caught.value.exit_code == 78
    return str(caught.value).splitlines()


def origin(loaded: Loaded, key: str) -> str:
    return next(str(each.origin) for each in loaded.effective if each.key == key)


def test_without_any_source_all_are_defaults(load: Callable[..., Loaded]) -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert {str(each.origin) for each in loaded.effective} == {"default"}
    assert [each.key for each in loaded.effective] == [".".join(key) for key in KEYS]


def test_the_documented_defaults(load: Callable[..., Loaded]) -> None:
    tools = load().settings.tools
    assert (tools.warm_keep_max, tools.warm_keep_seconds, tools.queue_max) == (5, 300.0, 512)
    assert (tools.max_memory_mb, tools.max_runtime_seconds, tools.start_timeout_seconds) == (512, 60.0, 30.0)
    assert (tools.stop_timeout_seconds, tools.concurrency, tools.memory_budget_mb) == (5.0, 16, None)


def test_precedence_is_file_dropins_environment_flags(load: Callable[..., Loaded], tmp_path: Path) -> None:
    conf = tmp_path / "conf.d"
    conf.mkdir()
    (conf / "20-b.toml").write_text("[tools]\nconcurrency = 3\nqueue_max = 30\nwarm_keep_max = 3\n")
    (conf / "10-a.toml").write_text("[tools]\nconcurrency = 2\nqueue_max = 20\n")
    (conf / ".hidden.toml").write_text("nonsense")
    (conf / "note.txt").write_text("nonsense")
    loaded = load(
        "[tools]\nconcurrency = 1\nmax_memory_mb = 1\nlisten_backlog = 9\n",
        flags=("tools.concurrency=5",),
        PX_TOOLS__CONCURRENCY="4",
        PX_TOOLS__QUEUE_MAX="40",
    )
    tools = loaded.settings.tools
    assert (tools.concurrency, tools.queue_max, tools.warm_keep_max, tools.max_memory_mb) == (5, 40, 3, 1)
    assert origin(loaded, "tools.concurrency") == "flag --set tools.concurrency"
    assert origin(loaded, "tools.queue_max") == "env PX_TOOLS__QUEUE_MAX"
    assert origin(loaded, "tools.warm_keep_max") == f"{conf}/20-b.toml:4"
    assert origin(loaded, "tools.listen_backlog") == f"{tmp_path}/pxd.toml:4"
    assert origin(loaded, "tools.python") == "default"


def test_folders_of_tools_add_up(load: Callable[..., Loaded]) -> None:
    loaded = load('[tools]\npaths = ["/file"]\n', PX_TOOLS__PATHS=f"/one{os.pathsep}/two")
    assert loaded.settings.tools.paths == ("/file", "/one", "/two")


def test_an_unknown_key_names_file_line_key_and_the_nearest(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert mistakes(load, "# c\n[tools]\nqueue_max = 1\nwarm_keep_mxa = 3\n") == [
        f"{tmp_path}/pxd.toml:4: unknown setting tools.warm_keep_mxa; did you mean tools.warm_keep_max?"
    ]


def test_unknown_sections_and_keys_in_the_wrong_place(load: Callable[..., Loaded], tmp_path: Path) -> None:
    told = mistakes(load, "warm_keep_max = 1\nqqqq = 1\n[tols]\nx = 1\n[api]\nlisten_backlog = 3\n[logs]\nzzz = 1\n")
    where = f"{tmp_path}/pxd.toml"
    assert told == [
        f"{where}:1: unknown setting warm_keep_max; did you mean tools.warm_keep_max?",
        f"{where}:2: unknown section qqqq",
        f"{where}:3: unknown section tols; did you mean tools?",
        f"{where}:6: unknown setting api.listen_backlog; did you mean tools.listen_backlog?",
        f"{where}:8: unknown setting logs.zzz",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('warm_keep_max = "5"', "tools.warm_keep_max: expected a valid integer, got '5'"),
        ("warm_keep_max = true", "tools.warm_keep_max: expected a valid integer, got True"),
        ("warm_keep_max = 0", "tools.warm_keep_max: expected greater than or equal to 1, got 0"),
        ("queue_timeout_seconds = nan", "tools.queue_timeout_seconds: expected a finite number, got nan"),
        ("paths = 5", "tools.paths: expected a valid tuple, got 5"),
        ("paths = [5]", "tools.paths.0: expected a valid string, got 5"),
        ("python = [1]", "tools.python: expected a valid string, got (1,)"),
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
    (told,) = mistakes(load, '[daemon]\ncgroup = "on"\n')
    assert "daemon.cgroup: expected 'auto' or 'off', got 'on'" in told


def test_toml_that_is_none_has_its_line(load: Callable[..., Loaded], tmp_path: Path) -> None:
    (told,) = mistakes(load, "[tools]\n\nwarm_keep_max = \n")
    assert told.startswith(f"{tmp_path}/pxd.toml:3: no valid TOML: ")


def test_bytes_that_are_no_text_have_their_line(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert mistakes(load, b"[tools]\n# caf\xe9\n") == [f"{tmp_path}/pxd.toml:2: byte 0xe9 is not UTF-8"]


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
        load, PX_TOOLS__WARM_KEEP_MXA="3", PX_TOOLS__CONCURRENCY="many", PX_TOOL__PYTHON="/x", PX_A__B__C="1"
    )
    assert told == [
        "env PX_A__B__C: unknown setting a.b.c",
        "env PX_TOOLS__WARM_KEEP_MXA: unknown setting tools.warm_keep_mxa; did you mean PX_TOOLS__WARM_KEEP_MAX?",
        "env PX_TOOL__PYTHON: unknown setting tool.python; did you mean PX_TOOLS__PYTHON?",
        "env PX_TOOLS__CONCURRENCY: tools.concurrency: expected a valid integer, got 'many'",
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
        "flag --set tools.queue_max: tools.queue_max: expected greater than or equal to 0, got -1",
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
    assert "there is no time zone" in zone
    assert "did you mean Europe/Berlin?" in zone
    (pattern,) = mistakes(load, '[pipes]\nredact = ["("]\n')
    assert "has '(', which is no regular expression: missing )" in pattern
    assert load('[pipes]\ntimezone = "Europe/Berlin"\nredact = ["a+"]\n').settings.pipes.timezone == "Europe/Berlin"


def test_good_combinations_contradict_nothing() -> None:
    assert list(contradictions(Settings(), {})) == []


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
    assert typed("tools", "queue_max", str(count)) == count
    assert typed("tools", "warm_keep_seconds", repr(seconds)) == seconds


@given(st.text())
def test_any_text_becomes_a_value_or_stays_a_text(text: str) -> None:
    for key in KEYS:
        value = typed(*key, text)
        assert value is None or isinstance(value, int | float | tuple | str)


def test_lists_come_as_json_or_joined() -> None:
    assert typed("tools", "env_allow", "A, B,,LC_*") == ("A", "B", "LC_*")
    assert typed("tools", "env_allow", '["A"]') == ("A",)
    assert typed("tools", "env_allow", '["A"') == '["A"'
    assert typed("tools", "paths", f"/a,b{os.pathsep}/c") == ("/a,b", "/c")
    assert typed("tools", "memory_budget_mb", "") is None
    assert typed("tools", "python", "") is None


def test_every_setting_says_what_it_means() -> None:
    for section, name in KEYS:
        field = type(Settings.model_fields[section].default).model_fields[name]
        assert field.description, f"{section}.{name}"


EVERY_FORM_OF_A_KEY = """\
top = 1

# [not.a] table
[tools]  # a comment
plain = 1
"quoted key" = 2
dotted.deep = 3
many = [
  1, # one
  "]",
]
inline = { a = 1 }

[ api . tcp ]
x = 1
[[arrays]]
y = 1
[[arrays]]
y = 2"""


def test_keys_are_found_on_their_lines() -> None:
    assert key_lines(EVERY_FORM_OF_A_KEY) == {
        ("top",): 1,
        ("tools",): 4,
        ("tools", "plain"): 5,
        ("tools", "quoted key"): 6,
        ("tools", "dotted"): 7,
        ("tools", "dotted", "deep"): 7,
        ("tools", "many"): 8,
        ("tools", "inline"): 12,
        ("api", "tcp"): 14,
        ("api", "tcp", "x"): 15,
        ("arrays",): 16,
        ("arrays", "y"): 17,
    }


@pytest.mark.parametrize(("text", "line"), [("a = 1\n\nb = [1,\n", 3), ("a = 1\na = 2\n", 2), ("\n\n= 1", 3)])
def test_a_syntax_error_has_its_line(load: Callable[..., Loaded], text: str, line: int) -> None:
    (told,) = mistakes(load, text)
    assert f"pxd.toml:{line}: " in told


def test_settings_in_force_are_recalled_with_their_secrets(load: Callable[..., Loaded], tmp_path: Path) -> None:
    assert recall_valid(tmp_path) is None
    loaded = load('[tools]\npaths = ["/a", "b"]\nmemory_budget_mb = 3\n', PX_KERNELS__GATEWAY_TOKEN="s3cr3t")  # noqa: S106  # of none
    keep_valid(tmp_path, loaded)
    recalled = recall_valid(tmp_path)
    assert recalled is not None
    assert recalled.settings == loaded.settings
    assert {str(each.origin) for each in recalled.effective} == {str(tmp_path / VALID_NAME)}
    assert (tmp_path / VALID_NAME).stat().st_mode & 0o777 == 0o600
    keep_valid(tmp_path / "none", loaded)  # a disk that refuses costs only the fall-back


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tools": {"gone": 1}}', '{"tools": {"queue_max": "x"}}'])
def test_what_cannot_be_recalled_is_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / VALID_NAME).write_text(text)
    assert recall_valid(tmp_path) is None
