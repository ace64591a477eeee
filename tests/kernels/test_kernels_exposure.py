"""Which cells are offered, and what the original's variables mean."""

from __future__ import annotations

import pytest

from supervisord_py.kernels.config import Offer, legacy_settings, report


def settings(**environ: str) -> dict[str, str | bool]:
    return {key: value for key, (value, _) in legacy_settings(environ)[0].items()}


def test_our_names_win() -> None:
    assert settings(PX_PY="py", PI_PY="bash") == {"kernels.expose": "python"}
    assert settings(PX_KERNELS__EXPOSE="both", PX_PY="py", PI_PY="bash") == {}
    url = {"PI_PYTHON_GATEWAY_URL": "http://h"}
    assert settings(PX_KERNELS__BACKEND="direct", **url) == {"kernels.gateway_url": "http://h"}
    assert settings(PX_KERNELS__GATEWAY_URL="http://i", **url) == {}


def test_a_word_that_is_not_known_is_ignored_with_a_warning() -> None:
    values, warnings = legacy_settings(
        {"PX_PY": "snake", "PI_PY": "mix", "PI_DEBUG_STARTUP": "maybe", "PI_PYTHON_GATEWAY_TOKEN": " "}
    )
    assert values == {"kernels.expose": ("both", "PI_PY")}
    assert warnings == (
        "PX_PY='snake' is ignored: it knows 0, bash, 1, py, mix, both",
        "PI_DEBUG_STARTUP='maybe' is ignored: it knows 1, true, yes, on, 0, false, no, off",
    )
    assert settings(PI_PY="", PI_DEBUG_STARTUP="") == {}


@pytest.mark.parametrize(
    ("wanted", "offered"),
    [("both", ["both", "python", "bash", None]), ("python", ["python", "python", None, None]),
     ("bash", ["bash", None, "bash", None])],
)  # fmt: skip
def test_what_is_offered_is_what_is_wanted_and_there(wanted: str, offered: list[str | None]) -> None:
    there = [(True, "/bin/bash"), (True, None), (False, "/bin/bash"), (False, None)]
    assert [report(wanted, Offer(python), bash, "direct")["expose"] for python, bash in there] == offered
