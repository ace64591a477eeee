"""Which cells are offered, what the original's variables mean, and how a choice is explained."""

from __future__ import annotations

import json

import pytest

from supervisord_py.kernels.choice import Attempt, Choice, Source, Verdict
from supervisord_py.kernels.config import EnvRules
from supervisord_py.kernels.environment import filtered
from supervisord_py.kernels.exposure import (
    Expose,
    Offer,
    legacy_settings,
    report,
)
from supervisord_py.kernels.session import BackendName


@pytest.mark.parametrize(
    ("wanted", "python", "bash", "offered"),
    [
        (Expose.BOTH, True, True, Expose.BOTH),
        (Expose.BOTH, True, False, Expose.PYTHON),
        (Expose.BOTH, False, True, Expose.BASH),
        (Expose.BOTH, False, False, None),
        (Expose.PYTHON, True, True, Expose.PYTHON),
        (Expose.PYTHON, False, True, Expose.BASH),
        (Expose.PYTHON, False, False, None),
        (Expose.BASH, True, True, Expose.BASH),
        (Expose.BASH, True, False, None),
    ],
)
def test_python_degrades_to_bash_and_bash_to_nothing(
    *, wanted: Expose, python: bool, bash: bool, offered: Expose | None
) -> None:
    said = report(wanted, Offer(offered=python), "/bin/bash" if bash else None, BackendName.DIRECT)
    assert said.expose is offered


def test_the_report_says_why() -> None:
    lost = report(Expose.BOTH, Offer(offered=False, reason="no ipykernel"), "/bin/bash", BackendName.DIRECT)
    assert lost.document() == {
        "expose": "bash",
        "wanted": "both",
        "python": {"offered": False, "reason": "no ipykernel", "interpreter": None},
        "bash": {"offered": True, "reason": None, "shell": "/bin/bash"},
        "backend": "direct",
    }
    instead = report(Expose.PYTHON, Offer(offered=False, reason="x"), "/bin/bash", BackendName.DIRECT)
    assert instead.bash.offered
    assert "in place of Python" in str(instead.bash.reason)
    unwanted = report(Expose.BASH, Offer(offered=True, program="/p"), "/bin/bash", BackendName.DIRECT)
    assert unwanted.python == Offer(offered=False, reason="turned off by [kernels] expose")
    only = report(Expose.PYTHON, Offer(offered=True, program="/p"), "/bin/bash", BackendName.DIRECT)
    assert not only.bash.offered
    nothing = report(Expose.BOTH, Offer(offered=False, reason="x"), None, BackendName.DIRECT)
    assert nothing.document()["expose"] is None
    assert nothing.bash.reason == "there is no bash on PATH"


# -- the variables of the original ---------------------------------------------------------------------------------


def settings(**environ: str) -> dict[str, str | bool]:
    return {each.key: each.value for each in legacy_settings(environ)[0]}


def test_every_variable_of_the_original_is_a_setting() -> None:
    assert settings(
        PI_PY="0",
        PI_PYTHON_GATEWAY_URL=" http://h:1 ",
        PI_PYTHON_GATEWAY_TOKEN="t",  # noqa: S106
        PI_PYTHON_SKIP_CHECK="1",
        PI_PYTHON_IPC_TRACE="Yes",
        PI_DEBUG_STARTUP="0",
        UNRELATED="x",
    ) == {
        "kernels.expose": "bash",
        "kernels.gateway_url": "http://h:1",
        "kernels.backend": "gateway-external",
        "kernels.gateway_token": "t",
        "kernels.skip_check": True,
        "kernels.trace": True,
    }


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
    assert [(each.key, each.value, each.variable) for each in values] == [("kernels.expose", "both", "PI_PY")]
    assert warnings == (
        "PX_PY='snake' is ignored: it knows 0, bash, 1, py, mix, both",
        "PI_PYTHON_GATEWAY_TOKEN is ignored: it knows a token",
        "PI_DEBUG_STARTUP='maybe' is ignored: it knows 1 or 0",
    )
    assert settings(PI_PY="", PI_DEBUG_STARTUP="") == {}


def test_a_token_is_in_no_repr() -> None:
    assert "t0ken" not in repr(legacy_settings({"PI_PYTHON_GATEWAY_TOKEN": "t0ken", "PI_PYTHON_GATEWAY_URL": "t0ken"}))


# -- explanations ----------------------------------------------------------------------------------------------------


def test_an_explanation_is_json_without_values() -> None:
    found = filtered({"HOME": "/hidden", "OPENAI_API_KEY": "hidden"}, EnvRules())
    attempts = (
        Attempt(
            Source.DOT_VENV, "/p/.venv/bin/python", Verdict.NO_IPYKERNEL, "has no ipykernel", "3.11.7", "pip install"
        ),
        Attempt(Source.PATH, "/usr/bin/python3", Verdict.TAKEN, "runs"),
    )
    whole = Choice("/p", "k", BackendName.DIRECT, "python", found, attempts, "/usr/bin/python3").document()
    assert "hidden" not in json.dumps(whole)
    assert whole["environment"] == {
        "passed": ["HOME", "PATH"],
        "dropped": [{"name": "OPENAI_API_KEY", "why": "denied"}],
    }
    assert [each["taken"] for each in whole["candidates"]] == [False, True]
    assert whole["candidates"][0]["remedy"] == "pip install"
