"""`[kernels]`: every setting arrives in the room, secrets are shown nowhere, older names are taken beside ours."""
# ruff: noqa: S105, S106  # tokens that are none

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon import wiring
from supervisord_py.daemon.kernel_wiring import gateway_token, kernels_config
from supervisord_py.daemon.paths import resolve_paths
from supervisord_py.daemon.schema import HIDDEN, KEYS, SECRETS, Settings, shown, typed
from supervisord_py.daemon.settings import Loaded, load_settings
from supervisord_py.daemon.sources import SettingsError, Sources
from supervisord_py.errors import ConfigError
from supervisord_py.kernels.config import GatewayConfig, KernelsConfig
from supervisord_py.kernels.exposure import Expose
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Load = Callable[..., Loaded]

SECRET = "s3cr3t-s3cr3t-s3cr3t"
PATHS = resolve_paths({"PX_HOME": "/h"})


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def run(text: str = "", *, flags: tuple[str, ...] = (), **environ: str) -> Loaded:
        file = tmp_path / "pxd.toml"
        file.write_text(text)
        return load_settings(Sources(file, tmp_path / "conf.d", named=False, environ=environ, flags=flags))

    return run


def origin(loaded: Loaded, name: str) -> str:
    return next(str(each.origin) for each in loaded.effective if each.key == f"kernels.{name}")


