"""The man pages: well-formed, and complete where the code can say what complete is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisord_py import errors
from supervisord_py.config.settings import DEFAULTS, KEYS, value_of
from supervisord_py.daemon.main import main as pxd
from supervisord_py.errors import PxError
from supervisord_py.tools.manifest import COMMON_KEYS, OWN_KEYS, PIXIE_KEYS, PLAIN_KEYS

MAN = Path(__file__).parents[2] / "man"
PAGES = sorted(str(path.relative_to(MAN)) for path in MAN.rglob("*.[1-8]"))


def source(page: str) -> str:
    return (MAN / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_formatted_without_a_warning(page: str, require: Callable[[object, str], None]) -> None:
    require(shutil.which("groff"), "needs groff")
    formatted = subprocess.run(["groff", "-t", "-man", "-ww", "-Tutf8", MAN / page], capture_output=True, check=True)
    assert (formatted.stderr, len(formatted.stdout) > 500) == (b"", True)
    headings = re.findall(r"^\.SH \"?(.+?)\"?$", source(page), re.MULTILINE)
    assert (headings[0], headings[-1]) == ("NAME", "SEE ALSO")


def test_pages_refer_only_to_pages_that_exist() -> None:
    ours = {Path(page).name for page in PAGES}
    for page in PAGES:
        for name, section in re.findall(r"^\.BR ([\w.\\-]+) \((\d)\)", source(page), re.MULTILINE):
            target = name.replace("\\-", "-")
            assert f"{target}.{section}" in ours or not target.startswith(("px", "tool")), (page, target)


def test_the_settings_are_documented_with_their_defaults_and_no_others() -> None:
    _, *parts = re.split(r"^\.SS \[(\w+)\]$", source("man5/pxd.toml.5"), flags=re.MULTILINE)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    tags = {
        (section, key): tag.replace("\\(dq", '"')
        for section, text in texts.items()
        for key, tag in re.findall(r"^\.TP\n\.BR? (\w+)(.*)", text, re.MULTILINE)
    }
    assert sorted(tags) == sorted(KEYS)
    for (section, key), tag in tags.items():
        default = value_of(DEFAULTS, section, key)
        if key in {"env_allow", "env_deny"}:
            assert set(re.findall(r"^\.BR (\S+) [,.]$", texts[section], re.MULTILINE)) >= set(default)
        else:
            assert tag == f' " ({"none" if default is None else json.dumps(default)})"', (section, key)


def test_every_key_of_a_tool_is_documented() -> None:
    text = source("man5/tool.json.5")
    for key in {*PLAIN_KEYS, *PIXIE_KEYS, *COMMON_KEYS, *OWN_KEYS}:
        assert re.search(rf"^\.BR?\b.*\b{key}\b", text, re.MULTILINE), key


def test_every_option_of_the_daemon_is_documented() -> None:
    text = source("man8/pxd.8").replace("\\-", "-")
    for parameter in pxd.params:
        for name in parameter.opts:
            assert name in text, name


def test_every_route_is_documented_with_its_parameters() -> None:
    from msgspec.structs import fields

    from supervisord_py.api.routes import ROUTES, handler_of

    text = source("man7/pxd-api.7").replace("\\-", "-")
    for route in ROUTES:
        line = re.search(rf'^\.BI? "?{route.method} {re.escape(route.path)}(\?.*)?$', text, re.MULTILINE)
        assert line, f"{route.method} {route.path} is not in pxd-api.7"
        for parameter in fields(handler_of(route.handler).query):
            assert f"{parameter.encode_name}=" in line[0], f"{route.path}: {parameter.encode_name}"


def test_every_kind_of_error_is_documented_with_its_status() -> None:
    rows = re.findall(r'^\.BR (\d{3}) " (.+)"$', source("man7/pxd-api.7"), re.MULTILINE)
    documented = {kind: int(status) for status, kinds in rows for kind in kinds.split(", ")}
    kinds = {it.kind: it.status for it in vars(errors).values() if isinstance(it, type) and issubclass(it, PxError)}
    del kinds[PxError.kind]
    assert kinds.items() <= documented.items()
