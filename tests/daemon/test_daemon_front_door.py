"""The optional loopback listener, and the token that guards it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from supervisord_py.daemon.bearer_token import TOKEN_NAME, read_or_make_token
from supervisord_py.daemon.house import open_tcp
from supervisord_py.daemon.paths import resolve_paths
from supervisord_py.daemon.schema import Settings
from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def wants(**api: object) -> Settings:
    return Settings.model_validate({"api": api})


def test_a_missing_token_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "t"
    before = os.umask(0)
    try:
        token = read_or_make_token(path)
    finally:
        os.umask(before)
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_token(path) == token
    assert read_or_make_token(tmp_path / "other") != token


def test_a_token_that_others_may_have_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    read_or_make_token(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"may be read by others \(mode 0640") as caught:
        read_or_make_token(path)
    assert "rm " in str(caught.value.hint)


@pytest.mark.parametrize("content", [b"", b"short", b"with\nline" * 4, b"\xff" * 40])
def test_what_is_no_token_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no token"):
        read_or_make_token(path)


def test_links_folders_and_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="cannot be"):
        read_or_make_token(tmp_path / "link")
    with pytest.raises(ConfigError, match="cannot be made: No such file"):
        read_or_make_token(tmp_path / "none/t")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_or_make_token(tmp_path)


def test_without_a_wish_there_is_no_port_and_no_token(tmp_path: Path) -> None:
    assert open_tcp(Settings(), resolve_paths({"PX_HOME": str(tmp_path)})) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
def test_a_port_is_bound_and_its_token_lies_beside_the_ledger(address: str, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    opened = open_tcp(wants(listen=address), resolve_paths({"PX_HOME": str(tmp_path)}))
    assert opened is not None
    listening, access = opened
    with listening:
        assert access.port == listening.getsockname()[1] > 0
        assert access.token == (tmp_path / "state" / TOKEN_NAME).read_text().strip()
        assert access.token not in repr(access)


TOKEN_SETTING = {"token_file": "my"}


def test_the_token_file_may_be_named_beside_the_settings(tmp_path: Path) -> None:
    opened = open_tcp(wants(listen="127.0.0.1:0", **TOKEN_SETTING), resolve_paths({"PX_HOME": str(tmp_path)}))
    assert opened is not None
    opened[0].close()
    assert (tmp_path / "my").exists()
