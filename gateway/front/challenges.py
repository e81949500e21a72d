"""Says no to callers: 401, 403 and what they need to know to do better (RFC 6750, RFC 9728). No I/O.

What was presented is never repeated, and what an upstream says is passed on only where it is a plain word.
"""

import math
from typing import Literal

from msgspec import Struct

from gateway.front.stream import Outcome, failure
from gateway.protocol.call import Challenge, Forbidden
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, McpError


class Door(Struct, frozen=True):
    """What every challenge of an endpoint says."""

    realm: str = ""
    metadata: str | None = None
    """Where the document is that says who gives out tokens; None where nobody does."""
    scopes: tuple[str, ...] = ()
    """What every token needs."""


class Denied(Struct, frozen=True):
    """Why a request does not get in."""

    status: Literal[400, 401, 403, 503]
    word: str
    """Which names it in metrics."""
    message: str
    """For people; it holds nothing of what was presented."""
    error: str | None = None
    """As RFC 6750 calls it; None where no credential was presented."""
    retry_after: float = 0.0
    """In how many seconds it may go better, with 503."""


def bearer(
    door: Door, *, error: str | None = None, description: str | None = None, scopes: str | None = None
) -> str:
    """Return a challenge; what cannot be quoted is left out."""
    members = {
        "realm": door.realm,
        "error": error,
        "error_description": description,
        "scope": scopes,
        "resource_metadata": door.metadata,
    }
    words = ", ".join(f'{name}="{value}"' for name, value in members.items() if value and _quotable(value))
    return f"Bearer {words}".strip()


def denied(came: Denied, id: bytes | None, door: Door | None) -> Outcome:
    """Return why a request does not get in, and what would let it in; without a door nothing would (Z-02)."""
    error = McpError(INTERNAL_ERROR if came.status == 503 else INVALID_REQUEST, came.message)
    headers: dict[str, str] = {}
    if came.status == 503:
        headers["Retry-After"] = str(math.ceil(came.retry_after))
    elif door is not None:
        description = came.message if came.error is not None else None
        headers["WWW-Authenticate"] = bearer(
            door, error=came.error, description=description, scopes=" ".join(door.scopes)
        )
    return failure(came.status, error, id, came.word, headers)


def of_upstream(challenge: Challenge, id: bytes | None, door: Door) -> Outcome:
    """Return our own challenge in place of an upstream's; it names neither its address nor its metadata."""
    status = 403 if challenge.status == 403 else 401
    said = bearer(door, error=challenge.error, scopes=challenge.scope)
    error = McpError(INTERNAL_ERROR, f"upstream {challenge.upstream}: {challenge.reason}")
    return failure(status, error, id, "challenge", {"WWW-Authenticate": said})


def forbidden(came: Forbidden, id: bytes | None, door: Door) -> Outcome:
    """Return a 403 that names all scopes it takes (Z-04).

    Where no scope would help it holds no challenge, or clients would ask for tokens for ever.
    """
    if not came.scopes:
        return failure(403, McpError(INVALID_REQUEST, str(came)), id, "forbidden")
    scopes = list(dict.fromkeys([*door.scopes, *came.scopes]))
    said = bearer(door, error="insufficient_scope", description=str(came), scopes=" ".join(scopes))
    # In the body, too: an answer of a batch, or on a stream that has begun, has no header of its own.
    error = McpError.with_data(INVALID_REQUEST, str(came), {"scopes": scopes})
    return failure(403, error, id, "forbidden", {"WWW-Authenticate": said})


def _quotable(text: str) -> bool:
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
