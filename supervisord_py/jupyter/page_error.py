"""How a refusal of the daemon reaches whoever asked for the kernel.

jupyter_server sends only tornado's own errors to its pages; of any other they learn "Unhandled error". Everybody else
shows the text of what was raised.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisord_py.jupyter.control_socket import DaemonError

_UNAVAILABLE = 503


def shown_by(error: DaemonError, program: str = "jupyter_server") -> Exception:
    """Return the error to raise in this process: the very one, or in `program` one that its pages are told of."""
    if program not in sys.modules:
        return error
    from tornado.web import HTTPError  # noqa: PLC0415 - there already in that program, and not needed in any other

    return HTTPError(error.status or _UNAVAILABLE, str(error))
