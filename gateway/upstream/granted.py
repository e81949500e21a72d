"""A token that was given out, and how long it is used; what an authorization server's answer says. No I/O."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

Use: TypeAlias = Literal["good", "renew", "over"]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*")
_ERROR = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,100}")
_LONGEST = 366 * 86400.0
_ACCESS = frozenset(
    {
        "urn:ietf:params:oauth:token-type:access_token",
        "urn:ietf:params:oauth:token-type:jwt",
    }
)
OF_THE_CLIENT = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type"})
"""Errors that are about the gateway as a client, whoever it asks for."""


class Denied(Exception):
    """The authorization server gives no token; `error` is its word for why."""

    def __init__(self, error: str, detail: str) -> None:
        super().__init__(error)
        self.error = error
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and when it is to be replaced; times are of the clock that it was made with."""

    text: str = field(repr=False)
    renew: float
    end: float
    scopes: tuple[str, ...] = ()
    """What was asked for."""

    def use(self, now: float) -> Use:
        """Whether it may be shown: as long as it is good, also while another is got in its place."""
        if now >= self.end:
            return "over"
        return "renew" if now >= self.renew else "good"


def token_of(
    text: str,
    lifetime: float | None,
    *,
    now: float,
    early: float,
    ends: float | None = None,
    scopes: tuple[str, ...] = (),
) -> Token:
    """Return a token that was asked for at `now`, to be replaced `early`, but not before half of its life.

    None = its lifetime is not known: it is used until it is refused. `ends` bounds it whatever it says.
    """
    end = float("inf") if lifetime is None else now + min(lifetime, _LONGEST)
    if ends is not None:
        end = min(end, ends)
    return Token(text, end - min(early, (end - now) / 2), end, scopes)


def read_granted(
    status: int, body: bytes, *, exchanged: bool, issuer: str | None
) -> tuple[str, float | None]:
    """Return a token and its lifetime; raises Denied for a refusal, and for what is no such answer.

    The issuer is the one that was asked: an answer of another is none (Z-11).
    """
    members = _members(body)
    if status != 200:
        error = members.get("error")
        said = error if isinstance(error, str) and _ERROR.fullmatch(error) else "no token"
        raise Denied(said, f"HTTP {status}, {said}")
    token, kind = members.get("access_token"), members.get("token_type")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise Denied("no token", "an answer without a token that could be used")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise Denied("no token", "a token that is not of the type Bearer")
    if exchanged and members.get("issued_token_type", next(iter(_ACCESS))) not in _ACCESS:
        raise Denied("no token", "a token of another type than was asked for")
    if issuer is not None and members.get("iss", issuer) != issuer:
        raise Denied("no token", "an answer of another issuer")
    return token, _lifetime(members.get("expires_in"))


def ends_of(token: str) -> float | None:
    """Return when a JWT says that it ends, in seconds since the epoch; None where nothing says it.

    Nothing is verified: it can only make us forget sooner what we got for it.
    """
    parts = token.split(".")
    if len(parts) != 3 or len(token) > 2**16:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return _number(claims.get("exp")) if isinstance(claims, dict) else None


def _members(body: bytes) -> Mapping[str, Any]:
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return members if isinstance(members, dict) else {}


def _lifetime(value: Any) -> float | None:
    if isinstance(value, str) and value.isdecimal():  # as some write it
        value = int(value[:12])
    seconds = _number(value)
    return None if seconds is None else max(0.0, seconds)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < 1e15 else None
