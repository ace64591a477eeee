"""An external gateway over TLS: certified by whom the settings name, and shown our own certificate where it asks."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernels.gateway_fake import FakeServer, fake_server
from supervisord_py.errors import ConfigError
from supervisord_py.kernels.config import GatewayCertificates, GatewayConfig, KernelsConfig
from supervisord_py.kernels.gateway.certificates import tls_context
from supervisord_py.kernels.gateway.external import GatewayExternal
from tls_site import own_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl(1) to make a certificate")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `both` (certificate and key), `cert`, `key`, `locked` (the key under a passphrase), `prose`."""
    folder = tmp_path_factory.mktemp("tls")
    for name, made in zip(("cert", "key", "locked"), own_certificate(folder), strict=True):
        made.rename(folder / name)
    (folder / "both").write_text((folder / "key").read_text() + (folder / "cert").read_text())
    (folder / "prose").write_text("no certificate")
    return folder


@pytest.fixture
async def strict(files: Path) -> AsyncIterator[FakeServer]:
    """A server that asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files / "both")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files / "both")
    async with fake_server(context) as server:
        yield server


def external(folder: Path, url: str, certificates: GatewayCertificates) -> GatewayExternal:
    gateway = GatewayConfig(dir=folder, url=url, certificates=certificates)
    return GatewayExternal(KernelsConfig(folder, folder, folder, folder, gateway), daemon="d")


async def test_a_server_that_asks_is_shown_our_certificate(tmp_path: Path, files: Path, strict: FakeServer) -> None:
    """For requests and for the websocket; a key of its own file is as good."""
    both = files / "both"
    for shown in (GatewayCertificates(both, both), GatewayCertificates(both, files / "cert", files / "key")):
        backend = external(tmp_path, strict.url, shown)
        assert list(await backend.specs()) == ["python3"]
        client = await backend._client()
        assert await backend._client() is client
        channel = await client.connect("k", "s", 60.0)
        await channel.close()
        await backend.close(stop=False)


async def test_without_them_the_reason_is_told(tmp_path: Path, files: Path, strict: FakeServer) -> None:
    none, trusted = GatewayCertificates(), GatewayCertificates(ca=files / "both")
    for shown, why in ((none, "its certificate is not accepted"), (trusted, "gateway_cert_file")):
        backend = external(tmp_path, strict.url, shown)
        health = await backend.health()
        assert health is not None
        assert why in health
        assert ("gateway_cert_file" in health) == (shown.ca is not None)
        await backend.close(stop=False)


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (GatewayCertificates(ca=Path("nope")), "gateway_ca_file"),
        (GatewayCertificates(ca=Path("prose")), "gateway_ca_file"),
        (GatewayCertificates(cert=Path("nope")), "gateway_cert_file"),
        (GatewayCertificates(cert=Path("prose")), "gateway_cert_file"),
        (GatewayCertificates(cert=Path("cert"), key=Path("prose")), "gateway_key_file"),
        (GatewayCertificates(cert=Path("cert"), key=Path("locked")), "gateway_key_file"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_by_its_setting(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch, wrong: GatewayCertificates, setting: str
) -> None:
    """A locked key asks nobody for its passphrase."""
    monkeypatch.chdir(files)
    with pytest.raises(ConfigError, match=setting) as caught:
        tls_context(wrong)
    assert "PEM" in str(caught.value.hint)
    health = await external(tmp_path, "https://127.0.0.1:1", wrong).health()
    assert setting in str(health)
