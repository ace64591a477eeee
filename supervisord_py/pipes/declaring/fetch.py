"""A `pipe.md` read from the network: https only, to the end of every redirect, and never more than its limit."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, TypeAlias

from supervisord_py.errors import PxError, TooLargeError
from supervisord_py.pipes.declaring.fetch_words import BY_HAND, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiohttp
    from yarl import URL

Fetch: TypeAlias = "Callable[[str], Awaitable[bytes]]"
"""Address to bytes; raises PxError."""

MAX_REDIRECTS = 5
TIMEOUT_SECONDS = 30.0

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200


class FetchError(PxError):
    """An address cannot be read."""

    kind = "fetch_failed"
    title = "The address cannot be read"
    status = 502


def is_https(url: URL) -> bool:
    """Say whether an address may be asked."""
    return url.scheme == "https" and bool(url.host)


def https_fetch(
    limit_bytes: int, *, timeout_seconds: float = TIMEOUT_SECONDS, permitted: Callable[[URL], bool] = is_https
) -> Fetch:
    """Return a function that reads an address.

    Args:
        limit_bytes: Of the answer.
        timeout_seconds: Of the whole, redirects included.
        permitted: Which addresses may be asked, at first and by a redirect.
    """

    async def fetch(address: str) -> bytes:
        # Costs its import in a control plane that has no other use of a client.
        import aiohttp  # noqa: PLC0415 - see above

        try:
            async with asyncio.timeout(timeout_seconds):
                # Anew each time: whom this machine trusts may have changed since the start. Reads files.
                connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(ssl.create_default_context))
                async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
                    return await _Fetching(session, limit_bytes, permitted).read(address)
        except TimeoutError:
            detail = f"{address} did not answer within {timeout_seconds:g} s"
            raise FetchError(detail, hint=f"try again, {BY_HAND}") from None
        except ValueError as error:
            detail = f"cannot read {address}: {str(error) or type(error).__name__}"
            raise FetchError(detail, hint="look at the address in a browser") from None

    return fetch


class _Fetching:
    """One address, followed to its end."""

    def __init__(self, session: aiohttp.ClientSession, limit_bytes: int, permitted: Callable[[URL], bool]) -> None:
        self._session = session
        self._limit_bytes = limit_bytes
        self._permitted = permitted

    async def read(self, address: str) -> bytes:
        from yarl import URL  # noqa: PLC0415 - comes with the client, as late as it does

        url = URL(address)
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url)
            found = await self._ask(url)
            if isinstance(found, bytes):
                return found
            url = url.join(URL(found))
        raise FetchError(f"{address} is redirected more than {MAX_REDIRECTS} times", hint="use the final address")

    async def _ask(self, url: URL) -> bytes | str:
        """Return what an address gives, or where it sends us."""
        import aiohttp  # noqa: PLC0415 - it is there already

        try:
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status in _REDIRECTS:
                    return answer.headers.get("Location", "")
                return await self._body(answer)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            detail, hint = told(url, error)
            raise FetchError(detail, hint=hint) from None

    def _check(self, url: URL) -> None:
        if not self._permitted(url):
            detail = f"{url.human_repr()} is not asked: what runs with your rights is read over https only"
            raise FetchError(detail, hint="use an https address, or download it and add the file")

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        if answer.status != _OK:
            detail = f"{answer.url.human_repr()} answered {answer.status} {answer.reason}"
            raise FetchError(detail, hint="look at the address in a browser")
        if answer.content_type == "text/html":
            detail = f"{answer.url.human_repr()} is a web page, not a pipe.md"
            raise FetchError(detail, hint="use the address of the raw file")
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > self._limit_bytes:
                detail = f"{answer.url.human_repr()} is larger than {self._limit_bytes} bytes"
                raise TooLargeError(detail, limit_bytes=self._limit_bytes, setting="pipes.body_install_bytes")
        return bytes(body)
