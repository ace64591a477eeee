"""What the daemon is asked for: names, programs and variables of an order."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.jupyter.provisioner import order_of, session_name
from supervisord_py.kernels.kernelspecs import Kernelspec
from supervisord_py.kernels.session import session_name as checked_by_the_daemon

LAUNCHED = ("-m", "ipykernel_launcher", "-f", "{connection_file}")
UUID = "5b0a5f1e-0000-4000-8000-000000000000"
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=30)
VARIABLES = st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=5)


def ordered(*argv: str, spec: str = "pxd", language: str = "python", **wishes: Any) -> dict[str, Any]:
    kernelspec = Kernelspec(argv or ("python3", *LAUNCHED), language, name=spec)
    return order_of(UUID, kernelspec, **{"cwd": "/w", "env": {}, "environ": {}, **wishes})


@given(st.uuids().map(str) | st.text(max_size=30))
def test_the_name_of_a_session_is_one_that_the_daemon_takes_and_is_always_the_same(kernel_id: str) -> None:
    name = session_name(kernel_id)
    assert checked_by_the_daemon(name) == name
    assert re.fullmatch(r"jupyter-[0-9a-f]{8}", name)
    assert session_name(kernel_id) == name


@given(VARIABLES, VARIABLES)
def test_what_the_front_end_adds_is_told_apart_from_what_it_has_and_all_of_it_is_json(
    environ: dict[str, str], added: dict[str, str]
) -> None:
    order = ordered(env={**environ, **added}, environ=environ)
    json.dumps(order, ensure_ascii=False).encode()
    assert all(environ.get(name) != value for name, value in order["env"].items())
    assert order["environ"].items() <= environ.items()
    assert {**order["environ"], **order["env"]}.keys() <= {**environ, **added}.keys()


@pytest.mark.parametrize(
    ("argv", "language", "expected"),
    [
        (("python", *LAUNCHED), "python", {}),
        (("python3", *LAUNCHED), "python", {}),
        (("/e/bin/python", *LAUNCHED), "python", {"interpreter": "/e/bin/python"}),
        (("/e/bin/python", "-Xfrozen_modules=off", *LAUNCHED), "python", {"interpreter": "/e/bin/python"}),
        (("python3.12", *LAUNCHED), "python", {"kernelspec": "s"}),
        (("/e/bin/python", *LAUNCHED, "--matplotlib=inline"), "python", {"kernelspec": "s"}),
        (("/e/bin/python", *LAUNCHED), "sage", {"kernelspec": "s"}),
        (("R", "--slave", "{connection_file}"), "R", {"kernelspec": "s"}),
    ],
)
def test_a_spec_is_followed_as_it_is_written(argv: tuple[str, ...], language: str, expected: dict[str, str]) -> None:
    order = ordered(*argv, spec="s", language=language)
    assert {name: order[name] for name in ("interpreter", "kernelspec") if name in order} == expected


def test_a_configured_interpreter_wins_where_it_is_our_launcher_that_starts() -> None:
    assert ordered(interpreter="/mine")["interpreter"] == "/mine"
    assert ordered("/e/python", *LAUNCHED, interpreter="/mine")["interpreter"] == "/mine"
    assert "interpreter" not in ordered("R", language="R", interpreter="/mine")