def mistakes(load: Load, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    assert SECRET not in json.dumps(caught.value.problem())
    return str(caught.value)


# -- what the room is told ---------------------------------------------------------------------------------------


def test_defaults_of_settings_and_of_the_room_agree() -> None:
    config = kernels_config(Settings(), PATHS)
    gateway = GatewayConfig(dir=config.gateway.dir)
    plain = KernelsConfig(config.run_dir, config.cells_dir, config.data_dir, config.modules_dir, gateway)
    assert config == plain


def test_the_places_of_kernels() -> None:
    config = kernels_config(Settings(), PATHS)
    places = (config.run_dir, config.cells_dir, config.data_dir, config.modules_dir, config.gateway.dir)
    assert [str(path) for path in places] == [
        "/h/run",
        "/h/state/cells",
        "/h/kernels",
        "/h/modules",
        "/h/state/gateway",
    ]
    assert PATHS.kernel_run_dir == PATHS.run_dir / "k"


def _file(path: Path | None) -> str | None:
    """Return the path of a file as it was written beside the settings."""
    return path and str(path).removeprefix("/h/")


CHANGES: dict[str, tuple[Any, Callable[[KernelsConfig], Any]]] = {
    "expose": ("bash", lambda config: config.expose.value),
    "backend": ("gateway-local", lambda config: config.backend.value),
    "python": ("/p", lambda config: config.python),
    "managed": (False, lambda config: config.managed),
    "skip_check": (True, lambda config: config.skip_check),
    "trace": (True, lambda config: config.trace),
    "debug_startup": (True, lambda config: config.debug_startup),
    "prelude": (False, lambda config: config.prelude),
    "modules_dir": ("/m", lambda config: str(config.modules_dir)),
    "timeout_seconds": (31.0, lambda config: config.timeout_seconds),
    "timeout_min_seconds": (2.0, lambda config: config.timeout_min_seconds),
    "timeout_max_seconds": (601.0, lambda config: config.timeout_max_seconds),
    "start_seconds": (61.0, lambda config: config.start_seconds),
    "stop_seconds": (6.0, lambda config: config.stop_seconds),
    "spares": (2, lambda config: config.spares),
    "spare_idle_seconds": (601.0, lambda config: config.spare_idle_seconds),
    "max_sessions": (5, lambda config: config.sessions.max_sessions),
    "idle_seconds": (301.0, lambda config: config.sessions.idle_seconds),
    "queue_max": (65, lambda config: config.sessions.queue_max),
    "restarts": (2, lambda config: config.sessions.restarts),
    "start_failures": (4, lambda config: config.sessions.start_failures),
    "start_failure_seconds": (61.0, lambda config: config.sessions.start_failure_seconds),
    "env_allow": (("A",), lambda config: config.env.allow),
    "env_allow_prefixes": (("B",), lambda config: config.env.allow_prefixes),
    "env_deny": (("C",), lambda config: config.env.deny),
    "ladder_nudge_seconds": (0.03, lambda config: config.ladder.nudge_seconds),
    "ladder_again_seconds": (1.5, lambda config: config.ladder.again_seconds),
    "ladder_terminate_seconds": (3.5, lambda config: config.ladder.terminate_seconds),
    "ladder_kill_seconds": (4.5, lambda config: config.ladder.kill_seconds),
    "output_preview_bytes": (70_000, lambda config: config.output.preview_bytes),
    "output_head_bytes": (17_000, lambda config: config.output.head_bytes),
    "output_cell_bytes": (1 << 20, lambda config: config.output.cell_bytes),
    "output_inline_bytes": (300_000, lambda config: config.output.inline_bytes),
    "output_session_bytes": (1 << 21, lambda config: config.output.session_bytes),
    "output_total_bytes": (1 << 33, lambda config: config.output.total_bytes),
    "output_keep_days": (8.0, lambda config: config.output.keep_days),
    "soft_memory_mb": (10, lambda config: (config.limits.soft_memory_bytes or 0) >> 20),
    "hard_memory_mb": (5000, lambda config: (config.limits.hard_memory_bytes or 0) >> 20),
    "memory_grace_seconds": (2.5, lambda config: config.limits.memory_grace_seconds),
    "open_files": (99, lambda config: config.limits.open_files),
    "processes": (98, lambda config: config.limits.processes),
    "cpu_seconds": (97, lambda config: config.limits.cpu_seconds),
    "gateway_url": ("http://g:1", lambda config: config.gateway.url),
    "gateway_kernel_name": ("ir", lambda config: config.gateway.kernel_name),
    "gateway_dir": ("shared", lambda config: str(config.gateway.dir).removeprefix("/h/")),
    "gateway_cull_idle_seconds": (3601.0, lambda config: config.gateway.cull_idle_seconds),
    "gateway_start_seconds": (31.0, lambda config: config.gateway.start_seconds),
    "gateway_lock_seconds": (36.0, lambda config: config.gateway.lock_seconds),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_every_setting_arrives_where_it_belongs_and_nowhere_else(name: str) -> None:
    value, read = CHANGES[name]
    settings = Settings.model_validate({"kernels": {name: value}})
    assert read(kernels_config(settings, PATHS)) == value
    assert read(kernels_config(Settings(), PATHS)) != value
    changed = [
        each
        for each, (_, other) in CHANGES.items()
        if other(kernels_config(settings, PATHS)) != other(kernels_config(Settings(), PATHS))
    ]
    assert changed == [name]


def test_no_setting_is_left_out() -> None:
    ours = {name for section, name in KEYS if section == "kernels"}
    assert ours == {*CHANGES, "gateway_token", "gateway_token_file"}


def test_no_memory_limit_is_zero() -> None:
    none = Settings.model_validate({"kernels": {"soft_memory_mb": 0, "hard_memory_mb": 0}})
    limits = kernels_config(none, PATHS).limits
    assert (limits.soft_memory_bytes, limits.hard_memory_bytes) == (None, None)


# -- what contradicts itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("timeout_seconds = 0.5", "kernels.timeout_seconds must not be below kernels.timeout_min_seconds"),
        ("timeout_max_seconds = 20", "kernels.timeout_max_seconds must not be below kernels.timeout_seconds"),
        (
            "timeout_seconds = 700",
            "pxd.toml:2: kernels.timeout_seconds must not be above kernels.timeout_max_seconds (600, default)",
        ),
        ("ladder_kill_seconds = 2", "kernels.ladder_kill_seconds must not be below kernels.ladder_terminate_seconds"),
        ("output_head_bytes = 70000", "kernels.output_head_bytes must not be above kernels.output_preview_bytes"),
        (
            "soft_memory_mb = 5000",
            "pxd.toml:2: kernels.soft_memory_mb must not be above kernels.hard_memory_mb (4096, default)",
        ),
        ("hard_memory_mb = 9", "pxd.toml:2: kernels.hard_memory_mb must not be below kernels.soft_memory_mb (1024,"),
        ("soft_memory_mb = 9\nhard_memory_mb = 8", "pxd.toml:3: kernels.hard_memory_mb must not be below kernels.soft"),
        ('backend = "gatewy-local"', "got 'gatewy-local'; did you mean gateway-local?"),
        (
            'backend = "gateway-external"',
            "kernels.backend is gateway-external, but kernels.gateway_url says no address",
        ),
        ('gateway_url = "ftp://x"', "kernels.gateway_url must begin with http:// or https://"),
        ('expose = "r"', "kernels.expose: expected 'both', 'python' or 'bash', got 'r'"),
        ("max_sessions = 0", "kernels.max_sessions: expected greater than or equal to 1, got 0"),
    ],
)
def test_what_contradicts_itself_is_refused(load: Load, text: str, key: str) -> None:
    assert key in mistakes(load, f"[kernels]\n{text}\n")


