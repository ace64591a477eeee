"""A site that speaks real TLS on this machine, with certificates of an authority made for the test (openssl(1))."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
HERE = "DNS:localhost,IP:127.0.0.1"


class Authority:
    """Signs certificates; `file` is what must be trusted for them.

    Args:
        folder: Where everything lies.
        name: Of its files.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key, self.file = folder / f"{name}.key", folder / f"{name}.pem"
        made = ("-keyout", self._key, "-out", self.file, "-subj", f"/CN={name}", "-days", 2)
        _openssl("req", "-x509", *_EC, *made)

    def context(self, name: str, *, names: str = HERE, days: int = 1) -> ssl.SSLContext:
        """Return what a server needs to be `names`, for so many days from now; negative: until then."""
        key, asked, certificate = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl("req", *_EC, "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
        signed = ("-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-days", days, "-extfile", extensions)
        _openssl("x509", "-req", "-in", asked, *signed, "-out", certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
