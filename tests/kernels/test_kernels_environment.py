"""The environment of a kernel: deny beats everything, what is ours never passes, the chosen environment is active."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.kernels.environment import NOTHING, OURS, Activation, EnvRules, Why, deactivated, filtered
from supervisord_py.process.child_environment import Environment

VENV = Activation("/work/.venv/bin", "/work/.venv", "VIRTUAL_ENV")
CONDA = Activation("/opt/conda/envs/x/bin", "/opt/conda/envs/x", "CONDA_PREFIX")
PLAIN = Activation("/usr/bin", "/usr")
ACTIVATED = {"VIRTUAL_ENV", "CONDA_PREFIX", "PATH"}


def test_why_a_variable_is_left_out() -> None:
    """A known secret is found as a whole value, a long one inside a value, too."""
    extra = {"JPY_SESSION_NAME": "a.ipynb", "OPENAI_API_KEY": "k", "A=B": "", "": "x", "PI_A": "abc", "PI_B": "xabcx"}
    urls = {"PI_C": "http://h/?token=longsecret", "PI_E": "", "PX_HOME": "/x", "UNKNOWN": "1"}
    found = filtered(urls, EnvRules(), extra=extra, secrets=("abc", "longsecret", ""))
    assert found.env.items() >= {"JPY_SESSION_NAME": "a.ipynb", "PI_B": "xabcx", "PI_E": ""}.items()
    assert found.dropped == {
        "": Why.UNUSABLE,
        "A=B": Why.UNUSABLE,
        "OPENAI_API_KEY": Why.DENIED,
        "PI_A": Why.SECRET,
        "PI_C": Why.SECRET,
        "PX_HOME": Why.OURS,
        "UNKNOWN": Why.NOT_ALLOWED,
    }


def test_the_daemon_s_own_activation_says_nothing_about_projects() -> None:
    """D3: a daemon started from a project's shell must not serve that project's environment to all."""
    found = deactivated(
        {"PATH": "/a/.venv/bin:/c/bin:/bin", "VIRTUAL_ENV": "/a/.venv/", "CONDA_PREFIX": "/c", "X": "1"}
    )
    assert dict(found) == {"PATH": "/bin", "X": "1"}
    base = {"PATH": "/opt/conda/bin:/bin", "CONDA_PREFIX": "/opt/conda", "CONDA_DEFAULT_ENV": "base"}
    assert dict(deactivated(base)) == base
    named = {"CONDA_PREFIX": "/opt/conda/envs/x", "CONDA_DEFAULT_ENV": "x"}
    assert dict(deactivated(named)) == {}


OFTEN = """
PATH HOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PI_PYTHON_GATEWAY_TOKEN PI_X LC_ALL OPENAI_API_KEY PX_SOCKET
PX_INSTANCE px_home JPY_PARENT_PID XDG_DATA_HOME NOTIFY_SOCKET KERNEL_ID A=B
"""
WORDS = st.one_of(st.sampled_from(OFTEN.split()), st.text("ABPIX_", min_size=1, max_size=5))
NAMES = st.one_of(WORDS, st.just(""))
PATHS = st.lists(
    st.sampled_from(["/bin", "/usr/bin", "/work/.venv/bin", "/work/.venv/bin/", "/v/bin", "", "relative", CONDA.bin]),
    max_size=6,
).map(":".join)
VALUES = st.one_of(PATHS, st.sampled_from(["/v", "/work/.venv", CONDA.prefix, "s3", "supersecret", "a supersecret b"]))
MAPPINGS = st.dictionaries(NAMES, VALUES, max_size=12).map(Environment)
RULES = st.builds(
    EnvRules,
    allow=st.lists(WORDS, max_size=8).map(tuple),
    allow_prefixes=st.lists(st.sampled_from(["PI_", "LC_", "XDG_", "A", "PX_", ""]), max_size=3).map(tuple),
    deny=st.lists(st.one_of(WORDS, st.just("P*")), max_size=5).map(tuple),
)
OWN = st.sampled_from([NOTHING, Environment({"PX_SOCKET": "/run/px"})])
SECRETS = ("s3", "supersecret", "")
ACTIVATIONS = st.sampled_from([None, VENV, CONDA, PLAIN])


def is_denied(name: str, rules: EnvRules) -> bool:
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in rules.deny)


@given(MAPPINGS, MAPPINGS, OWN, RULES, ACTIVATIONS)
def test_the_laws_of_the_filter_hold_for_every_environment(
    source: Environment, extra: Environment, own: Environment, rules: EnvRules, activation: Activation | None
) -> None:
    found = filtered(source, rules, activation, extra=extra, own=own, secrets=SECRETS)
    allowed = {*rules.allow, *extra, *own, *ACTIVATED}
    for name, value in found.env.items():
        assert not is_denied(name, rules)
        assert name in allowed or name.startswith(rules.allow_prefixes)
        assert name in own or not name.upper().startswith(("PX_", "PI_PYTHON_GATEWAY_"))
        assert name not in {*OURS, ""}
        assert "=" not in name
        assert value != "s3"
        assert "supersecret" not in value
    told = {*found.dropped, *found.env, *ACTIVATED}
    assert {name for name in (*source, *extra) if not is_denied(name, rules)} <= told
    if activation is None:
        return
    if not is_denied("PATH", rules):  # the chosen folder leads it, exactly once
        first, *rest = found.env["PATH"].split(":")
        assert first == activation.bin
        assert activation.bin not in {entry.rstrip("/") for entry in rest}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        expected = activation.prefix if activation.mark == name and not is_denied(name, rules) else None
        assert found.env.get(name) == expected
