"""What `pxctl doctor` asks of kernels: which cells are offered, which sessions failed, which limit holds for nobody."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisord_py.api.checks import Check, Verdict
from supervisord_py.errors import PxError
from supervisord_py.kernels.session import BackendName, SessionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisord_py.kernels.exposure import CapabilityReport, Offer
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.kernels.session import SessionView

_BUILD = "pxctl kernel start --explain"
_ADDRESS = "pxctl config show"


async def check_kernels(kernels: Kernels) -> list[Check]:
    """Return the findings about kernels."""
    try:
        report = await kernels.capabilities()
    except PxError as error:
        offers = [Check("kernels", Verdict.FAIL, error.detail, error.hint)]
    else:
        offers = list(_offers(report))
    return [*offers, *_limits(kernels.config.limits.processes), *_failed(kernels.snapshot())]


def _offers(report: CapabilityReport) -> Iterator[Check]:
    repair = _ADDRESS if report.backend is BackendName.GATEWAY_EXTERNAL else _BUILD
    yield _offer("kernels:python", report.python, is_wanted=report.wanted.python, repair=repair)
    yield _offer("kernels:bash", report.bash, is_wanted=report.wanted.bash, repair="put bash on PATH")


def _offer(name: str, offer: Offer, *, is_wanted: bool, repair: str) -> Check:
    if offer.offered:
        reason = f" ({offer.reason})" if offer.reason else ""
        return Check(name, Verdict.OK, f"{offer.program or 'offered'}{reason}")
    if not is_wanted:
        return Check(name, Verdict.OK, offer.reason or "turned off")
    return Check(name, Verdict.WARN, offer.reason or "not offered", repair)


def _limits(processes: int | None) -> Iterator[Check]:
    """Tell of a limit that the kernel does not hold us to: RLIMIT_NPROC counts nothing for uid 0, setrlimit(2)."""
    if processes is not None and os.geteuid() == 0:
        detail = f"kernels.processes is {processes}, and the daemon runs as uid 0, whose processes no limit counts"
        yield Check("kernels:processes", Verdict.WARN, detail, "run pxd as a user of its own: pxctl daemon install")


def _failed(sessions: Sequence[SessionView]) -> Iterator[Check]:
    for view in sessions:
        if view.state is SessionState.FAILED:
            detail = str((view.failure or {}).get("detail") or "it failed and does not start again by itself")
            yield Check(view.unit, Verdict.FAIL, detail, f"pxctl kernel restart {view.id}")
