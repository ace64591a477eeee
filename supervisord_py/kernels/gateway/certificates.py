"""Whom a server must be certified by, and what we show it of ourselves: PEM files of the settings, as a TLS context.

Law: a file that cannot be used is told by the name of its setting. A certificate is always asked for and its name
compared; there is no setting that turns that off.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.kernels.config import GatewayCertificates


def tls_context(files: GatewayCertificates) -> ssl.SSLContext | None:
    """Return how to speak TLS with the server, None where the system's certificates will do. Blocking.

    Raises:
        ConfigError: A file is not there, is no PEM, or is locked with a passphrase.
    """
    if files.ca is None and files.cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except (OSError, ValueError) as error:
        raise _unusable("kernels.gateway_ca_file", files.ca, error, "certificates") from error
    if files.cert is not None:
        try:
            context.load_cert_chain(files.cert, files.key, password=_nobody_is_asked)
        except (OSError, ValueError) as error:
            name = "kernels.gateway_cert_file" if files.key is None else "kernels.gateway_key_file"
            kind = "a certificate and its key without a passphrase"
            raise _unusable(name, files.key or files.cert, error, kind) from error
    return context


def _nobody_is_asked() -> bytes:
    """Be the passphrase of a locked key; OpenSSL would ask the terminal for it."""
    return b""


def _unusable(setting: str, path: Path | None, error: Exception, wanted: str) -> ConfigError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ConfigError(f"{setting} ({path}) cannot be used: {why}.", hint=f"Name a PEM file with {wanted}.")
