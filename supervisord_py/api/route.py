"""What one row of the route table says. The server obeys it, the OpenAPI document repeats it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from aiohttp import web

from supervisord_py.api.call import Call
from supervisord_py.api.negotiation import JSON

if TYPE_CHECKING:
    from supervisord_py.api.parameters import Parameter

Answer = Callable[[Call], Coroutine[Any, Any, web.StreamResponse]]


class Access(StrEnum):
    """What a route needs. Every one needs the daemon's own user, root, or on TCP the token.

    `CHANGE` is refused while the daemon stops; `LIFE` steers the stop itself and is not; `READ` never changes anything.
    """

    READ = "read"
    CHANGE = "change"
    LIFE = "life"


class Ends(StrEnum):
    """What becomes of the work when the client goes away before the answer."""

    WITH_CLIENT = "with_client"
    BY_ITSELF = "by_itself"


class Query(StrEnum):
    """What becomes of query parameters that the route does not declare: Jupyter's clients send some to fool caches."""

    DECLARED_ONLY = "declared_only"
    ANY = "any"


class Body(StrEnum):
    """Whether a request has a body."""

    NONE = "none"
    OBJECT = "object"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Returned:
    """One kind of success: status, media type, and the schema name that its `schema` member carries."""

    description: str
    media: str = JSON
    status: int = 200
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One row: method, path with `{name}` parts, who may, what it does."""

    method: str
    path: str
    answer: Answer
    access: Access
    summary: str
    returned: tuple[Returned, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Body = Body.NONE
    ends: Ends = Ends.WITH_CLIENT
    query: Query = Query.DECLARED_ONLY
    streams: bool = False
    """The answer to a POST is a stream: it is not kept for replay under an Idempotency-Key."""
    resumes: bool = False
    """A POST with Last-Event-ID does nothing again, under whatever Idempotency-Key: it is told the rest."""

    @property
    def name(self) -> str:
        """`POST /api/tools/{t}/run`: how metrics, logs and idempotency records call it."""
        return f"{self.method} {self.path}"

    @property
    def path_parts(self) -> tuple[str, ...]:
        """The names in braces, in order."""
        return tuple(piece.partition("}")[0] for piece in self.path.split("{")[1:])
