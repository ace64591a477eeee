"""Asks `pxd` itself about the settings: the client knows no setting, and an answer is wanted without a daemon, too.

What `pxd` refuses leaves here as any other failure of the client does: its words, its exit code, its document.
"""

from __future__ import annotations

import json
import subprocess

from pxctl.failure import FAILED, OK, Failure
from pxctl.starting import daemon_environment, pxd_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_BAD_SETTINGS = 78
"""The daemon's own word to a service manager; the client's contract says 1 (CONTRACT §3)."""
_LAST_CODE = 9
_CHECK = "--check-config"
_HINT = "hint: "


def ask_pxd(invocation: Invocation, flag: str, *flags: str) -> bytes:
    """Run `pxd FLAG…` and return what it answers; its warnings are passed on.

    Raises:
        Failure: It refuses, and why.
    """
    ended = _run(invocation, flag, *flags)
    if ended.returncode != OK:
        raise _refusal(invocation, ended)
    for line in _lines(ended.stderr):
        invocation.notice(f"pxctl: {line.removeprefix('pxd: ')}")
    return ended.stdout


def _run(invocation: Invocation, *flags: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        pxd_arguments(invocation, *flags),
        env=daemon_environment(invocation),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def _refusal(invocation: Invocation, ended: subprocess.CompletedProcess[bytes]) -> Failure:
    """Make the failure out of what pxd said; broken settings come with each mistake and its place."""
    said = _lines(ended.stderr)
    hints = [line.removeprefix(_HINT) for line in said if line.startswith(_HINT)]
    why = [line.removeprefix("pxd: ") for line in said if not line.startswith(_HINT)]
    if ended.returncode != _BAD_SETTINGS:
        code = ended.returncode if 0 < ended.returncode <= _LAST_CODE else FAILED
        what = "\n".join(why) or f"pxd ended with {ended.returncode}"
        return Failure(what, hint=hints[0] if hints else "pxctl doctor", exit_code=code)
    errors = _mistakes(_run(invocation, _CHECK, "--json").stdout)
    detail = "\n".join(why or [_sentence(error) for error in errors]) or "pxd refuses the settings"
    hint = "mend what is named above, then: pxctl config check"
    return Failure(detail, kind="config_error", hint=hint, exit_code=FAILED, errors=errors)


def _lines(raw: bytes) -> list[str]:
    return [line for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]


def _mistakes(raw: bytes) -> list[dict[str, Any]]:
    """Return the mistakes that pxd lists; it may be of another version, or see them mended meanwhile."""
    try:
        problems = json.loads(raw)["problems"]
    except (ValueError, KeyError, TypeError):
        return []
    return [problem for problem in problems if isinstance(problem, dict)] if isinstance(problems, list) else []


def _sentence(error: dict[str, Any]) -> str:
    meant = f"; did you mean {error['nearest']}?" if error.get("nearest") else ""
    return f"{error.get('origin') or error.get('file')}: {error.get('message')}{meant}"
