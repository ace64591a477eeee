"""Which cells are offered, what the original's variables mean, and how a choice is explained."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.kernels.choosing.candidates import Source
from supervisord_py.kernels.choosing.capabilities import Offer, report
from supervisord_py.kernels.choosing.choice import Attempt, Explanation, Verdict
from supervisord_py.kernels.choosing.environment import Inputs, filtered
from supervisord_py.kernels.choosing.legacy_environment import LEGACY_NAMES, legacy_settings, own_variable
from supervisord_py.kernels.config import EnvRules
from supervisord_py.kernels.exposure import Expose, degraded, expose_of
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import Environment


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("0", Expose.BASH),
        ("bash", Expose.BASH),
        ("1", Expose.PYTHON),
        (" PY ", Expose.PYTHON),
        ("mix", Expose.BOTH),
        ("both", Expose.BOTH),
        ("python", None),
        ("2", None),
    ],
)
def test_words_of_px_py(word: str, meaning: Expose | None) -> None:
    assert expose_of(word) is meaning


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
    assert degraded(wanted, python=python, bash=bash) is offered


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
    return {each.key: each.value for each in legacy_settings(environ).values}


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
    reading = legacy_settings(
        {"PX_PY": "snake", "PI_PY": "mix", "PI_DEBUG_STARTUP": "maybe", "PI_PYTHON_GATEWAY_TOKEN": " "}
    )
    assert [(each.key, each.value, each.variable) for each in reading.values] == [("kernels.expose", "both", "PI_PY")]
    assert reading.warnings == (
        "PX_PY='snake' is ignored: it knows 0, bash, 1, py, mix, both",
        "PI_PYTHON_GATEWAY_TOKEN is ignored: it knows a token",
        "PI_DEBUG_STARTUP='maybe' is ignored: it knows 1 or 0",
    )
    assert settings(PI_PY="", PI_DEBUG_STARTUP="") == {}


def test_a_token_is_in_no_repr() -> None:
    assert "t0ken" not in repr(legacy_settings({"PI_PYTHON_GATEWAY_TOKEN": "t0ken", "PI_PYTHON_GATEWAY_URL": "t0ken"}))


@given(
    st.dictionaries(st.sampled_from(sorted(LEGACY_NAMES)), st.text(max_size=8)),
    st.sets(st.sampled_from(["EXPOSE", "TRACE"])),
)
def test_reading_never_fails_and_never_speaks_for_our_own_names(environ: dict[str, str], own: set[str]) -> None:
    reading = legacy_settings({**environ, **{f"PX_KERNELS__{name}": "x" for name in own}})
    keys = [each.key for each in reading.values]
    assert len(keys) == len(set(keys))
    assert not {own_variable(key) for key in keys} & {f"PX_KERNELS__{name}" for name in own}
    assert len(reading.warnings) <= len(environ)


# -- explanations ----------------------------------------------------------------------------------------------------


def test_an_explanation_is_json_without_values() -> None:
    inputs = Inputs(Environment({"HOME": "/hidden", "OPENAI_API_KEY": "hidden"}))
    attempts = (
        Attempt(
            Source.DOT_VENV, "/p/.venv/bin/python", Verdict.NO_IPYKERNEL, "has no ipykernel", "3.11.7", "pip install"
        ),
        Attempt(Source.PATH, "/usr/bin/python3", Verdict.TAKEN),
    )
    whole = Explanation("/p", attempts, "/usr/bin/python3", environment=filtered(inputs, EnvRules(), None)).document()
    assert "hidden" not in json.dumps(whole)
    assert whole["environment"] == {
        "passed": ["HOME", "PATH"],
        "dropped": [{"name": "OPENAI_API_KEY", "why": "denied"}],
    }
    assert [each["taken"] for each in whole["candidates"]] == [False, True]
    assert whole["candidates"][0]["remedy"] == "pip install"
    assert Explanation("/p").document()["environment"] is None


@pytest.mark.parametrize("verdict", Verdict)
def test_only_what_is_there_counts_as_passed_over(verdict: Verdict) -> None:
    attempt = Attempt(Source.PATH, "/p", verdict)
    assert attempt.sentence == f"/p (PATH) {verdict.value}"
    assert attempt.passed_over == (
        verdict not in {Verdict.TAKEN, Verdict.MISSING, Verdict.NOT_BUILT, Verdict.NOT_NEEDED}
    )
