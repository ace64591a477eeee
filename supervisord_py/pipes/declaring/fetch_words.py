"""What it means when an address cannot be read, and what to do about it. Pure.

Law: a certificate that is not to be trusted is never asked a second time, nor with fewer checks; the words say which of
its faults it was.
"""

from __future__ import annotations

import errno
import os
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yarl import URL

BY_HAND = "or download it and add the file"

_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAMES = frozenset({62, 64})
_NOBODY_KNOWN = frozenset({2, 18, 19, 20, 21})
"""X509_V_ERR codes of OpenSSL: verify(1)."""
_TRUST = "have this machine trust its authority (update-ca-certificates), or start the daemon with SSL_CERT_FILE=FILE"


def told(url: URL, error: Exception) -> tuple[str, str]:
    """Return what is wrong with an address, and what to do."""
    host, cause = url.host or url.human_repr(), _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _of_certificate(host, cause)
    if isinstance(cause, ssl.SSLError):
        why = (getattr(cause, "reason", None) or str(cause)).replace("_", " ").lower()
        return f"cannot read {url.human_repr()}: {host} does not speak TLS as it should: {why}", "look at the address"
    return f"cannot read {url.human_repr()}: {_words(cause)}", f"look at the address in a browser, {BY_HAND}"


def _words(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _cause(error: Exception) -> BaseException:
    """Return what a client's error is made of."""
    for name in ("certificate_error", "os_error"):
        inner = getattr(error, name, None)
        if isinstance(inner, Exception):
            return inner
    return error


def _of_certificate(host: str, error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    code, said = error.verify_code, error.verify_message.rstrip(".")
    if code == _EXPIRED:
        return (
            f"the certificate of {host} has expired",
            f"its owner has to renew it, or this machine's clock is wrong (`date`); {BY_HAND}",
        )
    if code == _NOT_YET:
        return (
            f"the certificate of {host} is not valid yet",
            f"this machine's clock may be wrong (`date`); {BY_HAND}",
        )
    if code in _OTHER_NAMES:
        return f"the certificate of {host} is for another name: {said}", f"use the name that it is for, {BY_HAND}"
    if code in _NOBODY_KNOWN:
        return f"the certificate of {host} comes from nobody whom this machine trusts: {said}", _TRUST
    return f"the certificate of {host} is not to be trusted: {said}", f"look at the address in a browser, {BY_HAND}"
