"""The daemon as the commands see it: documents in and out, and names of units. A lost GET is asked again once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pxctl.failures import DaemonProblem, Document, Failure, Interrupted, Unreachable, usage
from pxctl.http1 import Exchange

READ_SECONDS = 30.0
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Answer(NamedTuple):
    """A whole JSON answer: the bytes as they came and what they mean."""

    raw: bytes
    document: Document


class Client:
    """Asks the daemon at the socket `path`.

    `wake` is called once when nobody answers there, then it is asked again; None: that is a failure at once. `waiting`
    returns what tells a person, while it lasts, that an answer is waited for.
    """

    def __init__(
        self,
        path: str,
        wake: Callable[[], None] | None = None,
        waiting: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.path, self._wake, self._waiting = path, wake, waiting
        self._kept: Exchange | None = None  # its connection takes one more request

    def open(
        self,
        method: str,
        target: str,
        *,
        content: Any = None,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        timeout: float | None = READ_SECONDS,
        keep: bool = False,
    ) -> Exchange:
        """Send a request, with `content` as JSON or a `body`; the answer's body is still to be read. Caller closes.

        With `keep` the connection may be used for the next request, too.
        """
        head = {"Accept": "application/json", **(fields or {}), "Connection": "keep-alive" if keep else "close"}
        if content is not None:
            body = json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
            head["Content-Type"] = "application/json"
        exchange, self._kept = self._kept or self._connect(), None
        try:
            exchange.send(method, target, head, body, timeout)
            _refuse_problem(exchange)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def ask(self, method: str, target: str, *, keep: bool = False, **request: Any) -> Answer:
        """Send a request, as `open` does, and return the whole JSON answer."""
        for is_last in (method != "GET", True):
            try:
                with self._waiting(), self.open(method, target, keep=keep, **request) as exchange:
                    raw = exchange.read()
                    if exchange.is_kept:
                        self._kept = exchange
                break
            except Interrupted:
                if is_last:
                    raise
        try:
            document = json.loads(raw) if raw.strip() else {}
        except ValueError:
            document = None
        if isinstance(document, dict):
            return Answer(raw, document)
        detail = f"the daemon's answer to {method} {target} is not JSON as it should be: {raw[:100]!r}"
        raise Failure(detail, kind="bad_answer", hint="pxctl doctor")

    def get(self, target: str, **request: Any) -> Answer:
        return self.ask("GET", target, **request)

    def _connect(self) -> Exchange:
        try:
            return Exchange(self.path)
        except Unreachable:
            if self._wake is None:
                raise
        wake, self._wake = self._wake, None
        wake()
        return Exchange(self.path)


def _refuse_problem(exchange: Exchange) -> None:
    """Raise the problem that the daemon answered with; what is no document (an empty body) becomes one."""
    head = exchange.head
    if head.status < 400:
        return
    raw, members = exchange.read(), None
    with contextlib.suppress(ValueError):
        members = json.loads(raw)
    if not isinstance(members, dict):
        text = raw[:500].decode("utf-8", "replace").strip()
        members = {"detail": f"the daemon answered {head.status} {head.reason}" + (f": {text}" if text else "")}
    raise DaemonProblem(head.status, members)


def quote(text: str) -> str:
    """Return `text` as one segment of a path or one value of a query; "." and ".." are quoted too."""
    if text in {".", ".."}:
        return text.replace(".", "%2E")
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))


def query(target: str, parameters: Iterable[tuple[str, object]]) -> str:
    """Return the target with the parameters whose value is not None; booleans are 1 and 0."""
    pairs = []
    for name, value in parameters:
        is_whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
        if value is not None:
            pairs.append(f"{name}={quote(f'{value:.0f}' if is_whole else str(value))}")
    return f"{target}?{'&'.join(pairs)}" if pairs else target


# -- units, as users name them: `x`, `tool:x`, quoted globs, which the daemon expands ---------------------------------


def is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def bare_name(kind: str, text: str) -> str:
    """Return the name alone out of `x` or `kind:x`; a usage error where it names something else, or nothing."""
    found, colon, rest = text.partition(":")
    if not colon and text.strip():
        return text
    if found != kind or not rest.strip():
        group = "tools" if kind == "tool" else kind
        raise usage(f"{text!r} does not name a {kind}", f"pxctl {group} list shows them")
    return rest


def route(kind: str, text: str, verb: str = "") -> str:
    """Return the route of a tool, kernel or pipe that is named as users do."""
    return f"/api/{kind}s/{quote(bare_name(kind, text))}" + (f"/{verb}" if verb else "")


def expand(client: Client, names: Sequence[str]) -> list[str]:
    """Return the full names that the daemon understands by `names`, each once."""
    found = client.get(query("/api/units", [("name", name) for name in names])).document
    return list(dict.fromkeys(str(unit["unit"]) for unit in found.get("units", [])))


def bare_names(client: Client, kind: str, texts: Iterable[str]) -> list[str]:
    """Return the bare names that names and globs mean, each once; only globs are asked of the daemon."""
    found: list[str] = []
    for text in texts:
        name = bare_name(kind, text)
        units = expand(client, [f"{kind}:{name}"]) if is_glob(name) else [name]
        found += [unit.removeprefix(f"{kind}:") for unit in units]
    return list(dict.fromkeys(found))
