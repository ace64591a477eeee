"""The pure decisions about kernels at servers: refusals, first code, command lines."""

from __future__ import annotations

import json
import os
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.errors import ConfigError, OverloadedError, PxError, StartFailedError, UnknownUnitError
from supervisord_py.kernels.gateway import init_code
from supervisord_py.kernels.gateway_client import GatewayClient
from supervisord_py.kernels.gateway_local import listens

URL = "http://user:secret@h:1/base/?token=hidden#x"
PLACE = GatewayClient(URL, None, "kernels.gateway_token")
OURS = GatewayClient(URL, "hidden", "", is_ours=True)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (403, '{"reason": "Forbidden", "message": "Resource Limit"}', OverloadedError, "limit of kernels"),
        (404, "", UnknownUnitError, "status 404"),
        (500, '{"message": "broken"}', StartFailedError, "failed to start a kernel: it returned status 500: broken"),
        (400, '{"message": "broken"}', StartFailedError, "refused to start a kernel: it returned status 400: broken"),
        (301, "", ConfigError, "sends us elsewhere"),
        (302, "/login?next=", ConfigError, "does not accept the token"),
    ],
)
def test_every_status_is_told(status: int, body: str, kind: type[PxError], words: str) -> None:
    error = PLACE.refused(status, body, "start a kernel")
    assert isinstance(error, kind)
    assert words in error.detail


@given(st.sampled_from((301, 302, 400, 401, 403, 404, 500, 503)), st.sampled_from((PLACE, OURS)))
def test_no_refusal_shows_a_secret_and_our_own_gateway_asks_nobody_for_a_token(status: int, at: GatewayClient) -> None:
    for error in (at.refused(status, "", "start a kernel"), at.unreachable("timeout")):
        text = json.dumps(error.problem())
        assert "secret" not in text
        assert "hidden" not in text
    if at is OURS and status in (401, 403, 500):
        assert at.refused(status, "", "start a kernel").hint == "pxctl logs kernel:gateway"


# -- first code --------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"(PI_|LC_|LANG|TZ|TERM|KERNEL_|PX_|HOME)?[A-Z_]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_nothing_that_looks_like_a_secret_leaves_this_machine(env: dict[str, str]) -> None:
    told = re.findall(r"'([A-Z_]+)': ", init_code("/w", env, "d.1", "kernel:s"))
    for name in told:
        assert not any(word in name.upper() for word in ("TOKEN", "SECRET", "PASSW", "KEY", "COOKIE", "CREDENTIAL"))
    assert set(told) - {"PX_INSTANCE", "PX_UNIT"} <= {each for each in env if not each.startswith(("HOME", "KERNEL"))}


# -- whose gateway it is -----------------------------------------------------------------------------------------------


def test_a_listener_is_known_by_its_process() -> None:
    """D9: the token goes to nobody but the gateway's own process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not listens(os.getpid(), port), "bound is not listening"
        listener.listen()
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)