def test_of_two_that_contradict_each_other_the_stronger_is_blamed_and_the_other_s_place_told(load: Load) -> None:
    told = mistakes(load, "[kernels]\ntimeout_max_seconds = 60\n", PX_KERNELS__TIMEOUT_SECONDS="90")
    assert told.startswith(
        "env PX_KERNELS__TIMEOUT_SECONDS: kernels.timeout_seconds must not be above kernels.timeout_max_seconds (60, "
    )
    assert told.endswith("pxd.toml:2)")


# -- secrets -----------------------------------------------------------------------------------------------------


def test_the_token_arrives_and_is_shown_nowhere(load: Load, tmp_path: Path) -> None:
    loaded = load(PX_KERNELS__GATEWAY_TOKEN=SECRET)
    token = gateway_token(loaded, PATHS)
    config = kernels_config(loaded.settings, PATHS, token)
    assert config.gateway.token == SECRET
    assert config.gateway.token_setting == "kernels.gateway_token (env PX_KERNELS__GATEWAY_TOKEN)"
    views = wiring.setting_views(loaded)
    assert next(each.value for each in views if each.key == "kernels.gateway_token") == HIDDEN
    for text in (repr(loaded), repr(token), repr(config), repr(views), str(loaded.settings), repr(loaded.effective)):
        assert SECRET not in text
    assert ("kernels", "gateway_token") in SECRETS


def test_no_mistake_quotes_a_secret(load: Load) -> None:
    assert "kernels.gateway_token: expected a valid string, got [hidden]" in mistakes(
        load, f'[kernels]\ngateway_token = ["{SECRET}"]\n'
    )


def test_a_secret_is_refused_in_a_command_line(load: Load) -> None:
    told = mistakes(load, flags=(f"kernels.gateway_token={SECRET}",))
    assert "kernels.gateway_token is a secret" in told
    assert "PX_KERNELS__GATEWAY_TOKEN" in told


def test_the_token_may_lie_in_a_file(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    paths = replace(PATHS, config_file=tmp_path / "pxd.toml")
    loaded = load('[kernels]\ngateway_token_file = "token"\n')
    token = gateway_token(loaded, paths)
    assert (token.secret, token.place) == (SECRET, f"kernels.gateway_token_file ({tmp_path}/pxd.toml:2)")
    assert (
        gateway_token(load('[kernels]\ngateway_token_file = "token"\n', PI_PYTHON_GATEWAY_TOKEN="t"), paths).secret
        == "t"
    )
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="may be read by others") as caught:
        gateway_token(loaded, paths)
    assert "chmod 600" in str(caught.value.hint)


# -- names of the environment ------------------------------------------------------------------------------------


def test_the_variables_of_the_original_are_taken(load: Load) -> None:
    loaded = load(
        PI_PY="bash",
        PI_PYTHON_GATEWAY_URL="http://g:8888",
        PI_PYTHON_GATEWAY_TOKEN=SECRET,
        PI_PYTHON_SKIP_CHECK="1",
        PI_PYTHON_IPC_TRACE="1",
        PI_DEBUG_STARTUP="1",
    )
    config = kernels_config(loaded.settings, PATHS, gateway_token(loaded, PATHS))
    assert (config.expose, config.backend) == (Expose.BASH, BackendName.GATEWAY_EXTERNAL)
    assert (config.gateway.url, config.gateway.token) == ("http://g:8888", SECRET)
    assert (config.skip_check, config.trace, config.debug_startup) == (True, True, True)
    assert origin(loaded, "expose") == "env PI_PY"
    assert origin(loaded, "backend") == "env PI_PYTHON_GATEWAY_URL"
    assert loaded.warnings == ()


def test_our_names_win_over_theirs_and_both_over_files(load: Load) -> None:
    text = '[kernels]\nexpose = "both"\ntrace = false\n'
    loaded = load(text, PI_PY="0", PX_PY="1", PI_PYTHON_IPC_TRACE="1")
    assert (loaded.settings.kernels.expose, origin(loaded, "expose")) == ("python", "env PX_PY")
    assert (loaded.settings.kernels.trace, origin(loaded, "trace")) == (True, "env PI_PYTHON_IPC_TRACE")
    loaded = load(text, PI_PY="0", PX_PY="1", PX_KERNELS__EXPOSE="both")
    assert (loaded.settings.kernels.expose, origin(loaded, "expose")) == ("both", "env PX_KERNELS__EXPOSE")
    loaded = load(text, flags=("kernels.expose=bash",), PX_PY="1")
    assert (loaded.settings.kernels.expose, origin(loaded, "expose")) == ("bash", "flag --set kernels.expose")


@given(st.sampled_from(KEYS), st.text())
def test_whatever_a_text_says_it_becomes_a_value_that_can_be_shown(key: tuple[str, str], text: str) -> None:
    json.dumps(shown(typed(*key, text)))
