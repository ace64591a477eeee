"""Which cells are offered, what the original's variables mean, and how a choice is explained."""

from __future__ import annotations

import pytest

from supervisord_py.kernels.config import Offer, legacy_settings, report
from supervisord_py.kernels.session import BackendName

# -- the variables of the original ---------------------------------------------------------------------------------


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
        "PI_PYTHON_GATEWAY_TOKEN is ignored: it knows a token",
        "PI_DEBUG_STARTUP='maybe' is ignored: it knows 1 or 0",
    )
    assert settings(PI_PY="", PI_DEBUG_STARTUP="") == {}


@pytest.mark.parametrize(
    ("wanted", "python", "bash", "offered"),
    [
        ("both", True, True, "both"),
        ("both", True, False, "python"),
        ("both", False, True, "bash"),
        ("both", False, False, None),
        ("python", True, True, "python"),
        ("python", False, True, "bash"),
        ("python", False, False, None),
        ("bash", True, True, "bash"),
        ("bash", True, False, None),
    ],
)
def test_python_degrades_to_bash_and_bash_to_nothing(
    *, wanted: str, python: bool, bash: bool, offered: str | None
) -> None:
    said = report(wanted, Offer(offered=python), "/bin/bash" if bash else None, BackendName.DIRECT)
    assert said["expose"] is offered
